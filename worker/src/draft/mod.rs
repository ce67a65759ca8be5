//! Speculative decoding: drafts the next tokens of texts, so that one step can verify several. A right draft
//! token saves a step and a wrong one costs a row. Drafts change no output: each token is drawn as without
//! them and then compared.
//!
//! Drafts come from the same text, where it continued the same tokens earlier ([`index`]); from finished
//! texts of the same cache scope ([`remembered`]); from a grammar that allows only one continuation; and from
//! a smaller model, which somebody else runs ([`model_choice`] says when).
//! [`odds`] measures how often each is right, [`row_cost`] the time of an additional row, and [`choice`]
//! verifies only as many tokens as pay off. Unpredictable text and full batches are therefore decoded without
//! drafts, and there is nothing to tune.
//!
//! Pure: tokens and times in, drafts out.

mod choice;
mod history;
mod index;
mod model_choice;
mod odds;
mod row_cost;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use choice::{Offer, choose};
use history::History;
use index::Index;
use model_choice::ModelChoice;
pub use model_choice::{Candidate, Share};
pub use odds::DraftSource;
use odds::{Odds, TextOdds};
use row_cost::RowCost;

use crate::TokenId;
use crate::kv_cache::CacheScope;

/// Most draft tokens of one text in a step.
pub const MOST_DRAFTED: usize = 31;
/// Most draft tokens of all texts in a step.
pub const MOST_ROWS: u32 = 64;

/// Value of `--speculate`: the sources of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Speculate {
    /// Every source of drafts.
    #[default]
    Auto,
    /// None: plain decoding.
    Off,
    /// The same text.
    Ngram,
    /// The same text and finished texts.
    Suffix,
}

/// A text being generated.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    /// All its tokens.
    pub tokens: &'a [TokenId],
    /// Scope of finished texts that its drafts may come from.
    pub scope: &'a CacheScope,
    /// Tokens that end it; no draft contains one.
    pub stops: &'a [TokenId],
    /// Next tokens if its grammar allows only one continuation.
    pub forced: &'a [TokenId],
    /// Next tokens as a draft model drew them.
    pub modelled: &'a [TokenId],
}

/// State of a text between steps. Takes 8 to 16 bytes per token.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    index: Index,
    text_odds: TextOdds,
    latest: Draft,
    /// Tokens of the latest draft that the next step verifies.
    taken: u32,
    /// The tokens drawn since the latest draft all matched it.
    was_right: bool,
    /// The same, and the draft was a model's.
    modelled_right: bool,
}

/// Draft tokens, each with the probability that it and all earlier ones are right.
#[derive(Debug, Clone, Default)]
struct Draft {
    tokens: Vec<TokenId>,
    chances: Vec<f32>,
    /// Source of the draft, and the length of its match.
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

    /// Sets how many tokens of the latest draft the next step verifies.
    pub fn take(&mut self, taken: u32) {
        self.taken = taken.min(self.latest.tokens.len() as u32);
    }

    /// Whether the next step should wait for a token in flight, so that a draft can follow it.
    pub fn should_wait(&self) -> bool {
        self.was_right
    }

    /// Replaces the latest draft with the tokens that `make` appends. The next step verifies all of them.
    pub fn set_draft(&mut self, make: impl FnOnce(&mut Vec<TokenId>)) {
        self.latest.clear();
        make(&mut self.latest.tokens);
        self.taken = self.latest.tokens.len() as u32;
    }

    /// Discards the latest draft.
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

/// Makes drafts and chooses their lengths, for all texts of a worker.
#[derive(Debug)]
pub struct Guesser {
    remembered: Option<History>,
    odds: Odds,
    cost: RowCost,
    forces: bool,
    model: Option<ModelChoice>,
    /// Kept to reuse their allocations.
    offers: Vec<Offer>,
    taken: Vec<u32>,
    found: Vec<(TokenId, f32)>,
}

impl Guesser {
    /// Guesser with the sources of `speculate`; `None` if it has none. Finished texts are a source only if
    /// `shares`, that is if requests also share cached prefixes.
    pub fn new(speculate: Speculate, shares: bool) -> Option<Self> {
        let remembers = shares && matches!(speculate, Speculate::Auto | Speculate::Suffix);
        (speculate != Speculate::Off).then(|| Self {
            remembered: remembers.then(History::default),
            odds: Odds::default(),
            cost: RowCost::default(),
            forces: speculate == Speculate::Auto,
            model: None,
            offers: Vec::new(),
            taken: Vec::new(),
            found: Vec::new(),
        })
    }

    /// The same, with a draft model as a further source.
    #[must_use]
    pub fn with_model(mut self) -> Self {
        self.model = Some(ModelChoice::default());
        self
    }

