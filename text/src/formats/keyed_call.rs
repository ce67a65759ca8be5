//! Calls whose arguments stand between tags. Each argument becomes a member of a JSON object. The function's
//! schema decides its type, because the text does not distinguish `5` from `"5"`.

use super::out::{Consumed, Out};
use super::scan::Scan;
use super::skim::is_space;
use super::tools::ValueKind;
use super::{Keyed, MAX_NAME_BYTES, Plan, in_name};

/// Longest argument name, in bytes.
const MAX_KEY_BYTES: usize = 256;

/// Parser of one call.
#[derive(Debug)]
pub struct KeyedCall {
    tags: &'static Keyed,
    at: At,
    scan: Scan,
    name: String,
    key: String,
    kind: ValueKind,
    /// Raw text of a value whose type is known only at its end.
    value: String,
    members: usize,
    /// Closing tag of a value, with the line break before it.
    padded_close: String,
    /// Opening tag of the next argument on a line of its own, which ends a value without closing tag.
    next_key: Option<String>,
    /// Fail unless the name is a known function's: without a marker, only the name makes the text a call.
    only_known: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    /// Expects the tag before the function's name.
    Open,
    Name,
    /// Expects the rest of the tag after the function's name.
    NameClose,
    /// Between two arguments.
    Between,
    Key,
    /// Expects the tag before the value.
    ValueOpen,
    /// At the first character of the value.
    ValueBegin,
    Value,
}

impl KeyedCall {
    /// Parser at the start of a call. With `held`, a grammar sees to the tags.
    pub fn new(tags: &'static Keyed, held: bool) -> Self {
        let may_lack_close = !held && !tags.value_pad.is_empty();
        Self {
            tags,
            at: if tags.name_open.is_empty() { At::Name } else { At::Open },
            scan: Scan::default(),
            name: String::new(),
            key: String::new(),
            kind: ValueKind::Text,
            value: String::new(),
            members: 0,
            padded_close: format!("{}{}", tags.value_pad, tags.value_close.trim()),
            next_key: may_lack_close.then(|| format!("{}{}", tags.value_pad, tags.key_open.trim())),
            only_known: false,
        }
    }

    /// Parser behind the tag before the function's name, of a call without a marker.
    pub fn at_name(tags: &'static Keyed) -> Self {
        Self { at: At::Name, only_known: true, ..Self::new(tags, false) }
    }

    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        match self.at {
            At::Open => self.tag(c, self.tags.name_open, At::Name),
            At::Name => self.name(c, plan, out),
            At::NameClose => {
                self.tag(c, self.tags.name_close.trim().get(1..).unwrap_or_default(), At::Between)
            }
            At::Between => self.between(c, out),
            At::Key => self.key(c, plan, out),
            At::ValueOpen if self.tags.value_open.trim().is_empty() => {
                self.at = At::ValueBegin;
                self.step(c, plan, out)
            }
            At::ValueOpen => self.tag(c, self.tags.value_open, At::ValueBegin),
            At::ValueBegin => {
                self.at = At::Value;
                let is_pad = c == '\n' && !self.tags.value_pad.is_empty();
                if is_pad { Consumed::More } else { self.value(c, out) }
            }
            At::Value => self.value(c, out),
        }
    }

    /// Consumes one character of `tag`; white space may precede the tag.
    fn tag(&mut self, c: char, tag: &'static str, next: At) -> Consumed {
        if self.scan.is_empty() && is_space(c) {
            return Consumed::More;
        }
        let mut other = false;
        let found = self.scan.step(c, &[tag.trim()], |_| other = true);
        if other {
            return Consumed::Fail;
        }
        if found.is_some() {
            self.at = next;
        }
        Consumed::More
    }

    fn name(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        if in_name(c) && self.name.len() < MAX_NAME_BYTES {
            self.name.push(c);
            return Consumed::More;
        }
        if self.name.is_empty() {
            return if is_space(c) { Consumed::More } else { Consumed::Fail };
        }
        let close = self.tags.name_close.trim();
        let is_end = if close.is_empty() { is_space(c) || c == '<' } else { close.starts_with(c) };
        if !is_end || (self.only_known && plan.function(&self.name).is_none()) {
            return Consumed::Fail;
        }
        out.call(&self.name);
        out.argument('{');
        self.at = if close.len() > 1 { At::NameClose } else { At::Between };
        if close.is_empty() { self.step(c, plan, out) } else { Consumed::More }
    }

    fn between(&mut self, c: char, out: &mut Out) -> Consumed {
        if self.scan.is_empty() && is_space(c) {
            return Consumed::More;
        }
        let mut other = false;
        let tags = [self.tags.key_open.trim(), self.tags.close.trim()];
        match self.scan.step(c, &tags, |_| other = true) {
            _ if other => {
                // The call broke off, but its complete arguments are kept.
                self.end(out);
                Consumed::Fail
            }
            None => Consumed::More,
            Some(0) => {
                self.key.clear();
                self.at = At::Key;
                Consumed::More
            }
            Some(_) => {
                self.end(out);
                Consumed::Done
            }
        }
    }

    fn end(&self, out: &mut Out) {
        out.argument('}');
        out.call_end();
    }

    fn key(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        let key = &mut self.key;
        let found = self.scan.step(c, &[self.tags.key_close], |c| key.push(c));
        if self.key.len() > MAX_KEY_BYTES {
            return Consumed::Fail;
        }
        if found.is_some() {
            let mut key = self.key.trim();
            if self.tags.typed {
                let (name, attributes) = key.split_once('"').unwrap_or((key, ""));
                let is_text = attributes.trim() == "string=\"true\"";
                self.kind = if is_text { ValueKind::Text } else { ValueKind::Json };
                key = name;
            } else {
                self.kind = plan.function(&self.name).map_or(ValueKind::Text, |function| function.kind(key));
            }
            let key = key.to_owned();
            let comma = if self.members > 0 { ", " } else { "" };
            self.members += 1;
            out.arguments(&format!("{comma}{}: ", serde_json::Value::from(key)));
            if self.kind == ValueKind::Text {
                out.argument('"');
            }
            self.value.clear();
            self.at = At::ValueOpen;
        }
        Consumed::More
    }

    fn value(&mut self, c: char, out: &mut Out) -> Consumed {
        let close = self.tags.value_close.trim();
        let (kind, value) = (self.kind, &mut self.value);
        let ends = [self.padded_close.as_str(), close, self.next_key.as_deref().unwrap_or(close)];
        let found = self.scan.step(c, &ends, |c| match kind {
            ValueKind::Text => write_escaped(c, out),
            _ => value.push(c),
        });
        if let Some(end) = found {
            match self.kind {
                ValueKind::Text => out.argument('"'),
                kind => out.arguments(&kind.json(&self.value)),
            }
            self.key.clear();
            self.at = if end == 2 { At::Key } else { At::Between };
        }
        Consumed::More
    }
}

/// Writes a character escaped for a JSON string.
fn write_escaped(c: char, out: &mut Out) {
    match c {
        '"' => out.arguments("\\\""),
        '\\' => out.arguments("\\\\"),
        '\n' => out.arguments("\\n"),
        '\r' => out.arguments("\\r"),
        '\t' => out.arguments("\\t"),
        c if u32::from(c) < 0x20 => out.arguments(&format!("\\u{:04x}", u32::from(c))),
        c => out.argument(c),
    }
}
