//! Reads a JSON body field by field. Each field is taken once, with its documented type. A field of the wrong
//! type counts as absent, and [`Fields::finish`] reports all faults of the body together. Unknown fields are
//! listed, or refused if the operator configures that.

use compact_str::CompactString;
use http::HeaderValue;
use indexmap::IndexMap;
use serde_json::{Map, Value};
use skein_proto::sampling::shown;

use super::field::{Field, Named};
use super::listing::{Kind, Lister};
use crate::refusal::Refusal;
use crate::validate::faults::Faults;

/// Most fields of a body that are searched one by one.
const MAX_SEARCHED: usize = 16;
/// Most unknown fields listed in the response header.
const MAX_IGNORED: usize = 32;
/// Longest name of an unknown field in the header, in bytes.
const MAX_IGNORED_NAME_BYTES: usize = 64;
/// Longest number that an error repeats as the client spelt it, in bytes.
const MAX_NUMBER_BYTES: usize = 64;
/// Most numbers beyond 64 bits whose spelling is looked up. Each costs a search of the whole body.
const MAX_HUGE: usize = 8;
/// Most nested objects and lists of a JSON text; serde_json's limit.
const MAX_JSON_DEPTH: usize = 127;

/// Fields of a body not yet taken, and the faults of those taken.
#[derive(Debug)]
pub struct Fields {
    untaken: IndexMap<CompactString, Field>,
    /// Numbers beyond 64 bits as the body spells them; a parsed value has only their first digits.
    huge: Vec<(String, String)>,
    faults: Faults,
    /// Lists what is taken; only while the API describes itself.
    lister: Option<Lister>,
}

impl Fields {
    /// Fields that another protocol carries, by their names here.
    pub fn of(fields: Map<String, Value>) -> Self {
        let untaken = fields.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { untaken, huge: Vec::new(), faults: Faults::default(), lister: None }
    }

    /// No fields, of which `lister` lists each that a reader takes.
    pub fn listed(lister: Lister) -> Self {
        Self { lister: Some(lister), ..Self::of(Map::new()) }
    }

