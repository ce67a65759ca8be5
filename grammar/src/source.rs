//! Text of a constraint in one notation for all kinds: Lark as the library reads it. The text alone
//! determines the allowed tokens, so it is sent to workers and is part of a stream's key.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{Refused, check_size};
use crate::form::JsonForm;
use crate::lark::quoted;
use crate::limits::{MAX_CHOICES, MAX_REGEX_BYTES, MAX_SOURCE_BYTES};
use crate::schema::Unchecked;
use crate::words::{is_about, plain};
use crate::{ebnf, schema, structural_tag};

/// Kind of a constraint in the library's own notation, whose positions are the client's.
const LARK: &str = "grammar";

/// A constraint in canonical form: equal constraints from this version have equal text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    text: String,
    /// Kind of constraint, for errors.
    what: &'static str,
    /// Parts of a schema that only the library can check.
    unchecked: Unchecked,
    /// What the text was made from, if it has JSON in it.
    origin: Option<Origin>,
}

/// A constraint whose JSON can be written in several forms.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Schema(Arc<Value>, JsonForm),
    Tag(Arc<Value>, JsonForm),
}

impl Source {
    /// JSON that `schema` accepts, with up to [`MAX_WHITESPACE`](crate::limits::MAX_WHITESPACE) characters of
    /// white space between tokens. Properties appear in schema order.
    ///
    /// # Errors
    /// [`Refused::Keyword`] for a keyword that cannot be enforced, or another reason.
    pub fn json_schema(value: &Value) -> Result<Self, Refused> {
        Self::json_schema_in(value, JsonForm::default())
    }

    /// Like [`json_schema`](Self::json_schema), written in `form`.
    ///
    /// # Errors
    /// As for `json_schema`.
    pub fn json_schema_in(value: &Value, form: JsonForm) -> Result<Self, Refused> {
        let unchecked = schema::check(value)?;
        let text = format!("start: %json {}\n", schema::for_library(value, form));
        let origin = Some(Origin::Schema(Arc::new(value.clone()), form));
        Ok(Self { unchecked, origin, ..Self::new("JSON schema", text)? })
    }

    /// The same constraint, whose JSON is also in `form`.
    ///
    /// # Errors
    /// [`Refused`] if the text becomes too long.
    pub fn in_form(&self, form: JsonForm) -> Result<Self, Refused> {
        match &self.origin {
            Some(Origin::Schema(value, own)) => Self::json_schema_in(value, own.and(form)),
            Some(Origin::Tag(tag, own)) => Self::structural_tag_in(tag, own.and(form)),
            None => Ok(self.clone()),
        }
    }

    /// JSON object of any content.
    ///
    /// # Errors
    /// Never; the signature matches the other constructors.
    pub fn json_object() -> Result<Self, Refused> {
        Self::json_schema(&json!({"type": "object"}))
    }

    /// Text that matches `pattern` as a whole.
    ///
    /// # Errors
    /// [`Refused`] if the pattern is too long. Other faults are detected at compilation.
    pub fn regex(pattern: &str) -> Result<Self, Refused> {
        check_size("regular expression", pattern.len(), "bytes", MAX_REGEX_BYTES)?;
        // The whole answer must match, so outer anchors are redundant.
        let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
        let anchored = pattern.ends_with('$') && !pattern.ends_with("\\$");
        let pattern = if anchored { &pattern[..pattern.len() - 1] } else { pattern };
        Self::new("regular expression", format!("start: /{}/\n", crate::library::regex_to_lark(pattern)))
    }

    /// Exactly one of `choices`.
    ///
    /// # Errors
    /// [`Refused`] if there are none or too many.
    pub fn choice<T: AsRef<str>>(choices: &[T]) -> Result<Self, Refused> {
        check_size("list of choices", choices.len(), "entries", MAX_CHOICES)?;
        if choices.is_empty() || choices.iter().any(|choice| choice.as_ref().is_empty()) {
            let reason = "it needs at least one choice, and none may be empty".to_owned();
            return Err(Refused::Unusable { what: "list of choices", reason });
        }
        let choices: Vec<String> = choices.iter().map(|choice| quoted(choice.as_ref())).collect();
        Self::new("list of choices", format!("start: {}\n", choices.join(" | ")))
    }

