//! Grammar of a call with each argument between tags.

use serde_json::Value;
use skein_grammar::Refused;

use super::Keyed;
use super::formed::{Formed, refuse_limits};
use super::lark::{Lark, quoted};
use super::tools::ValueKind;

/// A call with each argument between tags: required arguments, then any optional ones, in schema order.
pub fn keyed_call(lark: &mut Lark<'_>, tags: &Keyed, formed: &Formed<'_>) -> Result<String, Refused> {
    let function = formed.function;
    let mut parts =
        vec![lark.spelt_loosely(&format!("{}{}{}", tags.name_open, function.name, tags.name_close))];
    for (key, schema) in function.properties().into_iter().flatten() {
        let is_text = function.kind(key) != ValueKind::Json;
        let kind = if tags.typed { format!("\" string=\"{is_text}\"") } else { String::new() };
        let key_tag = format!("{}{key}{kind}{}", tags.key_open, tags.key_close);
        // A line break alone is part of the value's form.
        let open = match tags.value_open.trim() {
            "" => lark.spelt_loosely(&format!("{key_tag}{}", tags.value_open)),
            _ => format!("{} {}", lark.spelt_loosely(&key_tag), lark.spelt_loosely(tags.value_open)),
        };
        let value = keyed_value(lark, tags, formed, key, schema)?;
        let argument = format!("{open} {value}");
        let mark = if function.requires(key) { "" } else { "?" };
        parts.push(format!("({argument}){mark}"));
    }
    parts.push(lark.spelt_loosely(tags.close));
    Ok(parts.join(" "))
}

/// A value and its closing tag.
fn keyed_value(
    lark: &mut Lark<'_>,
    tags: &Keyed,
    formed: &Formed<'_>,
    key: &str,
    schema: &Value,
) -> Result<String, Refused> {
    let function = formed.function;
    let end = lark.spelt(tags.value_close);
    let kind = function.kind(key);
    if let Some(values) = schema["enum"].as_array().filter(|_| kind == ValueKind::Text) {
        let values: Vec<String> = values.iter().filter_map(Value::as_str).map(quoted).collect();
        return Ok(format!("({}) {end}", values.join(" | ")));
    }
    if kind != ValueKind::Json {
        let pointer = format!("/properties/{}", key.replace('~', "~0").replace('/', "~1"));
        refuse_limits(formed, schema, &pointer)?;
        // The splitter accepts a closing tag with or without the line break before it.
        let tag = tags.value_close.trim();
        let after = tags.value_close.trim_start().trim_start_matches(tag);
        return Ok(format!("{} {}", lark.until("ANY", tag), lark.spelt(after)));
    }
    let any = |refused| if function.strict { Err(refused) } else { formed.any_argument() };
    Ok(format!("{} {end}", formed.argument(schema).or_else(any)?))
}
