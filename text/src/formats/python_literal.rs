//! Python literals as JSON text, which keeps all digits of an integer. JSON is accepted too.

use std::collections::HashMap;

use serde_json::{Number, Value};

/// Deepest nesting in a literal.
const MAX_DEPTH: usize = 64;

/// JSON of a Python literal; `None` if `text` is none.
pub fn json(text: &str) -> Option<String> {
    let mut literal = Literal { rest: text };
    let value = literal.value(0)?;
    literal.rest.trim().is_empty().then_some(value)
}

/// JSON object of keyword arguments such as `a=1, b="x"`; `None` if `text` is no list of them.
pub fn keywords(text: &str) -> Option<String> {
    let mut literal = Literal { rest: text };
    let mut arguments = Members::default();
    loop {
        literal.space();
        if literal.rest.is_empty() {
            return Some(arguments.json());
        }
        if !arguments.all.is_empty() {
            literal.take(',')?;
            literal.space();
            if literal.rest.is_empty() {
                return Some(arguments.json());
            }
        }
        let name = literal.word();
        if name.is_empty() || arguments.places.contains_key(name) {
            return None;
        }
        literal.take('=')?;
        let value = literal.value(0)?;
        arguments.insert(name.to_owned(), value);
    }
}

/// Members of an object, each with the JSON of its value. As in Python, a repeated key keeps its place and
/// gets the later value.
#[derive(Default)]
struct Members {
    all: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Members {
    fn insert(&mut self, key: String, value: String) {
        match self.places.get(&key) {
            Some(place) => self.all[*place].1 = value,
            None => {
                self.places.insert(key.clone(), self.all.len());
                self.all.push((key, value));
            }
        }
    }

    fn json(self) -> String {
        let members = self.all.into_iter().map(|(key, value)| format!("{}:{value}", Value::from(key)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }
}

/// Position in a literal.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
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

    fn value(&mut self, depth: usize) -> Option<String> {
        self.space();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '"' | '\'' => self.string().map(|text| Value::from(text).to_string()),
            '[' => self.list('[', ']', depth),
            '(' => self.list('(', ')', depth),
            '{' => self.dict(depth),
            _ => match self.word() {
                "True" | "true" => Some("true".to_owned()),
                "False" | "false" => Some("false".to_owned()),
                "None" | "null" => Some("null".to_owned()),
                word => number(word),
            },
        }
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.next().filter(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        loop {
            match self.next()? {
                c if c == quote => return Some(text),
                '\\' => self.escape(&mut text)?,
                c => text.push(c),
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// Reads what follows a backslash. The backslash of an unknown escape is kept. So is that of an
    /// incomplete `\x`, `\u` or `\U`, which Python refuses: a model that writes `C:\Users` means a path.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let at_escape = self.rest;
        let code = match self.next()? {
            '\n' => return Some(()),
            '\r' => {
                self.rest = self.rest.strip_prefix('\n').unwrap_or(self.rest);
                return Some(());
            }
            c @ ('\\' | '\'' | '"') => Some(u32::from(c)),
            'a' => Some(0x07),
            'b' => Some(0x08),
            't' => Some(0x09),
            'n' => Some(0x0a),
            'v' => Some(0x0b),
            'f' => Some(0x0c),
            'r' => Some(0x0d),
            '0'..='7' => {
                let digits = at_escape.bytes().take(3).take_while(|c| matches!(c, b'0'..=b'7')).count();
                let (digits, rest) = at_escape.split_at(digits);
                self.rest = rest;
                u32::from_str_radix(digits, 8).ok()
            }
            'x' => self.hex(2),
            'u' => self.hex(4).map(|first| self.joined(first)),
            'U' => self.hex(8),
            _ => None,
        };
        match code {
            // Half of a surrogate pair is no character.
            Some(code) => text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
            None => {
                self.rest = at_escape;
                text.push('\\');
            }
        }
        Some(())
    }

    /// Reads a code of `digits` hexadecimal digits; `None` without them or if the code is beyond Unicode.
    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text = self.rest.get(..digits).filter(|text| text.bytes().all(|c| c.is_ascii_hexdigit()))?;
        let code = u32::from_str_radix(text, 16).ok().filter(|code| *code <= u32::from(char::MAX))?;
        self.rest = &self.rest[digits..];
        Some(code)
    }

    /// Joins the first half of a surrogate pair with the second, if `\u` and the second follow.
    fn joined(&mut self, first: u32) -> u32 {
        if !(0xd800..0xdc00).contains(&first) {
            return first;
        }
        let Some(rest) = self.rest.strip_prefix("\\u") else { return first };
        let mut ahead = Literal { rest };
        match ahead.hex(4) {
            Some(second @ 0xdc00..0xe000) => {
                self.rest = ahead.rest;
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            _ => first,
        }
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<String> {
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
        Some(format!("[{}]", items.join(",")))
    }

    fn dict(&mut self, depth: usize) -> Option<String> {
        self.take('{')?;
        let mut members = Members::default();
        while self.take('}').is_none() {
            if !members.all.is_empty() {
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
        Some(members.json())
    }
}

/// JSON of a Python number. An integer keeps its digits.
fn number(word: &str) -> Option<String> {
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    if unsigned.split('_').any(str::is_empty)
        || !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    {
        return None;
    }
    let sign = if word.starts_with('-') { "-" } else { "" };
    let unsigned = unsigned.replace('_', "");
    if unsigned.bytes().all(|c| c.is_ascii_digit()) {
        let digits = unsigned.trim_start_matches('0');
        return Some(if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") });
    }
    let number = format!("{sign}{unsigned}").parse::<f64>().ok().and_then(Number::from_f64)?;
    Some(number.to_string())
}
