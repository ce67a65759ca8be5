//! Finds earlier positions of a text whose preceding tokens match the text's last tokens. Uses hash chains,
//! as LZ77 does: the hash of three tokens leads to the latest place with that hash, and each place to the
//! previous one.

use crate::TokenId;

/// Least number of tokens that must match.
pub(super) const SHORTEST_MATCH: usize = 3;
/// Tokens compared at most; longer matches count as this long.
pub(super) const LONGEST_MATCH: usize = 32;
/// Most places of a chain to compare, latest first.
const MOST_PLACES: usize = 16;
/// Tokens indexed in one call, so that no step waits for a long prompt.
const INDEXED_AT_ONCE: usize = 1024;
/// Smallest size of the hash table.
const FEWEST_CHAINS: usize = 64;

/// Index of one growing text. Takes 8 to 16 bytes per token.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Latest place for each hash, counted from 1; 0 = none. The length is a power of two.
    latest: Vec<u32>,
    /// Previous place with the same hash for each indexed place, counted likewise.
    before: Vec<u32>,
}

/// A place whose preceding tokens match the end of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Position of the token after the match.
    pub next: usize,
    /// Number of matching tokens, at most [`LONGEST_MATCH`].
    pub matched: usize,
}

impl Index {
    /// Indexes `tokens`, except the last one. Earlier calls must have been given a prefix of `tokens`.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        // The last token has no successor yet.
        let end = tokens.len().saturating_sub(1).min(self.before.len() + INDEXED_AT_ONCE);
        if end > self.latest.len() {
            self.grow(tokens, end);
        }
        for place in self.before.len()..end {
            self.push(tokens, place);
        }
    }

    /// Makes room for `places` and rehashes the known ones.
    fn grow(&mut self, tokens: &[TokenId], places: usize) {
        let known = self.before.len();
        self.latest = vec![0; places.next_power_of_two().max(FEWEST_CHAINS)];
        self.before.clear();
        (0..known).for_each(|place| self.push(tokens, place));
    }

    fn push(&mut self, tokens: &[TokenId], place: usize) {
        let before = match self.chain(&tokens[..=place]) {
            Some(chain) => std::mem::replace(&mut self.latest[chain], place as u32 + 1),
            None => 0,
        };
        self.before.push(before);
    }

    /// Chain of the places with the hash of `text`'s last tokens; `None` if the text is too short.
    fn chain(&self, text: &[TokenId]) -> Option<usize> {
        let gram = text.last_chunk::<SHORTEST_MATCH>()?;
        Some(hash(gram, 0) as usize & (self.latest.len() - 1))
    }

    /// Place with the longest match to the end of `tokens`; the latest of several.
    pub fn longest(&self, tokens: &[TokenId]) -> Option<Place> {
        if self.latest.is_empty() {
            return None;
        }
        let mut place = self.latest[self.chain(tokens)?];
        let mut best: Option<Place> = None;
        for _ in 0..MOST_PLACES {
            let Some(at) = (place as usize).checked_sub(1) else { break };
            let matched = common_end(&tokens[..=at], tokens);
            if matched >= SHORTEST_MATCH && best.is_none_or(|best| matched > best.matched) {
                best = Some(Place { next: at + 1, matched });
                if matched == LONGEST_MATCH {
                    break;
                }
            }
            place = self.before[at];
        }
        best
    }

    /// Size in memory, in bytes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        (self.latest.capacity() + self.before.capacity()) * size_of::<u32>()
    }
}

/// Length of the common suffix of two texts, at most [`LONGEST_MATCH`].
fn common_end(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(LONGEST_MATCH).take_while(|(a, b)| a == b).count()
}

/// Hash of three tokens with a `seed`.
pub(super) fn hash(gram: &[TokenId; SHORTEST_MATCH], seed: u64) -> u64 {
    let mix =
        |hash: u64, token: &TokenId| (hash.rotate_left(25) ^ u64::from(*token)).wrapping_mul(MULTIPLIER);
    let hash = gram.iter().fold(seed ^ MULTIPLIER, mix);
    hash ^ (hash >> 32)
}

/// 2^64 divided by the golden ratio: odd, with well-distributed bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(tokens: &[TokenId]) -> Index {
        let mut index = Index::default();
        // One more token at a time, as a stream grows.
        (1..=tokens.len()).for_each(|len| index.extend(&tokens[..len]));
        index
    }

    fn check(tokens: &[TokenId], expected: Option<(usize, usize)>) {
        let found = indexed(tokens).longest(tokens).map(|place| (place.next, place.matched));
        assert_eq!(found, expected, "{tokens:?}");
    }

    #[test]
    fn the_longest_match_wins_and_the_latest_of_several() {
        check(&[], None);
        check(&[1, 2, 3], None);
        check(&[1, 2, 3, 1, 2], None);
        check(&[1, 2, 3, 9, 1, 2, 3], Some((3, 3)));
        check(&[1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], Some((7, 3)));
        check(&[7, 1, 2, 3, 8, 1, 2, 3, 9, 7, 1, 2, 3], Some((4, 4)));
        check(&[5, 5, 5, 5, 5], Some((4, 4)));
    }

    /// The reference: compares every place.
    fn naive(tokens: &[TokenId]) -> Option<usize> {
        let places = 1..tokens.len();
        let matched = places.map(|next| common_end(&tokens[..next], tokens)).max();
        matched.filter(|matched| *matched >= SHORTEST_MATCH)
    }

    #[test]
    fn it_finds_what_a_search_of_every_place_finds() {
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = hash(&[state as u32, 1, 2], state);
            (state >> 20) % below
        };
        for round in 0..300 {
            // With few distinct tokens, chains are longer than `MOST_PLACES`.
            let vocabulary = [6, 20, 1000][round % 3];
            let tokens: Vec<TokenId> = (0..draw(200)).map(|_| draw(vocabulary) as TokenId).collect();
            let found = indexed(&tokens).longest(&tokens).map(|place| place.matched);
            let best = naive(&tokens);
            assert_eq!(found.is_some(), best.is_some(), "{tokens:?}");
            assert!(found <= best);
            if vocabulary > 6 {
                assert_eq!(found, best, "{tokens:?}");
            }
        }
    }

    #[test]
    fn a_long_prompt_is_taken_in_over_several_calls_and_takes_16_bytes_a_token_at_most() {
        let prompt: Vec<TokenId> = (0..9000).map(|at| at * 7 % 30_000).collect();
        let mut index = Index::default();
        for call in 1..=8 {
            index.extend(&prompt);
            assert_eq!(index.before.len(), call * INDEXED_AT_ONCE);
        }
        index.extend(&prompt);
        assert_eq!(index.before.len(), prompt.len() - 1);
        assert!(index.bytes() <= 16 * prompt.len(), "{} bytes", index.bytes());
    }
}
