//! Regular expressions of JSON Schema, which are ECMA-262's, in the library's dialect.
//!
//! In a class, `[`, `&&`, `~~` and `--` mean nothing more than themselves. Three of ECMA's classes differ:
//! `.` matches no `\r`, U+2028 and U+2029; `\s` no U+0085; `\S` no U+FEFF. The classes here are narrower
//! where Python's `re` differs from ECMA too, so that validators of both accept the answer. `\d` and `\w` are
//! ASCII in ECMA, for which the library has an option.

use std::borrow::Cow;

/// `.` without the `s` flag.
const DOT: &str = r"[^\n\r\u{2028}\u{2029}]";
/// Inside a class: white space in ECMA and in Python.
const SPACE: &str = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";
/// Inside a class: white space in one of them.
const ANY_SPACE: &str =
    r"\t-\r\x1c-\x20\u{85}\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";

/// `pattern` with ECMA's classes written out.
pub fn pattern(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains(['.', '\\', '[']) {
        return Cow::Borrowed(pattern);
    }
    // A dialect beyond ECMA's: `.` may match line breaks.
    let has_flags = pattern.contains("(?s") || pattern.contains("(?is");
    let (mut out, mut in_class) = (String::with_capacity(pattern.len()), false);
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => escape(&mut out, rest.next(), in_class),
            '.' if !in_class && !has_flags => out += DOT,
            // The library's classes nest, intersect and subtract.
            '[' | '&' | '~' if in_class => out.extend(['\\', next]),
            '-' if in_class && out.ends_with('-') => out += "\\-",
            _ => out.push(next),
        }
        in_class = match next {
            '[' => true,
            ']' => false,
            _ => in_class,
        };
    }
    Cow::Owned(out)
}

fn escape(out: &mut String, escaped: Option<char>, in_class: bool) {
    match (escaped, in_class) {
        (Some('s'), true) => *out += SPACE,
        (Some('s'), false) => *out += &format!("[{SPACE}]"),
        // The library intersects and subtracts classes, as `[a[^b]]`.
        (Some('S'), _) => *out += &format!("[^{ANY_SPACE}]"),
        (escaped, _) => {
            out.push('\\');
            out.extend(escaped);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::library::Library;
    use crate::{Source, token_bytes::TokenBytes};
    use serde_json::json;

    fn accepts(pattern: &str, text: &str) -> bool {
        let library = Library::new(&TokenBytes::of_bytes(), 256).unwrap();
        let source = Source::json_schema(&json!({"type": "string", "pattern": pattern})).unwrap();
        let mut matcher = library.compile(&source).unwrap().matcher();
        let quoted = json!(text).to_string();
        quoted.bytes().all(|byte| matcher.advance(u32::from(byte)).is_ok())
            && matcher.next_tokens().is_ok_and(|next| next.may_end)
    }

    /// Expected values are those of Node 20 with the flag `u`.
    #[test]
    fn patterns_match_what_ecma_262_says() {
        for (pattern, good, bad) in [
            ("a", vec!["bab", "a"], vec!["b"]),
            (r"^\d$", vec!["3"], vec!["\u{663}"]),
            (r"\D", vec!["\u{663}", "x"], vec!["3"]),
            ("^.$", vec!["x", "\u{1f600}"], vec!["\n", "\r", "\u{2028}", "\u{2029}"]),
            ("^[.]$", vec!["."], vec!["x"]),
            (r"^\.$", vec!["."], vec!["x"]),
            (r"^\w+$", vec!["e_1"], vec!["é"]),
            (r"^\W$", vec!["é"], vec!["e"]),
            ("^a$", vec!["a"], vec!["a\n", "A"]),
            (r"^\s$", vec!["\u{a0}", " ", "\t", "\u{2028}"], vec!["\u{85}", "x"]),
            (r"^[\sx]$", vec!["\u{a0}", "x"], vec!["\u{85}", "y"]),
            (r"^\S$", vec!["x", "é"], vec!["\u{a0}", "\u{feff}", " "]),
            (r"^[\Sx]$", vec!["x", "é"], vec!["\u{a0}", "\u{feff}", " "]),
            ("^[^a]$", vec!["\n", "b"], vec!["a"]),
            ("^a|b$", vec!["ax", "xb"], vec!["x"]),
            (r"^\/\x41\u0041$", vec!["/AA"], vec!["AA"]),
            (r"^\p{L}$", vec!["é"], vec!["1"]),
            // As without the flag `u`, which refuses them.
            ("^[[:alpha:]]$", vec!["a]", "[]", ":]"], vec!["a", "y"]),
            (r"^[\w&&[^\d]]$", vec!["1]", "&]", "[]"], vec!["y", "&"]),
            ("^[a&&b]$", vec!["a", "&", "b"], vec!["c"]),
            // Not ECMA's, but Python's.
            ("(?i)^a$", vec!["a", "A"], vec!["b"]),
            ("^(?s:.)$", vec!["\n"], vec![]),
        ] {
            good.iter().for_each(|text| assert!(accepts(pattern, text), "{pattern}: {text:?}"));
            bad.iter().for_each(|text| assert!(!accepts(pattern, text), "{pattern}: {text:?}"));
        }
    }

    #[test]
    fn what_has_no_regular_language_is_refused() {
        let library = Library::new(&TokenBytes::of_bytes(), 256).unwrap();
        for pattern in [r"\bx", "^(?=a)a", r"^\cA$", r"(a)\1"] {
            let source = Source::json_schema(&json!({"type": "string", "pattern": pattern})).unwrap();
            let message = library.compile(&source).unwrap_err().to_string();
            assert!(message.starts_with("the schema has `pattern` at \"\": "), "{pattern}: {message}");
        }
    }
}