    /// Parses a JSON object of up to [`MAX_JSON_DEPTH`] levels.
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        if let Err(error) = std::str::from_utf8(body) {
            let at = error.valid_up_to();
            return Err(Refusal::InvalidJson(format!(
                "The body is not valid UTF-8; the first bad byte is byte {at}."
            )));
        }
        if !body.trim_ascii_start().starts_with(b"{") {
            let other: Value = serde_json::from_slice(body).map_err(|error| not_json(&error))?;
            return Err(Refusal::InvalidJson(format!(
                "The body must be a JSON object, got {}.",
                kind_of(&other)
            )));
        }
        let Named(untaken) = serde_json::from_slice(body).map_err(|error| not_json(&error))?;
        Ok(Self { huge: huge_numbers(&untaken, body), untaken, faults: Faults::default(), lister: None })
    }

    /// Takes a field; null counts as absent.
    pub fn take_field(&mut self, name: &'static str, kind: Kind) -> Option<Field> {
        if let Some(lister) = &self.lister {
            lister.take(name, kind);
        }
        self.remove(name)
    }

    fn remove(&mut self, name: &str) -> Option<Field> {
        let (_, value) = self.untaken.shift_remove_index(self.index(name)?)?;
        Some(value).filter(|value| !value.is_null())
    }

    /// Index of an untaken field. A handler asks for dozens of names of which a body has a few, so a short
    /// body is searched rather than hashed.
    fn index(&self, name: &str) -> Option<usize> {
        if self.untaken.len() > MAX_SEARCHED {
            return self.untaken.get_index_of(name);
        }
        self.untaken.keys().position(|key| key == name)
    }

    /// Takes a field in its JSON form; null counts as absent.
    pub fn take(&mut self, name: &'static str, kind: Kind) -> Option<Value> {
        self.take_field(name, kind).map(Field::into_value)
    }

    /// Takes a field that the API does not have, to refuse it by its name or to ignore it.
    pub fn take_strange(&mut self, name: &str) -> Option<Value> {
        self.remove(name).map(Field::into_value)
    }

    /// Has the value of `sent` read as that of `read_as`, its name in other APIs.
    pub fn rename(&mut self, sent: &'static str, read_as: &'static str) {
        if let Some(lister) = &self.lister {
            lister.other_name(sent, read_as);
        }
        if let Some(value) = self.remove(sent) {
            self.untaken.insert(read_as.into(), value);
        }
    }

    /// Has those members of the object `member` that are among `names` read as fields of the body, and
    /// returns the others.
    pub fn spread(&mut self, member: &'static str, names: &'static [&'static str]) -> Map<String, Value> {
        let mut others = self.object(member).unwrap_or_default();
        if let Some(lister) = &self.lister {
            lister.members(member, names);
        }
        for name in names {
            if let Some(value) = others.shift_remove(*name) {
                self.put(name, value);
            }
        }
        others
    }

    /// Whether a field is present and true.
    pub fn is_true(&self, name: &str) -> bool {
        self.index(name).is_some_and(|index| self.untaken[index] == Field::Other(true.into()))
    }

    /// The fields not yet taken, as a JSON object.
    pub fn to_json(&self) -> String {
        let member = |(name, field): (&CompactString, &Field)| (name.to_string(), field.clone().into_value());
        Value::Object(self.untaken.iter().map(member).collect()).to_string()
    }

    /// Whether all fields have been taken.
    pub fn is_empty(&self) -> bool {
        self.untaken.is_empty()
    }

    /// Whether a description is made of what is taken.
    pub fn is_listed(&self) -> bool {
        self.lister.is_some()
    }

    /// Whether a field is present and not null.
    pub fn has(&self, name: &str) -> bool {
        self.index(name).is_some_and(|index| !self.untaken[index].is_null())
    }

    /// Adds a fault for [`Fields::finish`] to report.
    pub fn note(&mut self, fault: Refusal) {
        self.faults.note(fault);
    }

    /// Whether a fault of the field `name` was found.
    pub fn has_fault(&self, name: &str) -> bool {
        self.faults.has(name)
    }

    /// Returns the value; for an error, adds the fault and returns the default.
    pub fn value_of<T: Default>(&mut self, checked: Result<T, Refusal>) -> T {
        self.faults.value_of(checked)
    }

    fn typed<T>(
        &mut self,
        name: &'static str,
        kind: Kind,
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(name, kind)?;
        let converted = convert(&value);
        if converted.is_none() {
            let spelt = self.huge.iter().find(|(huge, _)| huge == name).map(|(_, spelt)| spelt.clone());
            self.note(wrong_kind(name, expected, spelt.unwrap_or_else(|| kind_of(&value))));
        }
        converted
    }

    /// Takes a number; `None` if absent.
    pub fn f64(&mut self, name: &'static str) -> Option<f64> {
        self.typed(name, Kind::Number, "a number", Value::as_f64)
    }

    /// Takes an integer; `None` if absent.
    pub fn i64(&mut self, name: &'static str) -> Option<i64> {
        self.typed(name, Kind::Integer, "a 64-bit integer", whole)
    }

    /// Takes a boolean; absent is false.
    pub fn bool(&mut self, name: &'static str) -> bool {
        self.optional_bool(name).unwrap_or(false)
    }

    /// Takes a boolean; `None` if absent.
    pub fn optional_bool(&mut self, name: &'static str) -> Option<bool> {
        self.typed(name, Kind::Boolean, "true or false", Value::as_bool)
    }

    /// Takes a list; `None` if absent.
    pub fn list(&mut self, name: &'static str, kind: Kind, expected: &str) -> Option<Vec<Value>> {
        match self.take(name, kind)? {
            Value::Array(items) => Some(items),
            other => {
                self.note(wrong(name, expected, &other));
                None
            }
        }
    }

    /// Takes a string; `None` if absent.
    pub fn string(&mut self, name: &'static str) -> Option<String> {
        self.typed(name, Kind::Text, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a string or a list of strings; empty if absent.
    pub fn strings(&mut self, name: &'static str) -> Vec<String> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong(name, "a string or a list of strings", &other)),
        };
        let texts = match self.take(name, Kind::Texts) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items.into_iter().map(text).collect(),
            Some(other) => text(other).map(|text| vec![text]),
        };
        self.value_of(texts)
    }

    /// Takes a list of integers; `None` if absent.
    pub fn integers(&mut self, name: &'static str) -> Option<Vec<i64>> {
        let items = match self.take_field(name, Kind::Integers)? {
            Field::Integers(integers) => Ok(Some(integers)),
            Field::List(items) => integers(name, items).map(Some),
            Field::Other(other) => Err(wrong(name, "a list of integers", &other)),
        };
        self.value_of(items)
    }

    /// Takes an object; `None` if absent.
    pub fn object(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        self.object_as(name, Kind::Object)
    }

    /// Takes an object whose members `kind` describes; `None` if absent.
    pub fn object_as(&mut self, name: &'static str, kind: Kind) -> Option<Map<String, Value>> {
        self.typed(name, kind, "an object", |value| value.as_object().cloned())
    }

    /// Adds a field as if the body contained it.
    pub fn put(&mut self, name: &str, value: Value) {
        if let Some(lister) = &self.lister {
            lister.made(name);
        }
        self.untaken.insert(name.into(), value.into());
    }

    /// Adds `name`, a field nested in one already taken, to the unknown fields.
    pub fn leave(&mut self, name: String) {
        self.untaken.insert(name.into(), Field::Other(Value::Bool(true)));
    }

    /// The fields that were not taken.
    ///
    /// # Errors
    /// All faults in one refusal.
    pub fn into_untaken(self) -> Result<IndexMap<CompactString, Field>, Refusal> {
        self.require();
        self.faults.check()?;
        Ok(self.untaken)
    }

    /// Names of the fields that were not taken, as a header value. With `refuse_unknown` each is a fault.
    ///
    /// # Errors
    /// All faults in one refusal.
    pub fn finish(mut self, refuse_unknown: bool) -> Result<Option<HeaderValue>, Refusal> {
        self.require();
        if refuse_unknown {
            for name in std::mem::take(&mut self.untaken).into_iter().map(|(name, _)| name) {
                let name: String = name.escape_default().take(MAX_IGNORED_NAME_BYTES).collect();
                let message = format!("`{name}` is not a field of this API; leave it out.");
                self.faults.note(Refusal::Invalid { param: None, message });
            }
        }
        self.faults.check()?;
        let count = self.untaken.len();
        let mut names: Vec<String> =
            self.untaken.keys().take(MAX_IGNORED).map(|name| in_header(name)).collect();
        if count > MAX_IGNORED {
            names.push(format!("({} more)", count - MAX_IGNORED));
        }
        Ok(if names.is_empty() { None } else { HeaderValue::from_str(&names.join(", ")).ok() })
    }
}