    /// Whether a draft model is a source.
    pub fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// The chances of `text`, whose draft has at most `most` tokens, as a candidate for the draft model.
    pub fn candidate(&mut self, text: &Text<'_>, most: usize, progress: &mut Progress) -> Candidate {
        let was_right = progress.modelled_right;
        self.guess(text, most, progress);
        let rival = progress.latest.chances.first().copied().unwrap_or(0.0);
        let chance = self.odds.chance(DraftSource::Model, 0, &progress.text_odds);
        Candidate { chance, rival, was_right, most: most as u32, ..Candidate::default() }
    }

    /// Each candidate's share of the draft model's work before a step of `streams` streams that takes at most
    /// `most` draft tokens.
    pub fn shares(&mut self, streams: u32, most: u32, candidates: &[Candidate]) -> Vec<Share> {
        let Self { model, cost, .. } = self;
        let model = model.as_mut();
        model.map_or(Vec::new(), |model| model.choose(cost, streams, most.min(MOST_ROWS), candidates))
    }

    /// Records that a step of `rows` rows of the draft model took `took`.
    pub fn model_took(&mut self, rows: u32, took: Duration) {
        if let Some(model) = &mut self.model {
            model.took(rows, took);
        }
    }

    /// Drafts at most `most` tokens to follow `text` and stores them in `progress`.
    pub fn guess(&mut self, text: &Text<'_>, most: usize, progress: &mut Progress) {
        let most = most.min(MOST_DRAFTED);
        progress.clear();
        let Progress { index, text_odds, latest, .. } = progress;
        index.extend(text.tokens);
        if self.forces && !text.forced.is_empty() {
            self.found.clear();
            self.found.extend(text.forced.iter().take(most).map(|token| (*token, 1.0)));
            self.put(DraftSource::Grammar, 0, text_odds, latest);
        } else if !text.modelled.is_empty() {
            self.found.clear();
            self.found.extend(text.modelled.iter().take(most).map(|token| (*token, 1.0)));
            self.put(DraftSource::Model, 0, text_odds, latest);
        } else {
            self.look_up(text, most, index, text_odds, latest);
        }
        let stop = latest.tokens.iter().position(|token| text.stops.contains(token));
        latest.cut(stop.unwrap_or(most));
    }

    /// Drafts from the longest match. Of equal matches, one in the same text wins, because it is closer in
    /// subject.
    fn look_up(
        &mut self,
        text: &Text<'_>,
        most: usize,
        index: &Index,
        text_odds: &TextOdds,
        latest: &mut Draft,
    ) {
        let own = index.longest(text.tokens);
        self.found.clear();
        let remembered = self
            .remembered
            .as_ref()
            .map_or(0, |texts| texts.propose(text.scope, text.tokens, most, &mut self.found));
        if remembered > own.map_or(0, |place| place.matched) {
            return self.put(DraftSource::History, remembered, text_odds, latest);
        }
        let Some(place) = own else { return };
        self.found.clear();
        for at in place.next..place.next + most {
            // In a repeating text, the match may run past the end into its own draft.
            let token = text.tokens.get(at).copied();
            let token = token.unwrap_or_else(|| self.found[at - text.tokens.len()].0);
            self.found.push((token, 1.0));
        }
        self.put(DraftSource::Own, place.matched, text_odds, latest);
    }

    /// Stores the found tokens as a draft with probabilities.
    fn put(&mut self, source: DraftSource, matched: usize, text_odds: &TextOdds, latest: &mut Draft) {
        latest.from = Some((source, matched));
        let mut chance = 1.0;
        for (at, (token, share)) in self.found.iter().enumerate() {
            chance *= self.odds.chance(source, matched + at, text_odds) * share;
            latest.tokens.push(*token);
            latest.chances.push(chance);
        }
    }

    /// Chooses how many tokens of the latest drafts of `texts` a step of `streams` streams verifies, at most
    /// `most` in total.
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

    /// Updates the statistics with the tokens drawn after a text, whether or not they were verified.
    pub fn drawn(&mut self, tokens: impl Iterator<Item = TokenId>, progress: &mut Progress) {
        let Progress { text_odds, latest, was_right, modelled_right, .. } = progress;
        (*was_right, *modelled_right) = (false, false);
        let Some((source, matched)) = latest.from else { return progress.clear() };
        for (at, (guess, token)) in latest.tokens.iter().zip(tokens).enumerate() {
            let right = *guess == token;
            self.odds.observe(source, matched + at, right, text_odds);
            *was_right = right;
            if !right {
                break;
            }
        }
        *modelled_right = *was_right && source == DraftSource::Model;
        progress.clear();
    }

    /// Records that a step of `rows` decoding rows and nothing else took `took`.
    pub fn took(&mut self, rows: u32, took: Duration) {
        self.cost.observe(rows, took);
    }

    /// Stores the end of a finished text: its output and the end of its prompt.
    pub fn ended(&mut self, scope: &CacheScope, tokens: &[TokenId], prompt_len: u32) {
        if let Some(remembered) = &mut self.remembered {
            let from = (prompt_len as usize).saturating_sub(index::LONGEST_MATCH);
            remembered.add(scope, &tokens[from..]);
        }
    }
}