    /// A grammar in EBNF with `::=` (as in llama.cpp and xgrammar, start rule `root`) or in Lark (start rule
    /// `start`).
    ///
    /// # Errors
    /// [`Refused`] if it is malformed EBNF or too large; Lark errors are detected at compilation.
    pub fn grammar(text: &str) -> Result<Self, Refused> {
        check_size("grammar", text.len(), "bytes", MAX_SOURCE_BYTES)?;
        if ebnf::is_ebnf(text) {
            return Self::new("EBNF grammar", ebnf::to_lark(text)?);
        }
        Self::new(LARK, text.to_owned())
    }

    /// Free text with tags of fixed content, in vLLM's and xgrammar's notation.
    ///
    /// # Errors
    /// [`Refused`] for unsupported forms.
    pub fn structural_tag(tag: &Value) -> Result<Self, Refused> {
        Self::structural_tag_in(tag, JsonForm::default())
    }

    fn structural_tag_in(tag: &Value, form: JsonForm) -> Result<Self, Refused> {
        let origin = Some(Origin::Tag(Arc::new(tag.clone()), form));
        Ok(Self { origin, ..Self::new("structural tag", structural_tag::to_lark(tag, form)?)? })
    }

    /// Constraint from the [text](Self::text) of another process.
    ///
    /// # Errors
    /// [`Refused`] if the text is too long.
    pub fn from_text(text: impl Into<String>) -> Result<Self, Refused> {
        Self::new(LARK, text.into())
    }

    fn new(what: &'static str, text: String) -> Result<Self, Refused> {
        check_size(what, text.len(), "bytes", MAX_SOURCE_BYTES)?;
        let depth = schema::nesting(&text);
        check_size(what, depth, "nested levels", 4 * crate::limits::MAX_DEPTH)?;
        Ok(Self { text, what, unchecked: Unchecked::default(), origin: None })
    }

    /// Canonical text in Lark's notation.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The constraint as part of another grammar.
    pub fn nested(&self) -> String {
        match self.text.strip_prefix("start: %json ") {
            Some(schema) => format!("%json {}", schema.trim_end()),
            None => format!("%lark {{\n{}\n}}", self.text),
        }
    }

    /// Converts the library's `message` to a refusal.
    pub(crate) fn refused(&self, message: &str) -> Refused {
        let reason = plain(message, self.what == LARK);
        let mut patterns = self.unchecked.patterns.iter();
        if let Some((pointer, keyword, _)) = patterns.find(|(.., pattern)| is_about(message, pattern)) {
            return Refused::Keyword { pointer: pointer.clone(), keyword: (*keyword).to_owned(), reason };
        }
        for (keyword, said, advice) in schema::DECIDED_LATER {
            let mut places = self.unchecked.decided_later.iter().filter(|(other, _)| *other == keyword);
            let Some((_, pointer)) = places.next().filter(|_| message.contains(said)) else { continue };
            let others = match places.count() {
                0 => String::new(),
                count => format!(" (or another of the {} in this schema)", count + 1),
            };
            let reason = format!("{advice}{others}");
            return Refused::Keyword { pointer: pointer.clone(), keyword: keyword.into(), reason };
        }
        Refused::Unusable { what: self.what, reason }
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
        let message = |refused: Result<Source, Refused>| refused.unwrap_err().to_string();
        let many = vec!["x"; MAX_CHOICES + 1];
        assert_eq!(
            message(Source::choice(&many)),
            "the list of choices has 1901 entries, the limit is 1900; make it smaller"
        );
        assert!(message(Source::regex(&"a".repeat(MAX_REGEX_BYTES + 1))).contains("the limit is 16384"));
        assert!(message(Source::choice(&[""])).contains("none may be empty"));
        assert!(message(Source::grammar(&"(".repeat(2000))).contains("nested levels"));
    }
}
