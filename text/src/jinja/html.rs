//! Escapes of HTML and of URLs.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::printed::{Printed, printed};

/// `markupsafe.escape`.
pub fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(value) }
}

/// The same for a text that is already escaped.
pub fn force_escape(value: &Value) -> Result<Value, Error> {
    let mut out = Printed::default();
    for c in printed(value)?.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            _ => out.push(c.encode_utf8(&mut [0; 4]))?,
        }
    }
    Ok(Value::from_safe_string(out.text))
}

/// Jinja2's `urlencode`: a string as a path, pairs as a query.
pub fn url_encode(value: &Value) -> Result<String, Error> {
    let mut out = Printed::default();
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        quote(&printed(value)?, "/", &mut out)?;
        return Ok(out.text);
    }
    for (at, item) in value.try_iter()?.enumerate() {
        let (key, item) = if is_map {
            (item.clone(), value.get_item(&item)?)
        } else {
            (item.get_item_by_index(0)?, item.get_item_by_index(1)?)
        };
        out.push(if at > 0 { "&" } else { "" })?;
        quote(&printed(&key)?, " ", &mut out)?;
        out.push("=")?;
        quote(&printed(&item)?, " ", &mut out)?;
    }
    Ok(out.text)
}

/// Percent-encodes all but `kept` and unreserved characters; a kept space is a plus.
fn quote(text: &str, kept: &str, out: &mut Printed) -> Result<(), Error> {
    for c in text.chars() {
        match c {
            ' ' if kept.contains(' ') => out.push("+")?,
            _ if c.is_ascii_alphanumeric() || "_.-~".contains(c) || kept.contains(c) => {
                out.push(c.encode_utf8(&mut [0; 4]))?;
            }
            _ => c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| out.push(&format!("%{byte:02X}")))?,
        }
    }
    Ok(())
}