impl Fields {
    /// Where the API describes itself, there are no values: each fault is of a field that must be given.
    fn require(&self) {
        if let Some(lister) = &self.lister {
            lister.require(self.faults.params());
        }
    }
}

/// A field's name as a header can carry it: bytes that are not printable ASCII, and those with a meaning in
/// the list, as `%XX`. A long name is cut and ends with `...`.
fn in_header(name: &str) -> String {
    let mut shown = String::new();
    for byte in name.bytes() {
        if shown.len() >= MAX_IGNORED_NAME_BYTES {
            return shown + "...";
        }
        match byte {
            byte if byte.is_ascii_graphic() && !b"%,\"".contains(&byte) => shown.push(byte.into()),
            byte => shown += &format!("%{byte:02X}"),
        }
    }
    if shown.is_empty() { "\"\"".to_owned() } else { shown }
}

/// Numbers at the top of `body` that are beyond 64 bits, each as (field, spelling).
fn huge_numbers(fields: &IndexMap<CompactString, Field>, body: &[u8]) -> Vec<(String, String)> {
    let huge = |field: &Field| match field {
        Field::Other(value) if value.is_f64() => value.as_f64().filter(|float| float.abs() >= 2_f64.powi(63)),
        _ => None,
    };
    let huge = fields.iter().filter_map(|(name, field)| Some((name, huge(field)?))).take(MAX_HUGE);
    huge.filter_map(|(name, float)| Some((name.to_string(), spelling(name, float, body)?))).collect()
}

