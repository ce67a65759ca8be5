//! Grammar of a call in braces, as the Gemma models write it.

use serde_json::{Map, Value};
use skein_grammar::Refused;

use super::braced_call::BEFORE_NAME;
use super::formed::{Formed, keywords, refuse_limits};
use super::lark::{Lark, quoted};

/// Deepest nesting of schemas; below it any value is allowed.
const MAX_DEPTH: usize = 8;

/// One call, without the markers around it.
pub fn braced_call(lark: &mut Lark<'_>, quote: &str, formed: &Formed<'_>) -> Result<String, Refused> {
    let function = formed.function;
    let mut braced = Braced { lark, quote, formed };
    let nothing = Map::new();
    let properties = function.properties().unwrap_or(&nothing);
    let members = braced.members(properties, &|key| function.requires(key), "", 0)?;
    Ok(format!("{} {members} \"}}\"", quoted(&format!("{BEFORE_NAME}{}{{", function.name))))
}

struct Braced<'a, 'b, 'c> {
    lark: &'a mut Lark<'b>,
    quote: &'a str,
    formed: &'a Formed<'c>,
}

impl Braced<'_, '_, '_> {
    fn members(
        &mut self,
        properties: &Map<String, Value>,
        requires: &dyn Fn(&str) -> bool,
        at: &str,
        depth: usize,
    ) -> Result<String, Refused> {
        let mut members = Vec::new();
        for (key, schema) in properties {
            let value = self.value(schema, &format!("{at}/properties/{}", escaped(key)), depth)?;
            members.push((key.as_str(), requires(key), self.lark.rule(&value)));
        }
        Ok(keywords(&members, ":", ","))
    }

    /// A value under `schema`, which stands at the pointer `at`.
    fn value(&mut self, schema: &Value, at: &str, depth: usize) -> Result<String, Refused> {
        let parameters = &self.formed.function.parameters;
        let target = |reference: &str| parameters.pointer(reference.strip_prefix('#')?);
        if let Some(target) = schema["$ref"].as_str().and_then(target).filter(|_| depth < MAX_DEPTH) {
            return self.value(target, at, depth + 1);
        }
        let texts = |values: &Vec<Value>| values.iter().map(|value| value.as_str().map(quoted)).collect();
        let texts: Option<Vec<String>> = schema["enum"].as_array().and_then(texts);
        if let Some(texts) = texts {
            let quote = self.lark.spelt(self.quote);
            return Ok(format!("{quote} ({}) {quote}", texts.join(" | ")));
        }
        match schema["type"].as_str() {
            Some("string") => {
                refuse_limits(self.formed, schema, at)?;
                Ok(self.text())
            }
            Some("integer" | "number" | "boolean" | "null") => self.formed.argument(schema),
            Some("array") if depth < MAX_DEPTH && schema["items"].is_object() => {
                let limits = ["minItems", "maxItems", "uniqueItems", "prefixItems", "contains"];
                self.refuse(schema, &limits, at)?;
                let item = self.value(&schema["items"], &format!("{at}/items"), depth + 1)?;
                let item = self.lark.rule(&item);
                Ok(format!("\"[\" ({item} (\",\" {item})*)? \"]\""))
            }
            Some("object") if depth < MAX_DEPTH && schema["properties"].is_object() => {
                let nothing = Map::new();
                let properties = schema["properties"].as_object().unwrap_or(&nothing);
                let required = schema["required"].as_array();
                let requires = |key: &str| required.into_iter().flatten().any(|required| required == key);
                let members = self.members(properties, &requires, at, depth + 1)?;
                Ok(format!("\"{{\" {members} \"}}\""))
            }
            _ => {
                self.refuse(
                    schema,
                    &["anyOf", "oneOf", "allOf", "const", "enum", "type", "items", "$ref"],
                    at,
                )?;
                Ok(self.any())
            }
        }
    }

    fn text(&mut self) -> String {
        let (quote, rest) = (self.lark.spelt(self.quote), self.lark.until("ANY", self.quote));
        format!("{quote} {rest}")
    }

    /// A value of any content.
    fn any(&mut self) -> String {
        let text = self.text();
        self.lark.named("braced", || {
            let list = "\"[\" (braced (\",\" braced)*)? \"]\"";
            let member = "/[A-Za-z_][A-Za-z0-9_]{0,63}/ \":\" braced";
            let scalar = "/-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?/ | \"true\" | \"false\" | \"null\"";
            format!("{text} | {scalar} | {list} | \"{{\" ({member} (\",\" {member})*)? \"}}\"")
        })
    }

    /// Refuses a strict function with one of `keywords` in `schema`.
    fn refuse(&self, schema: &Value, keywords: &[&str], at: &str) -> Result<(), Refused> {
        let found = keywords.iter().find(|keyword| schema.get(*keyword).is_some());
        match found.filter(|_| self.formed.function.strict) {
            Some(keyword) => Err(Refused::Keyword {
                pointer: at.to_owned(),
                keyword: (*keyword).to_owned(),
                reason: "this model does not write arguments as JSON, so it cannot be enforced; leave it out"
                    .to_owned(),
            }),
            None => Ok(()),
        }
    }
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
