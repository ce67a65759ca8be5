//! Texts of finished requests, as drafts for similar requests: a repeated question, the next file of a
//! series, the next call of an agent. A ring of tokens with hash chains as in `index`; the oldest text is
//! overwritten first.
//!
//! Like blocks of the prefix cache, a text is used only for requests of its own cache scope. Otherwise
//! response times would reveal the answers of other tenants.

use std::collections::VecDeque;

use super::index::{LONGEST_MATCH, SHORTEST_MATCH, hash};
use crate::TokenId;
use crate::kv_cache::CacheScope;

/// Most tokens kept. With the chains, they take 12 bytes each: 12 MiB.
const MOST_TOKENS: usize = 1 << 20;
/// Most tokens kept of one text: its last ones.
const LONGEST_TEXT: usize = 8192;
/// Most places of a chain to compare, latest first.
const MOST_PLACES: usize = 16;
/// End marker of a text; no vocabulary has this token.
const END: TokenId = TokenId::MAX;

/// Finished texts. Memory grows with them, up to the limit.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Most tokens; a power of two.
    most: usize,
    /// Tokens of all texts, each text followed by [`END`]; place `p` is at index `p % most`.
    tokens: Vec<TokenId>,
    /// Distance from each place to the previous one with the same hash; 0 = none.
    back: Vec<u32>,
    /// Latest place for each hash, counted from 1; 0 = none.
    latest: Vec<u64>,
    /// Number of places so far, including overwritten ones.
    end: u64,
    /// Start and scope of each text, oldest first.
    texts: VecDeque<(u64, CacheScope)>,
}

impl Default for History {
    fn default() -> Self {
        Self::of_at_most(MOST_TOKENS)
    }
}

impl History {
    fn of_at_most(most: usize) -> Self {
        let (tokens, back, latest) = (Vec::new(), Vec::new(), Vec::new());
        Self { most, tokens, back, latest, end: 0, texts: VecDeque::new() }
    }

    /// Stores the end of a finished text.
    pub fn add(&mut self, scope: &CacheScope, text: &[TokenId]) {
        let text = &text[text.len().saturating_sub(LONGEST_TEXT.min(self.most / 2))..];
        // A shorter text has no token after a match.
        if text.len() <= SHORTEST_MATCH {
            return;
        }
        if self.latest.is_empty() {
            self.latest = vec![0; self.most / 2];
        }
        self.texts.push_back((self.end, scope.clone()));
        for (at, token) in text.iter().enumerate() {
            let gram = text[..=at].last_chunk();
            self.push(*token, gram.map(|gram| self.chain(gram, scope)));
        }
        self.push(END, None);
        // Drops the texts whose start was overwritten.
        let oldest = self.oldest();
        while self.texts.front().is_some_and(|(start, _)| *start < oldest) {
            self.texts.pop_front();
        }
    }

    fn push(&mut self, token: TokenId, chain: Option<usize>) {
        self.end += 1;
        let back = chain.map_or(0, |chain| {
            let before = std::mem::replace(&mut self.latest[chain], self.end);
            if before == 0 { 0 } else { u32::try_from(self.end - before).unwrap_or(0) }
        });
        if self.tokens.len() < self.most {
            self.tokens.push(token);
            self.back.push(back);
        } else {
            let at = self.at(self.end - 1);
            (self.tokens[at], self.back[at]) = (token, back);
        }
    }

    fn chain(&self, gram: &[TokenId; SHORTEST_MATCH], scope: &CacheScope) -> usize {
        hash(gram, scope.root) as usize & (self.latest.len() - 1)
    }

    fn at(&self, place: u64) -> usize {
        place as usize & (self.most - 1)
    }

    /// Oldest place that is not overwritten.
    fn oldest(&self) -> u64 {
        self.end.saturating_sub(self.most as u64)
    }

    fn token(&self, place: u64) -> TokenId {
        self.tokens[self.at(place)]
    }

    /// Appends at most `most` tokens that followed the end of `tokens` in texts of `scope`, each with the
    /// fraction of the longest matches that agree on it. Returns the length of the match; 0 = no match.
    pub fn propose(
        &self,
        scope: &CacheScope,
        tokens: &[TokenId],
        most: usize,
        draft: &mut Vec<(TokenId, f32)>,
    ) -> usize {
        let (mut places, matched) = self.longest(scope, tokens);
        for at in 0..most as u64 {
            let next = |place: &u64| if place + at < self.end { self.token(place + at) } else { END };
            // The latest place is first, so it wins a tie.
            let votes = |token: TokenId| places.iter().filter(|place| next(place) == token).count();
            let mut token = END;
            for place in &places {
                if token == END || votes(next(place)) > votes(token) {
                    token = next(place);
                }
            }
            if token == END {
                break;
            }
            let (all, agreeing) = (places.len(), votes(token));
            places.retain(|place| next(place) == token);
            draft.push((token, agreeing as f32 / all as f32));
        }
        matched
    }

