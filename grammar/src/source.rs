//! The text of a constraint, in one notation for all kinds: Lark's, as the library reads it. The text alone
//! determines which tokens are allowed, so it is what goes over the wire and into a stream's key.

use serde_json::{Value, json};

use crate::error::{Refused, check_size};
use crate::lark::quoted;
use crate::limits::{MAX_CHOICES, MAX_REGEX_BYTES, MAX_SOURCE_BYTES};
use crate::{ebnf, schema, structural_tag};

/// A constraint, in canonical form: equal constraints made by this version have equal texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    text: String,
    /// Kind of the constraint, for errors.
    what: &'static str,
    /// The schema's keywords that only the library can check, with their pointers.
    decided_later: Vec<(&'static str, String)>,
}

impl Source {
    /// JSON that `schema` accepts, with up to [`MAX_WHITESPACE`](crate::limits::MAX_WHITESPACE) characters of
    /// white space between tokens. Properties come in the schema's order.
    ///
    /// # Errors
    /// [`Refused::Keyword`] for what cannot be enforced, or another reason.
    pub fn json_schema(value: &Value) -> Result<Self, Refused> {
        let decided_later = schema::check(value)?;
        let text = format!("start: %json {}\n", schema::for_library(value));
        Ok(Self { decided_later, ..Self::new("JSON schema", text)? })
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// Never. It returns a `Result` like the other constructors.
    pub fn json_object() -> Result<Self, Refused> {
        Self::json_schema(&json!({"type": "object"}))
    }

    /// Text that `pattern` matches as a whole.
    ///
    /// # Errors
    /// [`Refused`] if it is too long. Faults in the pattern appear when it is compiled.
    pub fn regex(pattern: &str) -> Result<Self, Refused> {
        check_size("regular expression", pattern.len(), "bytes", MAX_REGEX_BYTES)?;
        // The whole answer has to match, so the usual anchors say nothing.
        let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
        let anchored = pattern.ends_with('$') && !pattern.ends_with("\\$");
        let pattern = if anchored { &pattern[..pattern.len() - 1] } else { pattern };
        Self::new("regular expression", format!("start: /{}/\n", crate::library::regex_to_lark(pattern)))
    }

    /// One of `choices`.
    ///
    /// # Errors
    /// [`Refused`] if there are none, or too many.
    pub fn choice<T: AsRef<str>>(choices: &[T]) -> Result<Self, Refused> {
        check_size("list of choices", choices.len(), "entries", MAX_CHOICES)?;
        if choices.is_empty() || choices.iter().any(|choice| choice.as_ref().is_empty()) {
            let reason = "it needs at least one choice, and none may be empty".to_owned();
            return Err(Refused::Unusable { what: "list of choices", reason });
        }
        let choices: Vec<String> = choices.iter().map(|choice| quoted(choice.as_ref())).collect();
        Self::new("list of choices", format!("start: {}\n", choices.join(" | ")))
    }

    /// A grammar: in EBNF with `::=` (as llama.cpp's and xgrammar's, from the rule `root`), else in Lark's
    /// notation (from the rule `start`).
    ///
    /// # Errors
    /// [`Refused`] if it is malformed EBNF or too large; errors of Lark appear when it is compiled.
    pub fn grammar(text: &str) -> Result<Self, Refused> {
        check_size("grammar", text.len(), "bytes", MAX_SOURCE_BYTES)?;
        let text = if ebnf::is_ebnf(text) { ebnf::to_lark(text)? } else { text.to_owned() };
        Self::new("grammar", text)
    }

    /// Free text with tags of a given content, in vLLM's and xgrammar's notation.
    ///
    /// # Errors
    /// [`Refused`] for forms that are not supported.
    pub fn structural_tag(tag: &Value) -> Result<Self, Refused> {
        Self::new("structural tag", structural_tag::to_lark(tag)?)
    }

    /// The constraint whose text was [made](Self::text) elsewhere.
    ///
    /// # Errors
    /// [`Refused`] if it is too large.
    pub fn from_text(text: impl Into<String>) -> Result<Self, Refused> {
        Self::new("grammar", text.into())
    }

    fn new(what: &'static str, text: String) -> Result<Self, Refused> {
        check_size(what, text.len(), "bytes", MAX_SOURCE_BYTES)?;
        let depth = schema::nesting(&text);
        check_size(what, depth, "nested levels", 4 * crate::limits::MAX_DEPTH)?;
        Ok(Self { text, what, decided_later: Vec::new() })
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The constraint as a part of another grammar.
    pub fn nested(&self) -> String {
        match self.text.strip_prefix("start: %json ") {
            Some(schema) => format!("%json {}", schema.trim_end()),
            None => format!("%lark {{\n{}\n}}", self.text),
        }
    }

    /// The refusal for the library's `reason`.
    pub(crate) fn refused(&self, reason: &str) -> Refused {
        for (keyword, said, advice) in schema::DECIDED_LATER {
            let mut places = self.decided_later.iter().filter(|(other, _)| *other == keyword);
            let Some((_, pointer)) = places.next().filter(|_| reason.contains(said)) else { continue };
            let others = match places.count() {
                0 => String::new(),
                count => format!(" (or another of the {} in this schema)", count + 1),
            };
            let reason = format!("{advice}{others}");
            return Refused::Keyword { pointer: pointer.clone(), keyword: keyword.into(), reason };
        }
        Refused::Unusable { what: self.what, reason: reason.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_constraints_have_equal_texts() {
        let check = |source: Result<Source, Refused>, text: &str| assert_eq!(source.unwrap().text(), text);
        check(Source::choice(&["a", "b\"c"]), "start: \"a\" | \"b\\\"c\"\n");
        check(Source::regex("^a/b$"), "start: /a\\/b/\n");
        check(Source::regex("a\\$"), "start: /a\\$/\n");
        check(Source::grammar("start: \"x\""), "start: \"x\"");
    }

    #[test]
    fn too_large_ones_are_refused_with_the_limit() {
        let told = |refused: Result<Source, Refused>| refused.unwrap_err().to_string();
        let many = vec!["x"; MAX_CHOICES + 1];
        assert_eq!(
            told(Source::choice(&many)),
            "the list of choices has 4097 entries, the limit is 4096; make it smaller"
        );
        assert!(told(Source::regex(&"a".repeat(MAX_REGEX_BYTES + 1))).contains("the limit is 16384"));
        assert!(told(Source::choice(&[""])).contains("none may be empty"));
        assert!(told(Source::grammar(&"(".repeat(2000))).contains("nested levels"));
    }
}