/// The text in `body` from which field `name` was read as `value`.
fn spelling(name: &str, value: f64, body: &[u8]) -> Option<String> {
    let body = std::str::from_utf8(body).ok()?;
    let key = Value::from(name).to_string();
    let places = body.match_indices(&key).filter_map(|(at, _)| {
        let after = body[at + key.len()..].trim_start().strip_prefix(':')?.trim_start();
        let end = after.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c)).unwrap_or(after.len());
        Some(&after[..end])
    });
    let mut same = places.filter(|text| text.len() <= MAX_NUMBER_BYTES && text.parse() == Ok(value));
    same.next().map(str::to_owned)
}

fn not_json(error: &serde_json::Error) -> Refusal {
    if is_too_deep(error) {
        return Refusal::InvalidJson(too_deep("The body", error));
    }
    // serde_json reports the problem and its position, and quotes at most expected field names.
    let message: String = error.to_string().chars().take(200).collect();
    Refusal::InvalidJson(format!("The body is not valid JSON: {message}."))
}

/// Whether serde_json refused a text for its depth.
pub fn is_too_deep(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}

/// Message for a text that is [too deep](is_too_deep).
pub fn too_deep(what: &str, error: &serde_json::Error) -> String {
    format!(
        "{what} has more than {MAX_JSON_DEPTH} nested objects and lists at line {} column {}; make it flatter.",
        error.line(),
        error.column()
    )
}

/// The refusal of a value of the wrong type. It repeats the value only if that is a number.
pub fn wrong(name: &'static str, expected: &str, got: &Value) -> Refusal {
    wrong_kind(name, expected, kind_of(got))
}

fn wrong_kind(name: &'static str, expected: &str, got: String) -> Refusal {
    Refusal::invalid(name, format!("{name} must be {expected}, got {got}."))
}

/// Checks that every item is an integer.
pub fn integers(name: &'static str, items: Vec<Field>) -> Result<Vec<i64>, Refusal> {
    let integer = |item: Field| {
        let item = item.into_value();
        whole(&item).ok_or_else(|| wrong(name, "a list of integers", &item))
    };
    items.into_iter().map(integer).collect()
}

/// Accepts 16 and 16.0, but neither 1e30 nor 0.5.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        // Below 2^53 a float represents every integer exactly.
        value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
            .map(|number| number as i64)
    })
}