    /// Places after the longest matches to the end of `tokens`, latest first, and the length of the matches.
    fn longest(&self, scope: &CacheScope, tokens: &[TokenId]) -> (Vec<u64>, usize) {
        let mut longest = (Vec::new(), 0);
        let Some(gram) = tokens.last_chunk() else { return longest };
        if self.latest.is_empty() {
            return longest;
        }
        let mut place = self.latest[self.chain(gram, scope)];
        for _ in 0..MOST_PLACES {
            let Some(at) = place.checked_sub(1).filter(|at| *at >= self.oldest()) else { break };
            let matched = self.common_end(at, tokens);
            if matched >= SHORTEST_MATCH.max(longest.1) && self.is_of(at, scope) {
                if matched > longest.1 {
                    longest = (Vec::new(), matched);
                }
                longest.0.push(place);
            }
            let back = self.back[self.at(at)];
            if back == 0 {
                break;
            }
            place = place.saturating_sub(back.into());
        }
        longest
    }

    /// Number of tokens before `place` that match the end of `tokens`.
    fn common_end(&self, place: u64, tokens: &[TokenId]) -> usize {
        let oldest = self.oldest();
        let places = (oldest..=place).rev();
        let pairs = places.zip(tokens.iter().rev()).take(LONGEST_MATCH);
        pairs.take_while(|(place, token)| self.token(*place) == **token).count()
    }

    /// Whether the text at `place` has this scope. Hashes can collide, so they do not suffice.
    fn is_of(&self, place: u64, scope: &CacheScope) -> bool {
        let after = self.texts.partition_point(|(start, _)| *start <= place);
        after.checked_sub(1).is_some_and(|text| self.texts[text].1 == *scope)
    }

    /// Size in memory, in bytes, without the list of texts.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let words = self.tokens.capacity() + self.back.capacity();
        words * size_of::<u32>() + self.latest.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(salt: &str) -> CacheScope {
        CacheScope::new("m", salt)
    }

    fn proposed(of: &History, salt: &str, tokens: &[TokenId]) -> (Vec<(TokenId, f32)>, usize) {
        let mut draft = Vec::new();
        let matched = of.propose(&scope(salt), tokens, 4, &mut draft);
        (draft, matched)
    }

    #[test]
    fn texts_of_the_same_scope_are_proposed_and_no_others() {
        let mut texts = History::of_at_most(64);
        texts.add(&scope("a"), &[1, 2, 3, 4, 5]);
        assert_eq!(proposed(&texts, "a", &[9, 1, 2, 3]), (vec![(4, 1.0), (5, 1.0)], 3));
        assert_eq!(proposed(&texts, "b", &[9, 1, 2, 3]), (Vec::new(), 0));
        // A collision gives the same root, but the salt differs.
        let planted = CacheScope { root: scope("a").root, salt: "b".into() };
        assert_eq!(texts.propose(&planted, &[9, 1, 2, 3], 4, &mut Vec::new()), 0);
    }

    #[test]
    fn the_continuation_of_most_texts_is_proposed() {
        let mut texts = History::of_at_most(64);
        texts.add(&scope(""), &[1, 2, 3, 4, 5]);
        texts.add(&scope(""), &[1, 2, 3, 4, 6]);
        texts.add(&scope(""), &[1, 2, 3, 7, 8]);
        let (draft, matched) = proposed(&texts, "", &[1, 2, 3]);
        // Two matches agree on 4; the draft continues with the later one.
        assert_eq!((draft, matched), (vec![(4, 2.0 / 3.0), (6, 0.5)], 3));
        assert_eq!(proposed(&texts, "", &[1, 2, 3, 7]).0, [(8, 1.0)], "a longer match excludes the others");
    }

    #[test]
    fn the_oldest_are_forgotten_and_memory_is_bounded() {
        let mut texts = History::of_at_most(32);
        for text in 0..50u32 {
            texts.add(&scope(""), &[1, 2, 100 + text, 200 + text, 300 + text]);
            let newest = proposed(&texts, "", &[2, 100 + text, 200 + text]);
            assert_eq!(newest, (vec![(300 + text, 1.0)], 3));
            if text >= 5 {
                let old = text - 5;
                assert_eq!(proposed(&texts, "", &[2, 100 + old, 200 + old]).1, 0, "text {old} of {text}");
            }
            assert!(texts.bytes() <= 12 * 32 && texts.texts.len() <= 6);
        }
    }
}
