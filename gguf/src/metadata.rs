//! Values of GGUF metadata.

use std::collections::HashMap;

use crate::Fault;
use crate::cursor::Cursor;

/// Longest string, in bytes; chat templates and tokens are far shorter.
const MAX_STRING: u64 = 64 << 20;
/// What errors call an element.
const ELEMENT: &str = "an element of a list";
/// Type number of a string.
const STRING: u32 = 8;
/// Type number of an array.
const ARRAY: u32 = 9;

/// Metadata value that borrows the file's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Unsigned integer of any width.
    Unsigned(u64),
    /// Signed integer of any width.
    Signed(i64),
    /// Float of 32 or 64 bits.
    Real(f64),
    /// Boolean, one byte in the file.
    Flag(bool),
    /// String, which must be UTF-8.
    Text(&'a str),
    /// Array of values of one type.
    List(Array<'a>),
}

/// Array that borrows the file's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'a> {
    kind: u32,
    len: usize,
    bytes: &'a [u8],
}

/// Width in bytes of a type; `None` for strings, arrays and unknown types.
fn width(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Decodes a fixed-width value.
fn fixed<'a>(kind: u32, bytes: &[u8]) -> Value<'a> {
    let low: [u8; 8] = std::array::from_fn(|i| bytes.get(i).copied().unwrap_or_default());
    let word = u64::from_le_bytes(low);
    match kind {
        0 | 2 | 4 | 10 => Value::Unsigned(word),
        1 => Value::Signed(i64::from(word as u8 as i8)),
        3 => Value::Signed(i64::from(word as u16 as i16)),
        5 => Value::Signed(i64::from(word as u32 as i32)),
        11 => Value::Signed(word as i64),
        6 => Value::Real(f64::from(f32::from_bits(word as u32))),
        12 => Value::Real(f64::from_bits(word)),
        _ => Value::Flag(word != 0),
    }
}

impl<'a> Value<'a> {
    /// Reads the value of `key`. Array elements must be complete but are not decoded, because there may be
    /// hundreds of thousands.
    pub(crate) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, Fault> {
        let kind = cursor.u32("a value's type")?;
        match kind {
            STRING => Ok(Self::Text(cursor.string(MAX_STRING, "a value")?)),
            ARRAY => Array::read(cursor, key).map(Self::List),
            _ => {
                let width = width(kind).ok_or_else(|| Fault::ValueType { key: key.to_owned(), kind })?;
                Ok(fixed(kind, cursor.take(width as u64, "a value")?))
            }
        }
    }

    /// The value in `bytes`, which are those of a value that was [read](Self::read) before. Elements of an
    /// array are not checked again.
    pub(crate) fn again(bytes: &'a [u8], key: &str) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u32("a value's type").ok()? != ARRAY {
            return Self::read(&mut Cursor::new(bytes), key).ok();
        }
        let (kind, len) = (cursor.u32("a list").ok()?, cursor.u64("a list").ok()?);
        Some(Self::List(Array { kind, len: usize::try_from(len).ok()?, bytes: cursor.rest() }))
    }

    /// The value as a non-negative integer; `None` for other types.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// The value as a float; `None` if it is not a number.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Self::Unsigned(value) => Some(value as f64),
            Self::Signed(value) => Some(value as f64),
            Self::Real(value) => Some(value),
            _ => None,
        }
    }

    /// The value as a string; `None` for other types.
    pub fn as_str(self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The value as a boolean; `None` for other types.
    pub fn as_bool(self) -> Option<bool> {
        if let Self::Flag(flag) = self { Some(flag) } else { None }
    }

    /// The value as an array; `None` for other types.
    pub fn as_array(self) -> Option<Array<'a>> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    /// Text of the value for error messages.
    pub(crate) fn shown(self) -> String {
        match self {
            Self::Unsigned(value) => value.to_string(),
            Self::Signed(value) => value.to_string(),
            Self::Real(value) => value.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            Self::List(list) => format!("a list of {}", list.len),
        }
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, Fault> {
        const WHAT: &str = "a list";
        let kind = cursor.u32(WHAT)?;
        let len = cursor.u64(WHAT)?;
        // Each element takes at least one byte, so refuse a length beyond the file before any loop.
        if len > cursor.left() as u64 {
            let (at, needed) = (cursor.at(), len);
            return Err(Fault::Truncated { what: WHAT, at, needed, len: at + cursor.left() });
        }
        let len = len as usize;
        let bytes = match kind {
            ARRAY => return Err(Fault::NestedArray { key: key.to_owned() }),
            STRING => {
                let mut probe = Cursor::new(cursor.rest());
                for _ in 0..len {
                    probe.string_bytes(MAX_STRING, ELEMENT)?;
                }
                cursor.take(probe.at() as u64, WHAT)?
            }
            _ => {
                let width = width(kind).ok_or_else(|| Fault::ValueType { key: key.to_owned(), kind })?;
                cursor.take((width as u64).saturating_mul(len as u64), WHAT)?
            }
        };
        Ok(Self { kind, len, bytes })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements, if they are strings in UTF-8.
    pub fn texts(self) -> Option<Vec<&'a str>> {
        let mut cursor = Cursor::new(self.bytes);
        (self.kind == STRING)
            .then(|| (0..self.len).map(|_| cursor.string(MAX_STRING, ELEMENT).ok()).collect())
            .flatten()
    }

    /// Element `index`, if it is a string in UTF-8.
    pub fn text(self, index: usize) -> Option<&'a str> {
        self.some_texts([index].into_iter())?.pop().map(|(_, text)| text)
    }

    /// The elements at `indices`, which must ascend, if these exist and are strings in UTF-8.
    pub fn some_texts(self, indices: impl Iterator<Item = usize>) -> Option<Vec<(usize, &'a str)>> {
        let mut cursor = Cursor::new(self.bytes);
        let mut next = 0;
        let mut read = |index: usize| {
            if self.kind != STRING || index >= self.len {
                return None;
            }
            (next..index).try_for_each(|_| cursor.string_bytes(MAX_STRING, ELEMENT).map(drop)).ok()?;
            next = index + 1;
            Some((index, cursor.string(MAX_STRING, ELEMENT).ok()?))
        };
        indices.map(&mut read).collect()
    }

    /// Elements that equal one of `texts`, with their indices. Nothing if the elements are no strings.
    pub fn find<'t>(self, texts: &[&'t str]) -> Vec<(usize, &'t str)> {
        let wanted: HashMap<&[u8], &'t str> = texts.iter().map(|text| (text.as_bytes(), *text)).collect();
        let count = if self.kind == STRING { self.len } else { 0 };
        let mut cursor = Cursor::new(self.bytes);
        let mut element = || cursor.string_bytes(MAX_STRING, ELEMENT).ok();
        (0..count).filter_map(|index| Some((index, *wanted.get(element()?)?))).collect()
    }

    /// Elements, if they are numbers or booleans.
    pub fn values(self) -> Option<impl Iterator<Item = Value<'a>>> {
        let width = width(self.kind)?;
        Some(self.bytes.chunks_exact(width).map(move |bytes| fixed(self.kind, bytes)))
    }
}