/// Describes a number by its value and anything else by its type. serde_json reads integers over 64 bits as
/// floats, so within a list 2^64 is shown as `1.8446744073709552e19`.
fn kind_of(value: &Value) -> String {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) => {
            return match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => shown(float).to_string(),
                None => number.to_string(),
            };
        }
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    kind.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_bodies_are_refused_with_the_position() {
        let check = |body: &[u8], expected: &str| {
            let refusal = Fields::parse(body).unwrap_err();
            assert_eq!(refusal.http().code, Some("invalid_json"));
            assert!(refusal.to_string().contains(expected), "{refusal}");
            assert!(refusal.to_string().len() < 300);
        };
        check(b"{\"a\": ", "EOF while parsing a value at line 1 column 6");
        check(b"{\"a\": 1,}", "line 1 column 9");
        check(b"", "line 1 column 0");
        check(b"[1]", "must be a JSON object, got a list");
        check(b"{\"a\": \"\xFF\"}", "the first bad byte is byte 7");
        check(br#"{"a": "\ud800"}"#, "line 1");
        check(br#"{"a": NaN}"#, "line 1");
        check(format!("{{\"a\": {}", "[".repeat(100_000)).as_bytes(), "The body has more than 127 nested");
    }

    #[test]
    fn a_body_at_the_limit_of_depth_is_read_and_one_level_more_is_called_deep() {
        let body = |depth: usize| format!("{{\"a\": {}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(Fields::parse(body(MAX_JSON_DEPTH).as_bytes()).is_ok());
        let refused = Fields::parse(body(MAX_JSON_DEPTH + 1).as_bytes()).unwrap_err().to_string();
        assert!(
            refused.starts_with("The body has more than 127 nested objects and lists at line 1"),
            "{refused}"
        );
    }

    #[test]
    fn a_body_full_of_huge_numbers_is_searched_for_few_of_them() {
        let fields: Vec<String> = (0..1000).map(|i| format!("\"f{i}\": 1e{}", 30 + i % 200)).collect();
        let body = format!("{{{}}}", fields.join(", "));
        let Named(fields) = serde_json::from_str(&body).unwrap();
        let huge = huge_numbers(&fields, body.as_bytes());
        assert_eq!((huge.len(), &huge[0]), (MAX_HUGE, &("f0".to_owned(), "1e30".to_owned())));
    }

    #[test]
    fn names_of_ignored_fields_beyond_ascii_are_escaped() {
        let check = |name: &str, shown: &str| assert_eq!(in_header(name), shown);
        check("zig", "zig");
        check("größe", "gr%C3%B6%C3%9Fe");
        check("a, b%\r\n", "a%2C%20b%25%0D%0A");
        check("", "\"\"");
        check(&"x".repeat(65), &("x".repeat(64) + "..."));
    }

    /// The refusal after `take` has taken fields of a body of many types.
    fn refused(take: impl FnOnce(&mut Fields)) -> String {
        let body = br#"{"a": "x", "b": 1.5, "c": [1, "2"], "d": 16.0, "e": 18446744073709551615,
            "f": 18446744073709551616, "g": -1e30}"#;
        let mut fields = Fields::parse(body).unwrap();
        take(&mut fields);
        fields.finish(false).unwrap_err().to_string()
    }

    #[test]
    fn wrong_types_name_the_field() {
        let check = |take: fn(&mut Fields), expected: &str| assert_eq!(refused(take), expected);
        check(
            |it| {
                it.f64("a");
            },
            "a must be a number, got a string.",
        );
        check(
            |it| {
                it.i64("b");
            },
            "b must be a 64-bit integer, got 1.5.",
        );
        check(
            |it| {
                it.strings("c");
            },
            "c must be a string or a list of strings, got 1.",
        );
        check(
            |it| {
                it.integers("c");
            },
            "c must be a list of integers, got a string.",
        );
        check(
            |it| {
                it.bool("d");
            },
            "d must be true or false, got 16.",
        );
        check(
            |it| {
                it.object("a");
            },
            "a must be an object, got a string.",
        );
        assert_eq!(Fields::parse(br#"{"d": 16.0}"#).unwrap().i64("d"), Some(16));
    }

    #[test]
    fn a_whole_number_beyond_64_bits_is_not_called_fractional() {
        let check = |take: fn(&mut Fields), expected: &str| assert_eq!(refused(take), expected);
        check(
            |it| {
                it.i64("e");
            },
            "e must be a 64-bit integer, got 18446744073709551615.",
        );
        check(
            |it| {
                it.i64("f");
            },
            "f must be a 64-bit integer, got 18446744073709551616.",
        );
        check(
            |it| {
                it.i64("g");
            },
            "g must be a 64-bit integer, got -1e30.",
        );
    }

    #[test]
    fn several_faults_of_one_body_are_told_at_once() {
        let refusal = refused(|fields| {
            fields.f64("a");
            fields.i64("b");
            fields.note(Refusal::invalid("z", "z is not supported."));
        });
        assert_eq!(
            refusal,
            "a must be a number, got a string. b must be a 64-bit integer, got 1.5. z is not supported."
        );
    }

    #[test]
    fn what_nobody_took_is_listed_or_refused() {
        let fields = || {
            let body = "{\"a\": 1, \"zig\": 2, \"n\": null, \"é\\n\": 3}";
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            assert_eq!((fields.i64("a"), fields.i64("n")), (Some(1), None));
            fields
        };
        assert_eq!(fields().finish(false).unwrap().unwrap(), "zig, %C3%A9%0A");
        let refused = fields().finish(true).unwrap_err().to_string();
        assert_eq!(
            refused,
            "`zig` is not a field of this API; leave it out. `\\u{e9}\\n` is not a field of this API; leave it out."
        );
    }
}
