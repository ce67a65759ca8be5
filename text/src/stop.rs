//! Finds stop strings in a stream of text, however it is split: Knuth–Morris–Pratt, with one state per stop
//! string.
//!
//! Text that may be the start of a stop string is held back until that is certain. The stop string that ends
//! first wins; among those that end together, the first of the request, as in vLLM. The result therefore
//! depends only on the text, not on how it was split.

/// Stop-string state of one sample.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    include_stop: bool,
    held: String,
}

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// `borders[k]`: length of the longest proper prefix of the pattern's first `k` bytes that is also their
    /// suffix.
    borders: Vec<usize>,
    /// Length of the longest prefix of the pattern that the text so far ends with.
    matched: usize,
}

impl StopMatcher {
    /// Matcher for the `stop` strings, which must not be empty. With `include_stop`, the match stays in the
    /// text.
    pub fn new(stop: &[String], include_stop: bool) -> Self {
        let patterns = stop.iter().map(|text| Pattern::new(text)).collect();
        Self { patterns, include_stop, held: String::new() }
    }

    /// Whether there are no stop strings, so that no text is held back.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Processes `text`: appends what is certain to `out`, and returns the stop string that ends the sample,
    /// if any. A stop string that ends in this piece counts only if `armed`, that is, after `min_tokens`.
    pub fn push(&mut self, text: &str, armed: bool, out: &mut String) -> Option<String> {
        if self.patterns.is_empty() {
            out.push_str(text);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let ending = self.patterns.iter_mut().filter_map(|pattern| pattern.step(byte));
            // Every pattern takes the byte.
            let first = ending.fold(None, |first: Option<String>, stop| first.or(Some(stop)));
            if let (Some(stop), true) = (first, armed) {
                let end = before + at + 1;
                self.held.truncate(if self.include_stop { end } else { end - stop.len() });
                out.push_str(&std::mem::take(&mut self.held));
                return Some(stop);
            }
        }
        let keep = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let certain = self.held.len() - keep;
        out.extend(self.held.drain(..certain));
        None
    }

    /// Appends the text still held back, after a sample ended without a stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.held));
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = borders[border];
            }
            border += usize::from(bytes[at] == bytes[border]);
            borders[at + 1] = border;
        }
        Self { text: text.to_owned(), borders, matched: 0 }
    }

    /// Processes one byte; returns the pattern's text if it ends here.
    fn step(&mut self, byte: u8) -> Option<String> {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(bytes.get(self.matched) == Some(&byte));
        if self.matched == bytes.len() {
            self.matched = self.borders[self.matched];
            return Some(self.text.clone());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stop: &[&str], include: bool, pieces: &[&str]) -> (String, Option<String>) {
        let stop: Vec<String> = stop.iter().map(|text| (*text).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stop, include);
        let mut out = String::new();
        for piece in pieces {
            if let Some(found) = matcher.push(piece, true, &mut out) {
                return (out, Some(found));
            }
        }
        matcher.finish(&mut out);
        (out, None)
    }

    fn check(stop: &[&str], pieces: &[&str], expected: &str, found: Option<&str>) {
        assert_eq!(
            run(stop, false, pieces),
            (expected.to_owned(), found.map(str::to_owned)),
            "{stop:?} {pieces:?}"
        );
    }

    #[test]
    fn stop_strings_cut_the_text() {
        check(&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", Some("\n\n"));
        check(&["END"], &["xE", "N", "E", "ND y"], "xEN", Some("END"));
        check(&["END"], &["xEN"], "xEN", None);
        check(&["aab"], &["aaa", "ab"], "aa", Some("aab"));
        check(&["b", "aab"], &["aab"], "aa", Some("b"));
        check(&["aab", "b"], &["aab"], "", Some("aab"));
        // As `check_stop_strings` of vLLM 0.33.
        check(&["Y", "XY"], &["ab", "XY", "cd"], "abX", Some("Y"));
        check(&["abcd", "bc"], &["abcd"], "a", Some("bc"));
        check(&["é"], &["caf", "é!"], "caf", Some("é"));
        check(&[], &["any", "thing"], "anything", None);
        assert_eq!(run(&["END"], true, &["xE", "NDy"]), ("xEND".to_owned(), Some("END".to_owned())));
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_stop_string() {
        let mut matcher = StopMatcher::new(&["END".to_owned()], false);
        let mut out = String::new();
        assert_eq!(matcher.push("xEN", true, &mut out), None);
        assert_eq!(out, "x");
        assert_eq!(matcher.push("O", true, &mut out), None);
        assert_eq!(out, "xENO");
    }

    #[test]
    fn a_stop_string_before_min_tokens_does_not_count() {
        let mut matcher = StopMatcher::new(&["ab".to_owned()], false);
        let mut out = String::new();
        assert_eq!(matcher.push("ab", false, &mut out), None);
        assert_eq!(matcher.push("xa", true, &mut out), None);
        assert_eq!(matcher.push("b", true, &mut out), Some("ab".to_owned()));
        assert_eq!(out, "abx");
    }

    /// The specification: the stop string with the earliest end, then the first.
    fn naive(stop: &[String], text: &str) -> (String, Option<String>) {
        for end in 1..=text.len() {
            let mut ending = stop.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some(found) = ending.next() {
                return (text[..end - found.len()].to_owned(), Some(found.clone()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_result(
            stop in prop::collection::vec("[abé]{1,4}", 1..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let refs: Vec<&str> = stop.iter().map(String::as_str).collect();
            let cut: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let whole = pieces.concat();
            prop_assert_eq!(run(&refs, false, &cut), naive(&stop, &whole));
            let letters: Vec<String> = whole.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&refs, true, &cut), run(&refs, true, &letters));
        }
    }
}
