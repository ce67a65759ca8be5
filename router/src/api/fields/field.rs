//! The value of one field of a body. Lists of integers, which are prompts as token ids, are read as such: as
//! JSON values they take several times the memory.

use std::fmt;

use compact_str::CompactString;
use indexmap::IndexMap;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Room that a list begins with, so that a short prompt is read without growing it.
const FEW: usize = 64;
/// Fields that a body has room for at first.
const FEW_FIELDS: usize = 8;

/// A parsed value.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    /// A list of 64-bit integers, at least one.
    Integers(Vec<i64>),
    /// A list of anything else, or an empty one.
    List(Vec<Field>),
    /// Not a list.
    Other(Value),
}

impl Field {
    /// Its JSON form.
    pub fn into_value(self) -> Value {
        match self {
            Self::Integers(integers) => integers.into(),
            Self::List(items) => Value::Array(items.into_iter().map(Self::into_value).collect()),
            Self::Other(value) => value,
        }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Other(Value::Null))
    }

    fn integer(&self) -> Option<i64> {
        match self {
            Self::Other(value) => value.as_i64(),
            Self::Integers(_) | Self::List(_) => None,
        }
    }
}

impl From<Value> for Field {
    fn from(value: Value) -> Self {
        match value {
            Value::Array(items) => {
                let mut list = Items::Integers(Vec::with_capacity(FEW));
                items.into_iter().for_each(|item| list.push(item.into()));
                list.finish()
            }
            other => Self::Other(other),
        }
    }
}

/// A list that is being read: of integers until the first item that is none.
enum Items {
    Integers(Vec<i64>),
    Mixed(Vec<Field>),
}

impl Items {
    fn push(&mut self, item: Field) {
        match self {
            Self::Integers(integers) => match item.integer() {
                Some(integer) => integers.push(integer),
                None => {
                    let before = std::mem::take(integers).into_iter();
                    let mut mixed: Vec<Field> = before.map(|integer| Field::Other(integer.into())).collect();
                    mixed.push(item);
                    *self = Self::Mixed(mixed);
                }
            },
            Self::Mixed(mixed) => mixed.push(item),
        }
    }

    fn finish(self) -> Field {
        match self {
            Self::Integers(integers) if integers.is_empty() => Field::List(Vec::new()),
            Self::Integers(mut integers) => {
                // A body may have millions of shorter lists.
                if integers.len() < FEW / 4 {
                    integers.shrink_to_fit();
                }
                Field::Integers(integers)
            }
            Self::Mixed(mixed) => Field::List(mixed),
        }
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Field, E> {
        Ok(Field::Other(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Field, E> {
        Ok(Field::Other(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Field, E> {
        Ok(Field::Other(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Field, E> {
        Ok(Field::Other(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Field, E> {
        Ok(Field::Other(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Field, E> {
        Ok(Field::Other(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field::Other(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Field, A::Error> {
        let mut list = Items::Integers(Vec::with_capacity(FEW));
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(list.finish())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(Field::Other)
    }
}

/// The fields of an object by name, in its order. Of two with one name the later counts.
#[derive(Debug)]
pub struct Named(pub IndexMap<CompactString, Field>);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor)
    }
}

struct NamedVisitor;

impl<'de> Visitor<'de> for NamedVisitor {
    type Value = Named;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
        let mut fields = IndexMap::with_capacity(FEW_FIELDS);
        while let Some((name, field)) = map.next_entry()? {
            fields.insert(name, field);
        }
        Ok(Named(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_keeps_its_json_form() {
        for text in [
            "null",
            "true",
            "-3",
            "18446744073709551615",
            "1.5",
            "\"a\\u00e9\"",
            "[]",
            "[1,2,-9223372036854775808]",
            "[1,18446744073709551615]",
            "[1,2.0]",
            "[1,\"2\",[3,4],[],{}]",
            "[[1,2],[3]]",
            "{\"b\":[1],\"a\":{\"$serde_json::private::Number\":\"1\"}}",
            "[{\"role\":\"user\",\"content\":\"x\"}]",
        ] {
            let (field, value): (Field, Value) =
                (serde_json::from_str(text).unwrap(), serde_json::from_str(text).unwrap());
            assert_eq!(field, Field::from(value.clone()), "{text}");
            assert_eq!(field.into_value(), value, "{text}");
        }
    }

    #[test]
    fn of_two_fields_with_one_name_the_later_counts() {
        let text = r#"{"b": 1, "a": 2, "b": [3]}"#;
        let Named(fields) = serde_json::from_str(text).unwrap();
        let named: Vec<(&str, Field)> = fields.iter().map(|(name, field)| (&**name, field.clone())).collect();
        assert_eq!(named, [("b", Field::Integers(vec![3])), ("a", Field::Other(2.into()))]);
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value.to_string(), r#"{"b":[3],"a":2}"#);
    }

    #[test]
    fn lists_of_integers_are_read_as_such() {
        let read = |text: &str| serde_json::from_str::<Field>(text).unwrap();
        assert_eq!(read("[1,-2]"), Field::Integers(vec![1, -2]));
        assert_eq!(read("[[1],[2]]"), Field::List(vec![Field::Integers(vec![1]), Field::Integers(vec![2])]));
        assert!(matches!(read("[1,9223372036854775808]"), Field::List(_)), "beyond 64 bits with a sign");
    }
}
