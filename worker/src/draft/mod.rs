//! Guesses the next tokens of texts, so that one step can verify several. A right guess saves a step and a
//! wrong one costs a row; no token depends on either, because each is drawn as without guesses and compared.
//!
//! Guesses come from three places: what the text itself said after the same tokens before ([`index`]), what
//! finished texts of the same cache scope said ([`remembered`]), and what a grammar leaves no choice about.
//! [`odds`] measures how often each is right, [`row_cost`] what a further row takes, and [`choice`] verifies
//! as many as pay. So there is nothing to set: plain prose and full batches are decoded as ever.
//!
//! Pure: tokens and times in, guesses out. A model that drafts would be one more [`DraftSource`]; it keeps
//! its keys and values itself, by text.

mod choice;
mod index;
mod odds;
mod remembered;
mod row_cost;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use choice::{Offer, choose};
use index::Index;
pub use odds::DraftSource;
use odds::{Luck, Odds};
use remembered::Remembered;
use row_cost::RowCost;

use crate::TokenId;
use crate::kv_cache::CacheScope;

/// Most draft tokens of one text in a step.
pub const MOST_DRAFTED: usize = 31;
/// Most draft tokens of all texts in a step.
pub const MOST_ROWS: u32 = 64;

/// The places that drafts come from, as `--speculate` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Speculate {
    /// All there are.
    #[default]
    Auto,
    /// None: plain decoding.
    Off,
    /// The text itself.
    Ngram,
    /// The text itself and finished ones.
    Suffix,
}

/// A text that streams.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    /// All its tokens.
    pub tokens: &'a [TokenId],
    /// The texts that it may share with.
    pub scope: &'a CacheScope,
    /// Tokens that end it; no draft contains one.
    pub stops: &'a [TokenId],
    /// What its grammar leaves no choice about.
    pub forced: &'a [TokenId],
}

/// What is kept of a streaming text from step to step: 8 to 16 bytes a token.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    index: Index,
    luck: Luck,
    latest: Draft,
    /// Tokens of the latest draft that the next step verifies.
    taken: u32,
    /// Its latest draft began right.
    is_lucky: bool,
}

/// A draft, and the chance that its first tokens are right, up to each.
#[derive(Debug, Clone, Default)]
struct Draft {
    tokens: Vec<TokenId>,
    chances: Vec<f32>,
    /// Where it comes from, and the length of the match before it.
    from: Option<(DraftSource, usize)>,
}

impl Progress {
    /// The first `len` tokens of the latest draft.
    pub fn draft(&self, len: u32) -> &[TokenId] {
        &self.latest.tokens[..len as usize]
    }

    /// Tokens of the latest draft that the next step verifies.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Has the next step verify `taken` tokens of the latest draft.
    pub fn take(&mut self, taken: u32) {
        self.taken = taken.min(self.latest.tokens.len() as u32);
    }

    /// Whether it is worth to wait for a token in flight so that a draft can follow it.
    pub fn is_lucky(&self) -> bool {
        self.is_lucky
    }

    /// Replaces the latest draft by one that `make` appends to a list, and has all of it verified.
    pub fn set_draft(&mut self, make: impl FnOnce(&mut Vec<TokenId>)) {
        self.latest.clear();
        make(&mut self.latest.tokens);
        self.taken = self.latest.tokens.len() as u32;
    }

    /// Forgets the latest draft.
    pub fn clear(&mut self) {
        self.latest.clear();
        self.taken = 0;
    }
}

impl Draft {
    fn clear(&mut self) {
        self.tokens.clear();
        self.chances.clear();
        self.from = None;
    }

    fn cut(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.chances.truncate(len);
    }
}

/// Makes drafts and decides how long they are. One for all texts of a worker.
#[derive(Debug)]
pub struct Guesser {
    remembered: Option<Remembered>,
    odds: Odds,
    cost: RowCost,
    forces: bool,
    /// Kept for their allocations.
    offers: Vec<Offer>,
    taken: Vec<u32>,
    found: Vec<(TokenId, f32)>,
}

impl Guesser {
    /// A guesser over the places of `speculate`; `None` if there are none. Finished texts are used only if
    /// `shares`: whoever shares no prefixes shares no texts either.
    pub fn new(speculate: Speculate, shares: bool) -> Option<Self> {
        let remembers = shares && matches!(speculate, Speculate::Auto | Speculate::Suffix);
        (speculate != Speculate::Off).then(|| Self {
            remembered: remembers.then(Remembered::default),
            odds: Odds::default(),
            cost: RowCost::default(),
            forces: speculate == Speculate::Auto,
            offers: Vec::new(),
            taken: Vec::new(),
            found: Vec::new(),
        })
    }

