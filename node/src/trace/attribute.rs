//! Values of attributes in a form that costs nothing until it is exported: most requests are not.

use std::fmt;
use std::sync::Arc;

use opentelemetry::{Array, StringValue, Value};
use smallvec::SmallVec;

/// A value. Only [`From<String>`](Self::from) copies.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A count.
    Int(i64),
    /// A time in seconds, or a setting.
    Float(f64),
    /// A constant.
    Word(&'static str),
    /// A shared text.
    Text(Arc<str>),
    /// Several constants; one needs no memory of its own.
    Words(SmallVec<[&'static str; 1]>),
}

/// A key and its value.
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

/// As part of a span's name, or as an error's kind.
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
