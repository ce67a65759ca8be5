//! Calls whose arguments stand between tags. Each becomes a member of a JSON object; its type comes from the
//! function's schema, because the text does not tell `5` from `"5"`.

use super::scan::Scan;
use super::skim::is_space;
use super::splitter::{Out, Step};
use super::tools::ValueKind;
use super::{Keyed, MAX_NAME_BYTES, Plan, in_name};

/// Longest name of an argument, bytes.
const MAX_KEY_BYTES: usize = 256;

/// One such call.
#[derive(Debug)]
pub struct KeyedCall {
    tags: &'static Keyed,
    at: At,
    scan: Scan,
    name: String,
    key: String,
    kind: ValueKind,
    /// A value that is typed at its end.
    value: String,
    members: usize,
    /// What ends a value together with its line break.
    padded_close: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    /// Up to the tag before the name.
    Open,
    Name,
    /// Between arguments.
    Between,
    Key,
    /// Up to the tag before the value.
    ValueOpen,
    /// At the value's first character.
    ValueBegin,
    Value,
}

impl KeyedCall {
    /// At its beginning.
    pub fn new(tags: &'static Keyed) -> Self {
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
        }
    }

    /// Takes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Step {
        match self.at {
            At::Open => self.tag(c, self.tags.name_open, At::Name),
            At::Name => self.name(c, plan, out),
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
                if is_pad { Step::More } else { self.value(c, out) }
            }
            At::Value => self.value(c, out),
        }
    }

    /// Takes a character of `tag`, before which there may be white space.
    fn tag(&mut self, c: char, tag: &'static str, next: At) -> Step {
        if self.scan.is_empty() && is_space(c) {
            return Step::More;
        }
        let mut other = false;
        let found = self.scan.step(c, &[tag.trim()], |_| other = true);
        if other {
            return Step::Fail;
        }
        if found.is_some() {
            self.at = next;
        }
        Step::More
    }

    fn name(&mut self, c: char, plan: &Plan, out: &mut Out) -> Step {
        if in_name(c) && self.name.len() < MAX_NAME_BYTES {
            self.name.push(c);
            return Step::More;
        }
        if self.name.is_empty() {
            return if is_space(c) { Step::More } else { Step::Fail };
        }
        let close = self.tags.name_close.trim();
        let is_end = if close.is_empty() { is_space(c) || c == '<' } else { close.starts_with(c) };
        if !is_end {
            return Step::Fail;
        }
        out.call(&self.name);
        out.argument('{');
        self.at = At::Between;
        if close.is_empty() { self.step(c, plan, out) } else { Step::More }
    }

    fn between(&mut self, c: char, out: &mut Out) -> Step {
        if self.scan.is_empty() && is_space(c) {
            return Step::More;
        }
        let mut other = false;
        let tags = [self.tags.key_open.trim(), self.tags.close.trim()];
        match self.scan.step(c, &tags, |_| other = true) {
            _ if other => {
                // Broken off, but the arguments so far are whole.
                self.end(out);
                Step::Fail
            }
            None => Step::More,
            Some(0) => {
                self.key.clear();
                self.at = At::Key;
                Step::More
            }
            Some(_) => {
                self.end(out);
                Step::Done
            }
        }
    }

    fn end(&self, out: &mut Out) {
        out.argument('}');
        out.call_end();
    }

    fn key(&mut self, c: char, plan: &Plan, out: &mut Out) -> Step {
        let key = &mut self.key;
        let found = self.scan.step(c, &[self.tags.key_close], |c| key.push(c));
        if self.key.len() > MAX_KEY_BYTES {
            return Step::Fail;
        }
        if found.is_some() {
            let key = self.key.trim().to_owned();
            self.kind = plan.function(&self.name).map_or(ValueKind::Text, |function| function.kind(&key));
            let comma = if self.members > 0 { ", " } else { "" };
            self.members += 1;
            out.arguments(&format!("{comma}{}: ", serde_json::Value::from(key)));
            if self.kind == ValueKind::Text {
                out.argument('"');
            }
            self.value.clear();
            self.at = At::ValueOpen;
        }
        Step::More
    }

    fn value(&mut self, c: char, out: &mut Out) -> Step {
        let close = self.tags.value_close.trim();
        let (kind, value) = (self.kind, &mut self.value);
        let found = self.scan.step(c, &[&self.padded_close, close], |c| match kind {
            ValueKind::Text => write_escaped(c, out),
            _ => value.push(c),
        });
        if found.is_some() {
            match self.kind {
                ValueKind::Text => out.argument('"'),
                kind => out.arguments(&kind.json(&self.value)),
            }
            self.at = At::Between;
        }
        Step::More
    }
}

/// A character as part of a JSON string.
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
