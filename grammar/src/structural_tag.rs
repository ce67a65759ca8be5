//! Structural tags: free text in which a *trigger*, such as `<function=`, must continue as a tag with a fixed
//! content and end. Translates both notations of vLLM's clients to Lark.

use serde_json::Value;

use crate::error::{Refused, check_size};
use crate::form::JsonForm;
use crate::lark::quoted;
use crate::limits::MAX_CHOICES;
use crate::schema;

const WHAT: &str = "structural tag";

/// A tag: `begin`, content that matches a schema, `end`.
struct Tag<'a> {
    begin: &'a str,
    content: String,
    end: &'a str,
}

/// Grammar of `tag`: either `{"type": "structural_tag", "structures": […], "triggers": […]}` or `{"type":
/// "structural_tag", "format": {"type": "triggered_tags", …}}`.
///
/// # Errors
/// [`Refused`] for other forms and for content that cannot be enforced.
pub fn to_lark(tag: &Value, form: JsonForm) -> Result<String, Refused> {
    let format = &tag["format"];
    if format.is_null() {
        let tags = list(tag, "structures")?.iter().map(|one| {
            let text = |name: &str| string(one, name);
            Ok(Tag { begin: text("begin")?, content: json(&one["schema"], form)?, end: text("end")? })
        });
        let tags = tags.collect::<Result<Vec<_>, Refused>>()?;
        return free_text(&strings(list(tag, "triggers")?)?, &tags, Times::default());
    }
    if format["type"] != "triggered_tags" {
        let got = format["type"].as_str().unwrap_or("none").chars().take(40).collect::<String>();
        return Err(unusable(format!("format.type is `{got}`; only triggered_tags is supported")));
    }
    refuse_unless_neutral("format", format, &["excludes"])?;
    let tags = list(format, "tags")?.iter().map(|one| {
        let content = &one["content"];
        if content["type"] != "json_schema" {
            let message = "the content of a tag must be {\"type\": \"json_schema\", \"json_schema\": …}";
            return Err(unusable(message.to_owned()));
        }
        if content["style"] != "json" {
            refuse_unless_neutral("content", content, &["style"])?;
        }
        refuse_unless_neutral("content", content, &["any_order", "max_whitespace_cnt", "excludes"])?;
        Ok(Tag {
            begin: string(one, "begin")?,
            content: json(&content["json_schema"], form)?,
            end: string(one, "end")?,
        })
    });
    let tags = tags.collect::<Result<Vec<_>, Refused>>()?;
    let times =
        Times { is_first: format["at_least_one"] == true, is_once: format["stop_after_first"] == true };
    free_text(&strings(list(format, "triggers")?)?, &tags, times)
}

/// Refuses options that change what is allowed.
fn refuse_unless_neutral(place: &str, value: &Value, names: &[&str]) -> Result<(), Refused> {
    let is_neutral =
        |value: &Value| value.is_null() || *value == false || value.as_array().is_some_and(Vec::is_empty);
    match names.iter().find(|name| !is_neutral(&value[**name])) {
        Some(name) => Err(unusable(format!("{place}.{name} is not supported; leave it out"))),
        None => Ok(()),
    }
}

/// Where tags may be.
#[derive(Clone, Copy, Default)]
struct Times {
    /// The answer begins with a tag.
    is_first: bool,
    /// The answer ends with its first tag.
    is_once: bool,
}

/// Free text in which each of `triggers` must continue as a tag that begins with it.
fn free_text(triggers: &[&str], tags: &[Tag<'_>], times: Times) -> Result<String, Refused> {
    check_size(WHAT, tags.len(), "tags", MAX_CHOICES)?;
    let mut lark = String::new();
    let mut names = Vec::new();
    let text = |text: &str| if text.is_empty() { String::new() } else { quoted(text) };
    for (at, trigger) in triggers.iter().enumerate() {
        let follow = |(at, tag): (usize, &Tag<'_>)| {
            Some(format!("{} inner_{at}", text(tag.begin.strip_prefix(trigger)?)))
        };
        let tags: Vec<String> = tags.iter().enumerate().filter_map(follow).collect();
        if trigger.is_empty() || tags.is_empty() {
            return Err(unusable(format!("no tag begins with the trigger {trigger:?}")));
        }
        lark += &format!("until_{at}[lazy]: /(?s:.*)/ {}\n", quoted(trigger));
        lark += &format!("tag_{at}: until_{at} ({})\n", tags.join(" | "));
        names.push(format!("tag_{at}"));
    }
    let all_are_triggered = |tag: &Tag<'_>| triggers.iter().any(|trigger| tag.begin.starts_with(trigger));
    if let Some(tag) = tags.iter().find(|tag| !all_are_triggered(tag)) {
        return Err(unusable(format!("the tag {:?} begins with no trigger", tag.begin)));
    }
    if names.is_empty() {
        return Err(unusable("it needs at least one trigger".to_owned()));
    }
    for (at, tag) in tags.iter().enumerate() {
        lark += &format!("inner_{at}: %json {} {}\n", tag.content, text(tag.end));
    }
    let tag = names.join(" | ");
    let whole = |(at, tag): (usize, &Tag<'_>)| format!("{} inner_{at}", text(tag.begin));
    let first: Vec<String> = tags.iter().enumerate().map(whole).collect();
    let start = match (times.is_first, times.is_once) {
        (false, false) => format!("({tag})* rest"),
        (false, true) => format!("{tag} | rest"),
        (true, false) => format!("({}) ({tag})* rest", first.join(" | ")),
        (true, true) => first.join(" | "),
    };
    Ok(format!("start: {start}\nrest: /(?s:.*)/\n{lark}"))
}

/// Checked schema of a tag's content, as text.
fn json(content: &Value, form: JsonForm) -> Result<String, Refused> {
    schema::check(content)?;
    Ok(schema::for_library(content, form))
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a [Value], Refused> {
    let list = value[name].as_array().map(Vec::as_slice);
    list.ok_or_else(|| unusable(format!("`{name}` must be a list")))
}

fn string<'a>(value: &'a Value, name: &str) -> Result<&'a str, Refused> {
    value[name].as_str().ok_or_else(|| unusable(format!("`{name}` must be a string")))
}

fn strings(values: &[Value]) -> Result<Vec<&str>, Refused> {
    let text = |value: &'_ Value| value.as_str().map(str::len).is_some();
    if values.iter().all(text) {
        return Ok(values.iter().filter_map(Value::as_str).collect());
    }
    Err(unusable("`triggers` must be strings".to_owned()))
}

fn unusable(reason: String) -> Refused {
    Refused::Unusable { what: WHAT, reason }
}
