//! Rules of a grammar in Lark's syntax.

use serde_json::Value;

use crate::control::ControlTokens;

/// Character that occurs in no marker.
const UNUSED_MARK: char = '\u{FDEF}';

/// Rules of a Lark grammar under construction.
pub struct Lark<'a> {
    /// Text of the rules.
    pub rules: String,
    count: usize,
    control: &'a ControlTokens,
}

impl<'a> Lark<'a> {
    /// No rules yet; `control`: the tokenizer's control tokens.
    pub fn new(control: &'a ControlTokens) -> Self {
        Self { rules: String::new(), count: 0, control }
    }
    /// Adds the rule `name` unless it exists, and returns its name.
    pub fn named(&mut self, name: &str, body: impl FnOnce() -> String) -> String {
        if !self.rules.lines().any(|line| line.starts_with(&format!("{name}: "))) {
            self.rules += &format!("{name}: {}\n", body());
        }
        name.to_owned()
    }

    /// Adds a rule and returns its name.
    pub fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        self.rules += &format!("{name}: {body}\n");
        name
    }

    /// Encodes `text` as literals and control tokens.
    pub fn spelt(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut from = 0;
        for (range, token) in self.control.find(text, UNUSED_MARK) {
            parts.extend(Some(&text[from..range.start]).filter(|part| !part.is_empty()).map(quoted));
            parts.push(format!("<[{token}]>"));
            from = range.end;
        }
        parts.extend(Some(&text[from..]).filter(|part| !part.is_empty()).map(quoted));
        parts.join(" ")
    }

    /// Like [`spelt`](Self::spelt), with or without the line break that `text` begins with: models of one
    /// format differ there. Whole alternatives, because the lexer takes the longest literal and never goes
    /// back.
    pub fn spelt_loosely(&self, text: &str) -> String {
        match text.strip_prefix('\n').filter(|rest| !rest.is_empty()) {
            Some(rest) => format!("({} | {})", self.spelt(text), self.spelt(rest)),
            None => self.spelt(text),
        }
    }

    /// Text that matches the rule `free`, up to and including `marker`.
    pub fn until(&mut self, free: &str, marker: &str) -> String {
        if self.has_control(marker) {
            // Free text cannot contain control tokens, so the marker ends it.
            let marker = self.spelt(marker);
            return self.rule(&format!("{free}? {marker}"));
        }
        self.count += 1;
        let name = format!("r{}", self.count);
        self.rules += &format!("{name}[lazy]: {free}? {}\n", quoted(marker));
        name
    }

    /// At most `most` tokens of any text, then `marker`, if `marker` is a control token; otherwise as
    /// [`until`](Self::until). After `most` tokens only the marker is allowed. This depends on the tokens
    /// alone, so a stream is cut at the same position on any worker.
    pub fn until_within(&mut self, most: u32, marker: &str) -> String {
        if self.has_control(marker) {
            let (text, marker) = (self.text_within(most), self.spelt(marker));
            return self.rule(&format!("{text}? {marker}"));
        }
        // Text could contain this marker, and a grammar cannot both bound text and search it for the marker.
        self.until("ANY", marker)
    }

    /// At least one and at most `most` tokens of any text.
    pub fn text_within(&mut self, most: u32) -> String {
        self.count += 1;
        let name = format!("text{}", self.count);
        self.rules += &format!("{name}[max_tokens={most}]: /(?s:.+)/\n");
        name
    }

    /// Whether a control token occurs in `text`.
    pub fn has_control(&self, text: &str) -> bool {
        !self.control.find(text, UNUSED_MARK).is_empty()
    }
}

/// A literal of the grammar.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Escapes `text` for use in a regular expression.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if "\\.+*?()|[]{}^$/".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
