//! Values in Python's text, `str` and `repr`, with limits on bytes, items and depth.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::limits::{MAX_DEPTH, MAX_ITEMS, MAX_TEXT_BYTES, check};
use super::number;

/// `str(value)`.
///
/// # Errors
/// If the text is too long, or the value has too many items or nests too deeply.
pub fn printed(value: &Value) -> Result<String, Error> {
    let mut printed = Printed::default();
    printed.add(value)?;
    Ok(printed.text)
}

/// Text that grows within the limits.
#[derive(Debug, Default)]
pub struct Printed {
    /// The text so far.
    pub text: String,
    /// Items written, over all values: one list may occur many times.
    items: usize,
}

impl Printed {
    /// Appends `str(value)`.
    ///
    /// # Errors
    /// Like [`printed`].
    pub fn add(&mut self, value: &Value) -> Result<(), Error> {
        match (value.as_str(), value.kind()) {
            (Some(text), _) => self.push(text),
            (None, ValueKind::Undefined) => Ok(()),
            (None, _) => self.repr(value, MAX_DEPTH),
        }
    }

    /// Appends `text`.
    ///
    /// # Errors
    /// If it is too long.
    pub fn push(&mut self, text: &str) -> Result<(), Error> {
        check(self.text.len().saturating_add(text.len()), MAX_TEXT_BYTES, "bytes")?;
        self.text.push_str(text);
        Ok(())
    }

    fn repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Undefined => self.push("Undefined"),
            ValueKind::Number if !value.is_integer() => {
                self.push(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), number::float))
            }
            ValueKind::String => self.quoted(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth),
            ValueKind::Map => self.mapping(value, depth),
            _ => self.push(&value.to_string()),
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let inside = deeper(depth)?;
        let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
        self.push(open)?;
        let mut length = 0;
        for item in value.try_iter()? {
            self.separate(length)?;
            self.repr(&item, inside)?;
            length += 1;
        }
        if value.is_tuple() && length == 1 {
            self.push(",")?;
        }
        self.push(close)
    }

    fn mapping(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let inside = deeper(depth)?;
        self.push("{")?;
        for (at, key) in value.try_iter()?.enumerate() {
            self.separate(at)?;
            self.repr(&key, inside)?;
            self.push(": ")?;
            self.repr(&value.get_item(&key)?, inside)?;
        }
        self.push("}")
    }

    /// Counts an item and separates it from the one before.
    fn separate(&mut self, before: usize) -> Result<(), Error> {
        self.items += 1;
        check(self.items, MAX_ITEMS, "items")?;
        if before > 0 { self.push(", ") } else { Ok(()) }
    }

    fn quoted(&mut self, text: &str) -> Result<(), Error> {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        check(self.text.len().saturating_add(text.len()), MAX_TEXT_BYTES, "bytes")?;
        self.text.push(quote);
        for c in text.chars() {
            match c {
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                _ if c == quote || c == '\\' => self.text.extend(['\\', c]),
                _ if is_printable(c) => self.text.push(c),
                _ => self.text.push_str(&escaped(c)),
            }
        }
        self.text.push(quote);
        Ok(())
    }
}

fn deeper(depth: usize) -> Result<usize, Error> {
    depth.checked_sub(1).ok_or_else(|| {
        let message = format!("it prints a value nested deeper than {MAX_DEPTH}");
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

/// `str.isprintable`. Rust's own table of the same characters is reached by the escapes of a string;
/// after its first character, combining ones are kept.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut text = [b'a', 0, 0, 0, 0];
    let length = c.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..=length]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

fn escaped(c: char) -> String {
    match u32::from(c) {
        code @ 0..=0xFF => format!("\\x{code:02x}"),
        code @ 0x100..=0xFFFF => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}
