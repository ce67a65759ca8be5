//! Splits a template's source into text and tags, and tags into tokens, by Jinja2's rules. It never fails:
//! what it cannot read stays as it is, and the compiler reports it.

/// A part of the source.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Text, comments, raw blocks, and what cannot be read.
    Text(&'a str),
    /// `{{ … }}` or `{% … %}`.
    Tag(Tag<'a>),
}

/// A tag with its tokens.
#[derive(Debug)]
pub struct Tag<'a> {
    /// `{{` or `{%`, with the sign after it.
    pub open: &'a str,
    /// Tokens between the ends.
    pub tokens: Vec<Token<'a>>,
    /// Blanks and the closing end, with the sign before it.
    pub close: &'a str,
}

impl Tag<'_> {
    /// Whether it is `{% … %}`.
    pub fn is_block(&self) -> bool {
        self.open.starts_with("{%")
    }

    /// The first word of a block.
    pub fn word(&self) -> Option<&str> {
        self.tokens.first().filter(|_| self.is_block()).map(|token| token.text)
    }
}

/// A token of an expression.
#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    /// White space before it.
    pub blank: &'a str,
    /// The token as written.
    pub text: &'a str,
    /// Its kind.
    pub kind: Kind,
}

impl<'a> Token<'a> {
    /// Content of a string without escapes.
    pub fn literal(&self) -> Option<&'a str> {
        let inside = self.text.get(1..self.text.len() - 1).filter(|_| self.kind == Kind::String)?;
        (!inside.contains('\\')).then_some(inside)
    }
}

/// Kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name or keyword.
    Name,
    /// A number.
    Number,
    /// A string in quotes.
    String,
    /// An operator, bracket or comma.
    Operator,
}

/// The parts of `source`; put together, they are the source.
pub fn pieces(source: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), source);
    while let Some(at) = tag_start(rest) {
        if at > 0 {
            pieces.push(Piece::Text(&rest[..at]));
        }
        rest = &rest[at..];
        let (piece, length) = piece(rest);
        pieces.push(piece);
        rest = &rest[length..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

fn tag_start(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(at, _)| at)
        .find(|at| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// The tag or comment that `text` starts with, and its length.
fn piece(text: &str) -> (Piece<'_>, usize) {
    let all = |length: usize| (Piece::Text(&text[..length]), length);
    if text.starts_with("{#") {
        return all(text.find("#}").map_or(text.len(), |at| at + 2));
    }
    let Some((tag, length)) = tag(text) else { return all(text.len()) };
    if tag.word() == Some("raw") {
        return all(length + end_of_raw(&text[length..]));
    }
    (Piece::Tag(tag), length)
}

/// Bytes up to and with `{% endraw %}`.
fn end_of_raw(text: &str) -> usize {
    let end = text.match_indices("{%").find_map(|(at, _)| {
        let inside = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        inside.starts_with("endraw").then(|| text[at..].find("%}").map(|close| at + close + 2))
    });
    end.flatten().unwrap_or(text.len())
}

fn tag(text: &str) -> Option<(Tag<'_>, usize)> {
    let end = if text.starts_with("{%") { "%}" } else { "}}" };
    let sign = usize::from(text[2..].starts_with(['-', '+']));
    let (open, mut rest) = text.split_at(2 + sign);
    let (mut tokens, mut depth) = (Vec::new(), 0_usize);
    loop {
        let blank = rest.len() - rest.trim_start().len();
        let after = &rest[blank..];
        let signed = after.strip_prefix(['-', '+']).is_some_and(|closed| closed.starts_with(end));
        if depth == 0 && (signed || after.starts_with(end)) {
            let close = &rest[..blank + usize::from(signed) + 2];
            let length = text.len() - rest.len() + close.len();
            return Some((Tag { open, tokens, close }, length));
        }
        let (kind, length) = token(after)?;
        let token = Token { blank: &rest[..blank], text: &after[..length], kind };
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        tokens.push(token);
        rest = &after[length..];
    }
}

/// Kind and length of the token that `text` starts with; `None` at the end of the source.
fn token(text: &str) -> Option<(Kind, usize)> {
    let first = text.chars().next()?;
    let span = |accept: &dyn Fn(char) -> bool| text.find(|c| !accept(c)).unwrap_or(text.len());
    let word = |c: char| c == '_' || c.is_alphanumeric();
    Some(match first {
        '"' | '\'' => (Kind::String, string_length(text, first)?),
        '0'..='9' => (Kind::Number, number_length(text)),
        _ if word(first) => (Kind::Name, span(&word)),
        _ if ["==", "!=", "<=", ">=", "//", "**"].iter().any(|two| text.starts_with(two)) => {
            (Kind::Operator, 2)
        }
        _ => (Kind::Operator, first.len_utf8()),
    })
}

fn string_length(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, hexadecimal) = (0, text.starts_with("0x") || text.starts_with("0X"));
    while let Some(&byte) = bytes.get(at) {
        let next_is_digit = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        let exponent = at > 0 && !hexadecimal && matches!(bytes[at - 1], b'e' | b'E');
        let inside = byte == b'_'
            || byte.is_ascii_alphanumeric()
            || (byte == b'.' && next_is_digit)
            || (matches!(byte, b'+' | b'-') && exponent && next_is_digit);
        if !inside {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[&str]) {
        let (mut words, mut whole) = (Vec::new(), String::new());
        for piece in pieces(source) {
            match piece {
                Piece::Text(text) => whole.push_str(text),
                Piece::Tag(tag) => {
                    whole.push_str(tag.open);
                    for token in tag.tokens {
                        whole.extend([token.blank, token.text]);
                        words.push(token.text.to_owned());
                    }
                    whole.push_str(tag.close);
                }
            }
        }
        assert_eq!(whole, source);
        assert_eq!(words, expected, "{source}");
    }

    #[test]
    fn pieces_are_the_source_and_only_tags_have_tokens() {
        check("a {{- b['}}'] -}} c {# {{ d }} #}", &["b", "[", "'}}'", "]"]);
        check("{{ {'a': {'b': 1.5e-3}} }}", &["{", "'a'", ":", "{", "'b'", ":", "1.5e-3", "}", "}"]);
        check("{% raw %}{{ x }}{%- endraw +%}{%if x%}", &["if", "x"]);
        check("{{ a.0.b ~ 'it\\'s' // 2 }}", &["a", ".", "0", ".", "b", "~", "'it\\'s'", "//", "2"]);
        check("{{ 0x1F - 1 }}{{ 'open", &["0x1F", "-", "1"]);
        check("{ {% é == ü %} {{", &["é", "==", "ü"]);
    }
}