    /// Makes a draft of at most `most` tokens after `text`, as `progress` keeps it.
    pub fn guess(&mut self, text: &Text<'_>, most: usize, progress: &mut Progress) {
        let most = most.min(MOST_DRAFTED);
        progress.clear();
        let Progress { index, luck, latest, .. } = progress;
        index.extend(text.tokens);
        if self.forces && !text.forced.is_empty() {
            self.found.clear();
            self.found.extend(text.forced.iter().take(most).map(|token| (*token, 1.0)));
            self.put(DraftSource::Grammar, 0, luck, latest);
        } else {
            self.look_up(text, most, index, luck, latest);
        }
        let stop = latest.tokens.iter().position(|token| text.stops.contains(token));
        latest.cut(stop.unwrap_or(most));
    }

    /// A draft from the longest match. The text itself decides between equals: it is what the stream is
    /// about.
    fn look_up(&mut self, text: &Text<'_>, most: usize, index: &Index, luck: &Luck, latest: &mut Draft) {
        let own = index.longest(text.tokens);
        self.found.clear();
        let remembered = self
            .remembered
            .as_ref()
            .map_or(0, |texts| texts.propose(text.scope, text.tokens, most, &mut self.found));
        if remembered > own.map_or(0, |place| place.matched) {
            return self.put(DraftSource::Remembered, remembered, luck, latest);
        }
        let Some(place) = own else { return };
        self.found.clear();
        for at in place.next..place.next + most {
            // A text that repeats itself goes on into its own draft.
            let token = text.tokens.get(at).copied();
            let token = token.unwrap_or_else(|| self.found[at - text.tokens.len()].0);
            self.found.push((token, 1.0));
        }
        self.put(DraftSource::Own, place.matched, luck, latest);
    }

    /// Turns what was found into a draft with chances.
    fn put(&mut self, source: DraftSource, matched: usize, luck: &Luck, latest: &mut Draft) {
        latest.from = Some((source, matched));
        let mut chance = 1.0;
        for (at, (token, share)) in self.found.iter().enumerate() {
            chance *= self.odds.chance(source, matched + at, luck) * share;
            latest.tokens.push(*token);
            latest.chances.push(chance);
        }
    }

    /// How many tokens of the latest drafts of `texts` a step of `streams` streams verifies; at most `most`
    /// together.
    pub fn choose<'a>(
        &mut self,
        texts: impl Iterator<Item = &'a Progress>,
        streams: u32,
        most: u32,
    ) -> &[u32] {
        self.offers.clear();
        let mut count = 0;
        for progress in texts {
            let chances = progress.latest.chances.iter();
            self.offers.extend(chances.map(|chance| Offer { stream: count, chance: *chance }));
            count += 1;
        }
        self.taken.clear();
        self.taken.resize(count, 0);
        choose(&self.cost, streams, &mut self.offers, most.min(MOST_ROWS), &mut self.taken);
        &self.taken
    }

    /// Learns from the tokens that were drawn after a text, verified or not.
    pub fn drawn(&mut self, tokens: impl Iterator<Item = TokenId>, progress: &mut Progress) {
        let Progress { luck, latest, is_lucky, .. } = progress;
        *is_lucky = false;
        let Some((source, matched)) = latest.from else { return progress.clear() };
        for (at, (guess, token)) in latest.tokens.iter().zip(tokens).enumerate() {
            let right = *guess == token;
            self.odds.observe(source, matched + at, right, luck);
            *is_lucky = right;
            if !right {
                break;
            }
        }
        progress.clear();
    }

    /// A step of `rows` rows that continued texts and did nothing else took `took`.
    pub fn took(&mut self, rows: u32, took: Duration) {
        self.cost.observe(rows, took);
    }

    /// Keeps the end of a finished text: its output, and the prompt's end before it.
    pub fn ended(&mut self, scope: &CacheScope, tokens: &[TokenId], prompt_len: u32) {
        if let Some(remembered) = &mut self.remembered {
            let from = (prompt_len as usize).saturating_sub(index::LONGEST_MATCH);
            remembered.add(scope, &tokens[from..]);
        }
    }
}
