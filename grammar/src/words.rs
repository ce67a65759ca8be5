//! Puts the library's messages into words for somebody who does not know the library: what is wrong, where,
//! which limit, what to do.

use crate::limits::{
    COMPILE_FUEL, MASK_FUEL, MASK_ITEMS, MAX_ALTERNATIVES, MAX_GRAMMAR_SYMBOLS, MAX_LEXER_STATES,
};

/// Longest reason, in characters.
const MAX_REASON: usize = 300;

/// Reason in plain words. `message` is all that the library says, with the excerpts below its first line;
/// `is_own_text` tells whether its positions are those of the client's text.
pub fn plain(message: &str, is_own_text: bool) -> String {
    // The library's name for the schema itself.
    let first = first_line(message).replace("json-schema://", "");
    let (position, rest) = position(&first);
    let rest = rest.strip_prefix("failed to compile JSON schema: ").unwrap_or(rest);
    let reason = of_limit(rest).or_else(|| of_regex(message)).or_else(|| of_phrase(rest));
    let reason = reason.unwrap_or_else(|| without_excerpt(rest).to_owned());
    let reason: String = reason.chars().take(MAX_REASON).collect();
    match position.filter(|_| is_own_text) {
        Some((line, column)) => format!("line {line}, column {column}: {reason}"),
        None => reason,
    }
}

/// Error of the regular expression `pattern`, if that is what `message` is about. It repeats the expression
/// between two lines.
pub fn is_about(message: &str, pattern: &str) -> bool {
    message.contains(&format!("\n    {pattern}\n")) || message.contains(&format!("in regex /{pattern}/"))
}

/// The first line. Behind it are excerpts, the library's own grammar and, after a panic, a backtrace.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().trim_end_matches(':').to_owned()
}

/// Splits `at 2(4): rest` or `2(4): rest` into line, column and rest.
fn position(text: &str) -> (Option<(u32, u32)>, &str) {
    let split = || {
        let (place, rest) = text.split_once("): ")?;
        let (line, column) = place.strip_prefix("at ").unwrap_or(place).split_once('(')?;
        Some(((line.parse().ok()?, column.parse().ok()?), rest))
    };
    split().map_or((None, text), |(place, rest)| (Some(place), rest))
}

/// Messages about limits. The library names its own settings, which a client cannot change.
fn of_limit(text: &str) -> Option<String> {
    let is = |part: &str| text.contains(part);
    let simpler = "use fewer alternatives and shorter counted repetitions";
    Some(match () {
        () if is("Current row has") => format!(
            "more than {MAX_ALTERNATIVES} alternatives are open at one place; use fewer alternatives or optional parts there"
        ),
        () if is("grammar size (number of symbols)") => {
            format!("it is too large: compiled it has over {MAX_GRAMMAR_SYMBOLS} symbols; {simpler}")
        }
        () if is("lexer precomputation failed")
            || is("initial lexer configuration")
            || is("fuel exhausted")
            || is("Unable to determine if regex is empty") =>
        {
            format!("it is too complex: compiling takes more than {COMPILE_FUEL} steps; {simpler}")
        }
        () if is("too many states") => {
            format!("the answer needs more than {MAX_LEXER_STATES} states of its expressions; {simpler}")
        }
        () if is("too many expressions constructed") || is("LexerTooComplex") => {
            format!("a token needs more than {MASK_FUEL} steps; {simpler}")
        }
        () if is("ParserTooComplex") || is("too many items") => {
            format!("a token needs more than {MASK_ITEMS} alternatives; {simpler}")
        }
        () => return None,
    })
}

/// Faults of a regular expression, with the position in it.
fn of_regex(message: &str) -> Option<String> {
    if message.contains("lookarounds not supported") {
        let reason = "`\\b`, `\\B` and anchors inside an expression are not supported; leave them out";
        return Some(reason.to_owned());
    }
    let fault = message.lines().find_map(|line| line.trim_start().strip_prefix("error: "))?;
    // A line with a caret below the expression, both indented by four characters.
    let is_caret = |line: &&str| line.contains('^') && line.chars().all(|c| " ^".contains(c));
    let column = message.lines().find(is_caret).and_then(|line| line.find('^')?.checked_sub(3));
    Some(column.map_or_else(|| fault.to_owned(), |column| format!("{fault}, at character {column}")))
}

