//! Derives the merges of a SentencePiece BPE model, which stores scores instead. A token can be merged from
//! any two tokens that spell it, and higher scores are merged first. Equal scores keep the order of
//! `tokenizers`' conversion script, so that both produce the same ids.

use std::cmp::Ordering;
use std::collections::HashMap;

/// Most merges of a tokenizer; public models have up to 600,000. In a hostile vocabulary, every split of
/// every token is a merge.
pub const MAX_MERGES: usize = 1 << 21;
/// Longest token that is split, in bytes. It bounds the work: each split takes a lookup.
const MAX_MERGED_BYTES: usize = 512;

/// Two tokens that spell a third.
#[derive(Debug, Clone, Copy)]
pub struct Merge<'a> {
    /// The first.
    pub left: &'a str,
    /// The second.
    pub right: &'a str,
    /// Place of the third in the list.
    pub whole: usize,
}

/// Every merge of two of `tokens` to one of them: by the whole, then by the place of the left and of the
/// right. `None` if there are more than [`MAX_MERGES`].
pub fn all_merges<'a>(tokens: &[&'a str]) -> Option<Vec<Merge<'a>>> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut all = Vec::new();
    for (whole, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() <= MAX_MERGED_BYTES) {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut of_token: Vec<_> = cuts
            .filter_map(|(left, right)| Some(((*ids.get(left)?, *ids.get(right)?), left, right)))
            .collect();
        of_token.sort_unstable_by_key(|(ids, ..)| *ids);
        all.extend(of_token.into_iter().map(|(_, left, right)| Merge { left, right, whole }));
        if all.len() > MAX_MERGES {
            return None;
        }
    }
    Some(all)
}

/// Merges in the order in which they apply; `None` if there are more than [`MAX_MERGES`].
pub fn merges<'a>(tokens: &[&'a str], scores: &[f64]) -> Option<Vec<(&'a str, &'a str)>> {
    let mut all = all_merges(tokens)?;
    all.sort_by(|a, b| order((a, scores[a.whole]), (b, scores[b.whole])));
    Some(all.into_iter().map(|Merge { left, right, .. }| (left, right)).collect())
}

/// Higher scores first, then longer parts; equal ones keep their order.
fn order((a, a_score): (&Merge<'_>, f64), (b, b_score): (&Merge<'_>, f64)) -> Ordering {
    let chars = |merge: &Merge<'_>| (merge.left.chars().count(), merge.right.chars().count());
    b_score.total_cmp(&a_score).then_with(|| chars(b).cmp(&chars(a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_are_merged_first() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc"];
        let scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0];
        let found = merges(&tokens, &scores).unwrap();
        assert_eq!(found, [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]);
    }

    #[test]
    fn a_vocabulary_of_which_every_cut_is_a_merge_is_refused() {
        let tokens: Vec<String> =
            (0..220).flat_map(|a| (0..220).map(move |b| "a".repeat(a) + &"b".repeat(b))).skip(1).collect();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        assert!(merges(&tokens, &vec![0.0; tokens.len()]).is_none());
    }
}
