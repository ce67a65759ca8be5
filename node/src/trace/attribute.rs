//! Attribute values, stored so that creation is cheap, because most requests are never exported.

use std::fmt;
use std::sync::Arc;

use opentelemetry::{Array, StringValue, Value};
use smallvec::SmallVec;

/// Attribute value. Only [`From<String>`](Self::from) copies.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// Integer, such as a count.
    Int(i64),
    /// Time in seconds, or a setting.
    Float(f64),
    /// String known at compile time.
    Word(&'static str),
    /// String made at run time, shared by its copies.
    Text(Arc<str>),
    /// Several constants; a single one needs no allocation.
    Words(SmallVec<[&'static str; 1]>),
}

/// Attribute key and value.
pub(super) type Pair = (&'static str, Attribute);

impl From<i64> for Attribute {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Attribute {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&'static str> for Attribute {
    fn from(value: &'static str) -> Self {
        Self::Word(value)
    }
}

impl From<Arc<str>> for Attribute {
    fn from(value: Arc<str>) -> Self {
        Self::Text(value)
    }
}

impl From<String> for Attribute {
    fn from(value: String) -> Self {
        Self::Text(value.into())
    }
}

impl From<Attribute> for Value {
    fn from(attribute: Attribute) -> Self {
        match attribute {
            Attribute::Int(value) => Self::I64(value),
            Attribute::Float(value) => Self::F64(value),
            Attribute::Word(value) => Self::String(value.into()),
            Attribute::Text(value) => Self::String(value.into()),
            Attribute::Words(values) => {
                Self::Array(Array::String(values.into_iter().map(StringValue::from).collect()))
            }
        }
    }
}

/// For span names and error types.
impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Word(value) => f.write_str(value),
            Self::Text(value) => f.write_str(value),
            Self::Words(values) => f.write_str(&values.join(" ")),
        }
    }
}