/// Other messages with a library's words in them.
fn of_phrase(text: &str) -> Option<String> {
    if text.contains("Regex is empty") {
        let reason = "no text matches its pattern, format and lengths together; leave one of them out";
        return Some(reason.to_owned());
    }
    if text.starts_with("Failed to generate regex for") {
        let reason = "its minimum and maximum have too many digits; use smaller numbers";
        return Some(reason.to_owned());
    }
    if let Some(reason) = text.strip_prefix("Unsatisfiable schema: ") {
        return Some(format!("no answer can satisfy it: {reason}"));
    }
    if let Some(kind) = text.strip_prefix("Invalid type: ") {
        return Some(format!("`{kind}` is not a type of JSON"));
    }
    if let Some((before, _)) = text.split_once(" is not present in a registry and retrieving it failed") {
        let (_, document) = before.rsplit_once("Resource ")?;
        return Some(format!(
            "it refers to {document}, and no other document is fetched; put what is referred to under \
             `$defs`, and leave out the `id` of parts"
        ));
    }
    if text == "lexer error" {
        return Some("a literal is not closed, or a character has no meaning there".to_owned());
    }
    if text == "no start rule found" {
        return Some("it has no rule `start`".to_owned());
    }
    // The rest of these messages lists everything that exists.
    if let Some((before, _)) = text.split_once("; following ") {
        let before = before.replace("Unknown common regex: ", "there is no import ");
        return Some(before.replace("unknown special token: ", "the model has no control token "));
    }
    let expected = text.strip_prefix("Expected ")?;
    let expected = without_excerpt(expected).replace(r"found '\n'", "found the end of the line");
    let expected = expected.replace("f64 for", "a number for").replace("positive integer", "a whole number");
    Some(format!("expected {}", expected.strip_prefix("token ").unwrap_or(&expected)))
}

/// `text` without the excerpt of the grammar that some messages end with.
fn without_excerpt(text: &str) -> &str {
    text.split_once(" (at \"").map_or(text, |(before, _)| before)
}

#[cfg(test)]
mod tests {
    use crate::library::Library;
    use crate::{Refused, Source, token_bytes::TokenBytes};
    use serde_json::{Value, json};

    fn check(source: Result<Source, Refused>, expected: &str) {
        let library = Library::new(&TokenBytes::of_bytes(), 256).unwrap();
        let refused = source.and_then(|source| library.compile(&source).map(drop)).unwrap_err().to_string();
        assert_eq!(refused, expected);
        for word in ["lexer", "fuel", "f64", "lookaround", "(in regex)", "regex parse error"] {
            assert!(!refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn faults_of_an_expression_are_told_in_plain_words_with_their_place() {
        let check = |pattern: &str, reason: &str| {
            let expected = format!("the regular expression is not usable: {reason}");
            check(Source::regex(pattern), &expected);
        };
        check("ab(c", "unclosed group, at character 3");
        check("a{2", "unclosed counted repetition, at character 2");
        check("[z-a]", "invalid character class range, the start must be <= the end, at character 2");
        check(
            "(?=a)b",
            "look-around, including look-ahead and look-behind, is not supported, at character 1",
        );
        check(r"(a)\1", "backreferences are not supported, at character 4");
        check(r"\bfoo", r"`\b`, `\B` and anchors inside an expression are not supported; leave them out");
    }

    #[test]
    fn faults_of_a_grammar_name_line_and_column_of_the_text() {
        let check = |text: &str, reason: &str| {
            check(Source::grammar(text), &format!("the grammar is not usable: {reason}"))
        };
        check("start: foo", "line 1, column 8: unknown name: \"foo\"");
        check("start: \"a\"\nx: (\"b\"", "line 2, column 8: expected ')', found the end of the line");
        check(
            "start: \"a",
            "line 1, column 10: a literal is not closed, or a character has no meaning there",
        );
        check("foo: \"a\"", "it has no rule `start`");
        check("start: /a(/", "line 1, column 8: unclosed group, at character 2");
        check("%import foo.BAR\nstart: BAR", "line 1, column 1: there is no import foo.BAR");
    }

    #[test]
    fn faults_of_a_schema_are_told_without_the_librarys_words() {
        let check = |schema: Value, expected: &str| check(Source::json_schema(&schema), expected);
        let unusable = |reason: &str| format!("the JSON schema is not usable: {reason}");
        check(json!({"type": "foo"}), &unusable("`foo` is not a type of JSON"));
        check(json!({"minimum": "a"}), &unusable("expected a number for 'minimum', got \"a\""));
        check(
            json!({"type": "integer", "minimum": 5, "maximum": 2}),
            &unusable("no answer can satisfy it: minimum (5) is greater than maximum (2)"),
        );
        check(
            json!({"type": "string", "pattern": "a", "format": "date"}),
            &unusable("no text matches its pattern, format and lengths together; leave one of them out"),
        );
        check(
            json!({"properties": {"x": {"pattern": "ok"}, "a/b": {"pattern": "(c"}}}),
            "the schema has `pattern` at \"/properties/a~1b\": unclosed group, at character 1",
        );
    }

    #[test]
    fn a_reference_to_another_document_is_told_in_plain_words() {
        let message = "Resource 'json-schema:///schema/lemon' is not present in a registry and retrieving it \
                       failed: Default retriever does not fetch resources";
        assert_eq!(
            super::plain(message, false),
            "it refers to '/schema/lemon', and no other document is fetched; put what is referred to under \
             `$defs`, and leave out the `id` of parts"
        );
    }
}
