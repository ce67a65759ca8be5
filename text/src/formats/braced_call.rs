//! Calls of the Gemma models: `call:NAME{city:<|"|>Rome<|"|>,days:2,tags:[<|"|>a<|"|>]}`. A marker quotes
//! strings, which have no escapes. Each call is emitted whole, because its arguments become JSON only when
//! they are complete.

use serde_json::{Map, Value};

use super::out::{Consumed, Out};
use super::scan::Scan;
use super::skim::is_space;
use super::tools::{Function, ValueKind};
use super::{MAX_NAME_BYTES, Plan, in_name};

/// Before the function's name.
pub const BEFORE_NAME: &str = "call:";

/// Deepest nesting in a value.
const MAX_DEPTH: usize = 64;

/// Parser of one call.
#[derive(Debug)]
pub struct BracedCall {
    /// Before and after a string.
    quote: &'static str,
    head: String,
    /// Text behind the opening brace.
    arguments: String,
    /// Open brackets; 0 before the arguments.
    depth: usize,
    in_string: bool,
    scan: Scan,
}

impl BracedCall {
    /// Parser at the start of a call.
    pub fn new(quote: &'static str) -> Self {
        let (head, arguments) = (String::new(), String::new());
        Self { quote, head, arguments, depth: 0, in_string: false, scan: Scan::default() }
    }

    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        if self.depth == 0 {
            return self.head(c);
        }
        let Self { arguments, depth, in_string, scan, .. } = self;
        let found = scan.step(c, &[self.quote], |c| {
            arguments.push(c);
            match c {
                _ if *in_string => {}
                '{' | '[' => *depth += 1,
                '}' | ']' => *depth = depth.saturating_sub(1),
                _ => {}
            }
        });
        if found.is_some() {
            self.arguments.push_str(self.quote);
            self.in_string = !self.in_string;
        }
        if self.depth > 0 {
            return if self.depth > MAX_DEPTH { Consumed::Fail } else { Consumed::More };
        }
        let name = &self.head[BEFORE_NAME.len()..];
        let mut values = Values { rest: &self.arguments, quote: self.quote };
        let Some(arguments) = values.members(plan.function(name), 0).filter(|_| values.rest.is_empty())
        else {
            return Consumed::Fail;
        };
        out.call(name);
        out.arguments(&Value::Object(arguments).to_string());
        out.call_end();
        Consumed::Done
    }

    fn head(&mut self, c: char) -> Consumed {
        let name = self.head.strip_prefix(BEFORE_NAME);
        match (c, name) {
            (c, _) if is_space(c) && self.head.is_empty() => Consumed::More,
            ('{', Some(name)) if !name.is_empty() => {
                self.depth = 1;
                Consumed::More
            }
            (c, Some(name)) if in_name(c) && name.len() < MAX_NAME_BYTES => {
                self.head.push(c);
                Consumed::More
            }
            (c, None) => {
                self.head.push(c);
                if BEFORE_NAME.starts_with(&self.head) { Consumed::More } else { Consumed::Fail }
            }
            _ => Consumed::Fail,
        }
    }
}

/// Parser of values.
struct Values<'a> {
    rest: &'a str,
    quote: &'static str,
}

impl<'a> Values<'a> {
    /// Members up to the closing brace; the schema of `function` decides the types of its arguments.
    fn members(&mut self, function: Option<&Function>, depth: usize) -> Option<Map<String, Value>> {
        let mut members = Map::new();
        while !self.ends('}') {
            let (key, rest) = self.rest.split_once(':')?;
            let key = key.trim();
            let key =
                key.strip_prefix(self.quote).and_then(|key| key.strip_suffix(self.quote)).unwrap_or(key);
            self.rest = rest;
            let value = self.value(function.map(|function| function.kind(key)), depth)?;
            members.insert(key.to_owned(), value);
        }
        Some(members)
    }

    fn items(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        while !self.ends(']') {
            items.push(self.value(None, depth)?);
        }
        Some(items)
    }

    /// Skips white space and commas, then `close` if it follows.
    fn ends(&mut self, close: char) -> bool {
        self.rest = self.rest.trim_start_matches(|c| is_space(c) || c == ',');
        self.take(close)
    }

    fn take(&mut self, c: char) -> bool {
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, kind: Option<ValueKind>, depth: usize) -> Option<Value> {
        self.rest = self.rest.trim_start();
        if depth > MAX_DEPTH {
            return None;
        }
        if self.take('{') {
            return self.members(None, depth + 1).map(Value::Object);
        }
        if self.take('[') {
            return self.items(depth + 1).map(Value::Array);
        }
        if let Some(text) = self.rest.strip_prefix(self.quote) {
            let (text, rest) = text.split_once(self.quote)?;
            self.rest = rest;
            let json = (kind == Some(ValueKind::Json)).then(|| serde_json::from_str(text).ok()).flatten();
            return Some(json.unwrap_or_else(|| text.into()));
        }
        let end = self.rest.find([',', '}', ']']).filter(|end| *end > 0)?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.trim_end();
        if text == "None" && kind != Some(ValueKind::Text) {
            // As the template prints `null`.
            return Some(Value::Null);
        }
        let json = (kind != Some(ValueKind::Text)).then(|| serde_json::from_str(text).ok()).flatten();
        Some(json.unwrap_or_else(|| text.into()))
    }
}
