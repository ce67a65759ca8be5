//! White space, ends of lines and case as Python's strings know them.

/// `str.isspace` of one character: Unicode's white space and four control characters.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.splitlines`.
pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends_line) {
        let first = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { first };
        lines.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `str.split()` and `str.rsplit()` without a separator, with at most `most` splits; what is left keeps its
/// outer blanks.
pub fn words(text: &str, most: Option<usize>, from_right: bool) -> Vec<&str> {
    let trimmed =
        if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    let (mut words, mut rest) = (Vec::new(), trimmed);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| most.is_none_or(|most| words.len() < most)) else {
            words.push(rest);
            break;
        };
        if from_right {
            words.push(rest[at..].trim_start_matches(is_space));
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            words.push(&rest[..at]);
            rest = rest[at..].trim_start_matches(is_space);
        }
    }
    if from_right {
        words.reverse();
    }
    words
}

/// `str.islower` or `str.isupper`: no cased character is of another case, and one is of this.
pub fn is_cased(text: &str, wanted: fn(char) -> bool) -> bool {
    let cased = |c: &char| c.is_lowercase() || c.is_uppercase();
    text.chars().any(wanted) && text.chars().filter(cased).all(wanted)
}
