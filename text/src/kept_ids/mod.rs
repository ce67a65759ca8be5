//! Token ids of parts of texts that were tokenized before, so that a conversation's turn is tokenized only
//! where it is new.
//!
//! A text is cut where no token can cross, whatever stands around ([`Cuts`]). The ids of a text are then
//! those of its parts, one after the other, and those of a part depend on nothing but the part. Each cut
//! depends only on the text before it, so a text that begins like an earlier one has the same parts, up to
//! the last. A part is found by a hash and then compared byte by byte: no client can pass a text off as
//! another by a collision.
//!
//! Who shares kept ids is the caller's choice, by a *scope*. The ids are the same in any scope; but the
//! time of an answer may tell whether a part was known.

mod cuts;
pub mod limits;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use skein_proto::TokenId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::refused::TextRefused;
pub use cuts::Cuts;
use limits::{ENTRY_BYTES, LONGEST_KEPT, MOST_BYTES, SHARDS, SHORTEST_KEPT};

/// Kept ids of one tokenizer. Shared by all threads; nothing but a look-up happens under a lock.
pub struct KeptIds {
    shards: Vec<Mutex<Shard>>,
    /// Drawn per process, so that clients cannot aim at one shard or one entry.
    seed: u64,
    most_bytes: usize,
    known_tokens: AtomicU64,
    new_tokens: AtomicU64,
}

struct Shard {
    parts: LruCache<u64, Arc<Part>>,
    bytes: usize,
}

/// What a part's ids are kept under, beside its text.
#[derive(Debug, Clone, Copy)]
pub struct KeptIn<'a> {
    /// Who shares them.
    pub scope: &'a str,
    /// Character that shields control tokens: a part with it is read otherwise than plain text.
    pub mark: Option<char>,
}

/// A part of some text, and its ids.
struct Part {
    scope: Box<str>,
    /// If it is in the text.
    mark: Option<char>,
    text: Box<str>,
    ids: Box<[TokenId]>,
}

/// How many tokens of long texts came from kept parts, and how many were made anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptCounts {
    /// Tokens from kept parts.
    pub known: u64,
    /// Tokens made anew.
    pub new: u64,
}

impl Default for KeptIds {
    fn default() -> Self {
        Self::with_bytes(MOST_BYTES)
    }
}

impl fmt::Debug for KeptIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptIds").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl KeptIds {
    fn with_bytes(most_bytes: usize) -> Self {
        let shard = || Mutex::new(Shard { parts: LruCache::unbounded(), bytes: 0 });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            seed: RandomState::new().hash_one(SHARDS),
            most_bytes,
            known_tokens: AtomicU64::new(0),
            new_tokens: AtomicU64::new(0),
        }
    }

    /// Token ids of `text`, after the ids that `ids` has. `tokenize` is called for each part that is not
    /// known in `kept_in`.
    ///
    /// # Errors
    /// The first one of `tokenize`.
    pub fn encode(
        &self,
        text: &str,
        kept_in: KeptIn<'_>,
        cuts: &Cuts,
        mut ids: Vec<TokenId>,
        tokenize: &mut dyn FnMut(&str) -> Result<Vec<TokenId>, TextRefused>,
    ) -> Result<Vec<TokenId>, TextRefused> {
        ids.reserve(text.len() / 3);
        let (mut known, mut new) = (0, 0);
        let KeptIn { scope, mark } = kept_in;
        let hashed = self.seed_of(scope);
        for text in cuts.parts(text) {
            let hash = xxh3_64_with_seed(text.as_bytes(), hashed);
            let kept_in = KeptIn { scope, mark: mark.filter(|mark| text.contains(*mark)) };
            if let Some(part) = self.find(hash, text, kept_in) {
                ids.extend_from_slice(&part.ids);
                known += part.ids.len();
                continue;
            }
            let found = tokenize(text)?;
            ids.extend_from_slice(&found);
            new += found.len();
            if (SHORTEST_KEPT..=LONGEST_KEPT).contains(&text.len()) {
                let mark = kept_in.mark;
                self.keep(hash, Part { scope: scope.into(), mark, text: text.into(), ids: found.into() });
            }
        }
        self.known_tokens.fetch_add(known as u64, Ordering::Relaxed);
        self.new_tokens.fetch_add(new as u64, Ordering::Relaxed);
        Ok(ids)
    }

    /// Whether at most `most` bytes of `text` are in no known part. Stops at more.
    pub fn is_known_but(&self, most: usize, text: &str, scope: &str, cuts: &Cuts) -> bool {
        let (hashed, mut new) = (self.seed_of(scope), 0);
        let kept_in = KeptIn { scope, mark: None };
        cuts.parts(text).all(|part| {
            let hash = xxh3_64_with_seed(part.as_bytes(), hashed);
            new += if self.find(hash, part, kept_in).is_some() { 0 } else { part.len() };
            new <= most
        })
    }

    /// Tokens counted so far.
    pub fn counts(&self) -> KeptCounts {
        KeptCounts {
            known: self.known_tokens.load(Ordering::Relaxed),
            new: self.new_tokens.load(Ordering::Relaxed),
        }
    }

    fn seed_of(&self, scope: &str) -> u64 {
        xxh3_64_with_seed(scope.as_bytes(), self.seed)
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        // The table inside takes the lower bits.
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    /// The part that is `text`, which becomes the last one used.
    fn find(&self, hash: u64, text: &str, kept_in: KeptIn<'_>) -> Option<Arc<Part>> {
        let part = {
            let mut shard = self.shard(hash).lock().unwrap_or_else(PoisonError::into_inner);
            shard.parts.get(&hash)?.clone()
        };
        let is_it = part.mark == kept_in.mark && *part.text == *text && *part.scope == *kept_in.scope;
        is_it.then_some(part)
    }

    fn keep(&self, hash: u64, part: Part) {
        let (part, most) = (Arc::new(part), self.most_bytes / SHARDS);
        // Dropped after the lock.
        let mut dropped = Vec::new();
        let mut shard = self.shard(hash).lock().unwrap_or_else(PoisonError::into_inner);
        shard.bytes += part.bytes();
        dropped.extend(shard.parts.put(hash, part));
        shard.bytes -= dropped.first().map_or(0, |part: &Arc<Part>| part.bytes());
        while shard.bytes > most {
            let Some((_, oldest)) = shard.parts.pop_lru() else { break };
            shard.bytes -= oldest.bytes();
            dropped.push(oldest);
        }
    }
}

impl Part {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.scope.len() + self.text.len() + size_of_val(&*self.ids)
    }
}
