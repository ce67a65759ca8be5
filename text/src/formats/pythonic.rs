//! Calls as a Python list: `[f(a=1), g(b="x")]`, or as one call without brackets. Each call is emitted whole,
//! because a Python literal can be converted to JSON only when it is complete.

use serde_json::{Map, Number, Value};

use super::out::{Consumed, Out};
use super::{MAX_NAME_BYTES, Plan, in_name};

/// Deepest nesting in a literal.
const MAX_DEPTH: usize = 64;

/// Parser of a list of calls.
#[derive(Debug, Default)]
pub struct Pythonic {
    opened: bool,
    /// One call, without brackets.
    is_alone: bool,
    name: String,
    /// Text inside the parentheses; `None` outside them.
    arguments: Option<String>,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
    items: usize,
    after_comma: bool,
}

impl Pythonic {
    /// Parser of one call without brackets.
    pub fn alone() -> Self {
        Self { opened: true, is_alone: true, ..Self::default() }
    }

    /// Consumes the next character.
    pub fn step(&mut self, c: char, plan: &Plan, out: &mut Out) -> Consumed {
        if self.arguments.is_some() {
            return self.argument(c, out);
        }
        match c {
            '[' if !self.opened => self.opened = true,
            _ if !self.opened => return Consumed::Fail,
            c if c.is_whitespace() && self.name.is_empty() => {}
            '(' if plan.function(&self.name).is_some() => self.arguments = Some(String::new()),
            ',' if self.name.is_empty() && self.items > 0 && !self.after_comma => self.after_comma = true,
            ']' if self.name.is_empty() && self.items > 0 => return Consumed::Done,
            c if in_name(c) && self.name.len() < MAX_NAME_BYTES && (self.items == 0 || self.after_comma) => {
                self.name.push(c);
            }
            _ => return Consumed::Fail,
        }
        Consumed::More
    }

    fn argument(&mut self, c: char, out: &mut Out) -> Consumed {
        let Some(text) = &mut self.arguments else { return Consumed::Fail };
        match (self.quote, c) {
            (Some(_), _) if self.escaped => self.escaped = false,
            (Some(_), '\\') => self.escaped = true,
            (Some(quote), c) if quote == c => self.quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => self.quote = Some(c),
            (None, '(' | '[' | '{') => self.depth += 1,
            (None, ')') if self.depth == 0 => {
                let Some(arguments) = Literal::keywords(text) else { return Consumed::Fail };
                out.call(&self.name);
                out.arguments(&Value::Object(arguments).to_string());
                out.call_end();
                self.name.clear();
                self.arguments = None;
                self.after_comma = false;
                self.items += 1;
                return if self.is_alone { Consumed::Done } else { Consumed::More };
            }
            (None, ')' | ']' | '}') => match self.depth.checked_sub(1) {
                Some(depth) => self.depth = depth,
                None => return Consumed::Fail,
            },
            (None, _) => {}
        }
        text.push(c);
        Consumed::More
    }
}

/// The value of a Python literal; `None` if `text` is none.
pub fn literal(text: &str) -> Option<Value> {
    let mut literal = Literal { rest: text };
    let value = literal.value(0)?;
    literal.rest.trim().is_empty().then_some(value)
}

/// Parser of Python literals; it also accepts JSON.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    /// Parses `a=1, b="x"`; `None` if the text is not a list of keyword arguments.
    fn keywords(text: &'a str) -> Option<Map<String, Value>> {
        let mut literal = Self { rest: text };
        let mut arguments = Map::new();
        loop {
            literal.space();
            if literal.rest.is_empty() {
                return Some(arguments);
            }
            if !arguments.is_empty() {
                literal.take(',')?;
                literal.space();
                if literal.rest.is_empty() {
                    return Some(arguments);
                }
            }
            let name = literal.word();
            if name.is_empty() || arguments.contains_key(name) {
                return None;
            }
            literal.take('=')?;
            let value = literal.value(0)?;
            arguments.insert(name.to_owned(), value);
        }
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Skips white space and then `c`; `None` if another character follows.
    fn take(&mut self, c: char) -> Option<()> {
        self.space();
        self.rest = self.rest.strip_prefix(c)?;
        Some(())
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && !"_+-.".contains(c));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.space();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '"' | '\'' => self.string().map(Value::String),
            '[' => self.list('[', ']', depth).map(Value::Array),
            '(' => self.list('(', ')', depth).map(Value::Array),
            '{' => self.dict(depth).map(Value::Object),
            _ => match self.word() {
                "True" | "true" => Some(true.into()),
                "False" | "false" => Some(false.into()),
                "None" | "null" => Some(Value::Null),
                number => number_of(number),
            },
        }
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'u' => {
                        let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok()?;
                        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    other => text.push(other),
                },
                c => text.push(c),
            }
        }
        None
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Vec<Value>> {
        self.take(open)?;
        let mut items = Vec::new();
        while self.take(close).is_none() {
            if !items.is_empty() {
                self.take(',')?;
                if self.take(close).is_some() {
                    break;
                }
            }
            items.push(self.value(depth + 1)?);
        }
        Some(items)
    }

    fn dict(&mut self, depth: usize) -> Option<Map<String, Value>> {
        self.take('{')?;
        let mut members = Map::new();
        while self.take('}').is_none() {
            if !members.is_empty() {
                self.take(',')?;
                if self.take('}').is_some() {
                    break;
                }
            }
            self.space();
            let key = self.string()?;
            self.take(':')?;
            members.insert(key, self.value(depth + 1)?);
        }
        Some(members)
    }
}

fn number_of(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let number = text.parse::<f64>().ok().filter(|_| is_number);
    number.and_then(Number::from_f64).map(Value::Number)
}
