//! Byte pair encoding: repeatedly merges the pair with the lowest rank, leftmost first, until no pair has a
//! rank.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use skein_proto::TokenId;

use super::vocabulary::Vocabulary;

/// Most tokens merged by a search for the lowest rank in each step. Its time is quadratic, but it beats a
/// queue for words.
const FEW: usize = 64;
/// Marks a token that was merged into the one before it.
const GONE: TokenId = TokenId::MAX;
/// Marks that there is no further token.
const END: u32 = u32::MAX;

/// Pairs of tokens that are merged.
#[derive(Debug, Default)]
pub struct Merges(HashMap<u64, Merge, BuildHasherDefault<PairHasher>>);

#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    token: TokenId,
}

impl Merges {
    /// Merges `tokens` from place `start` on as far as possible.
    pub fn apply(&self, tokens: &mut Vec<TokenId>, start: usize) {
        let part = &mut tokens[start..];
        let length = if part.len() <= FEW { self.apply_to_few(part) } else { self.apply_to_many(part) };
        tokens.truncate(start + length);
    }

    /// Returns the new length.
    fn apply_to_few(&self, tokens: &mut [TokenId]) -> usize {
        let mut merges = [None; FEW];
        for (merge, pair) in merges.iter_mut().zip(tokens.windows(2)) {
            *merge = self.of(pair[0], pair[1]);
        }
        let mut length = tokens.len();
        loop {
            let pairs = merges[..length.saturating_sub(1)].iter().enumerate();
            let ranked = pairs.filter_map(|(at, merge)| Some((merge.as_ref()?, at)));
            let Some((&Merge { token, .. }, at)) = ranked.min_by_key(|(merge, at)| (merge.rank, *at)) else {
                return length;
            };
            tokens[at] = token;
            tokens.copy_within(at + 2..length, at + 1);
            merges.copy_within(at + 1..length, at);
            length -= 1;
            if at > 0 {
                merges[at - 1] = self.of(tokens[at - 1], token);
            }
            merges[at] = if at + 1 < length { self.of(token, tokens[at + 1]) } else { None };
        }
    }

    /// With a queue of pairs, in n log n steps. Returns the new length.
    fn apply_to_many(&self, tokens: &mut [TokenId]) -> usize {
        let count = tokens.len() as u32;
        let mut next: Vec<u32> = (1..count).chain([END]).collect();
        let mut before: Vec<u32> = [END].into_iter().chain(0..count - 1).collect();
        let queued = |at: u32, merge: Merge| Reverse((merge.rank, at, merge.token));
        let pairs = tokens.windows(2).zip(0..);
        let mut queue: BinaryHeap<_> =
            pairs.filter_map(|(pair, at)| Some(queued(at, self.of(pair[0], pair[1])?))).collect();
        while let Some(Reverse((_, at, token))) = queue.pop() {
            let place = at as usize;
            let after = next[place];
            // The pair may have changed since it was queued. It then became longer, and so another token.
            let is_current = |after: usize| {
                tokens[place] != GONE
                    && self.of(tokens[place], tokens[after]).is_some_and(|merge| merge.token == token)
            };
            if after == END || !is_current(after as usize) {
                continue;
            }
            tokens[place] = token;
            tokens[after as usize] = GONE;
            let following = next[after as usize];
            next[place] = following;
            if following != END {
                before[following as usize] = at;
                queue.extend(self.of(token, tokens[following as usize]).map(|merge| queued(at, merge)));
            }
            let previous = before[place];
            if previous != END {
                let merge = self.of(tokens[previous as usize], token);
                queue.extend(merge.map(|merge| queued(previous, merge)));
            }
        }
        let mut length = 0;
        for at in 0..tokens.len() {
            if tokens[at] != GONE {
                tokens[length] = tokens[at];
                length += 1;
            }
        }
        length
    }

    fn of(&self, one: TokenId, other: TokenId) -> Option<Merge> {
        self.0.get(&pair(one, other)).copied()
    }
}

fn pair(one: TokenId, other: TokenId) -> u64 {
    u64::from(one) << 32 | u64::from(other)
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

/// Hashes pairs of tokens. They come from the operator's file, so clients cannot force collisions.
#[derive(Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }
}

/// Reads a list of merges, the first one first. Each is a list of two tokens, or a string with a space
/// between them.
pub struct MergesSeed<'a>(pub &'a Vocabulary);

impl<'de> DeserializeSeed<'de> for MergesSeed<'_> {
    type Value = Merges;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Merges, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergesSeed<'_> {
    type Value = Merges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
        let mut merges = HashMap::with_capacity_and_hasher(self.0.len(), BuildHasherDefault::default());
        let mut text = String::new();
        let (mut rank, mut token) = (0, 0);
        while let Some((one, other)) = list.next_element_seed(PairSeed(self.0, &mut text))? {
            // Most files have the merges in the order of their tokens.
            let mut likely = [token, token + 1].into_iter();
            token = match likely.find(|id| self.0.text_of(*id) == Some(&text)) {
                Some(id) => id,
                None => known(self.0, &text)?,
            };
            merges.insert(pair(one, other), Merge { rank, token });
            rank += 1;
        }
        Ok(Merges(merges))
    }
}

/// Reads a merge's two tokens, and writes their joined text.
struct PairSeed<'a>(&'a Vocabulary, &'a mut String);

impl<'de> DeserializeSeed<'de> for PairSeed<'_> {
    type Value = (TokenId, TokenId);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PairSeed<'_> {
    type Value = (TokenId, TokenId);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two tokens")
    }

    fn visit_str<E: Error>(self, pair: &str) -> Result<Self::Value, E> {
        let tokens = pair.split_once(' ').filter(|(_, right)| !right.contains(' '));
        let (left, right) =
            tokens.ok_or_else(|| E::custom(format!("merge {:?} is not two tokens", head(pair))))?;
        self.1.clear();
        self.1.extend([left, right]);
        Ok((known(self.0, left)?, known(self.0, right)?))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        self.1.clear();
        let mut next = || list.next_element_seed(TokenSeed(self.0, self.1));
        match (next()?, next()?, next()?) {
            (Some(left), Some(right), None) => Ok((left, right)),
            _ => Err(A::Error::custom("a merge has other than two tokens")),
        }
    }
}

/// Reads a token, and appends its text.
struct TokenSeed<'a>(&'a Vocabulary, &'a mut String);

impl<'de> DeserializeSeed<'de> for TokenSeed<'_> {
    type Value = TokenId;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TokenId, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for TokenSeed<'_> {
    type Value = TokenId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TokenId, E> {
        self.1.push_str(text);
        known(self.0, text)
    }
}

fn known<E: Error>(vocabulary: &Vocabulary, text: &str) -> Result<TokenId, E> {
    let unknown = || E::custom(format!("merge token {:?} is not in the vocabulary", head(text)));
    vocabulary.id_of(text).ok_or_else(unknown)
}

/// What errors show of a text.
fn head(text: &str) -> String {
    text.chars().take(40).collect()
}
