//! Measures the probability that a draft token is right: for all texts together by source and length of
//! match, and for each text how far it deviates from that.
//!
//! Every draft token is compared with the drawn one, even if it was not verified, so the estimates stay
//! current while nothing is verified.

/// What proposed a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSource {
    /// Earlier in the same text.
    Own,
    /// A finished text.
    History,
    /// A grammar that allows only one continuation.
    Grammar,
    /// A draft model.
    Model,
}

/// Classes of match lengths: the shortest of each class.
const LENGTHS: [usize; 8] = [0, 4, 5, 7, 10, 16, 32, 64];
/// Probabilities assumed before any measurement, by class of length.
const FIRST_CHANCE: [f32; 8] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
const FIRST_CHANCE_OF_GRAMMARS: f32 = 0.8;
const FIRST_CHANCE_OF_MODELS: f32 = 0.7;
/// Weight of the initial probability, in draft tokens.
const FIRST_WEIGHT: f32 = 4.0;
/// Number of draft tokens after which an old one counts half.
const MEMORY: f32 = 256.0;
/// The same for a draft model, whose drafts all count as one class.
const MEMORY_OF_MODELS: f32 = 64.0;
/// The same for one text, whose content changes sooner.
const MEMORY_OF_TEXT: f32 = 24.0;
/// Weight of the assumption that a text behaves like the others, in draft tokens.
const WEIGHT_OF_OTHERS: f32 = 4.0;
/// Highest estimate, because no draft token is certain.
const HIGHEST: f32 = 0.995;

#[derive(Debug, Clone, Copy)]
struct Rate {
    right: f32,
    all: f32,
    memory: f32,
}

impl Rate {
    fn new(chance: f32) -> Self {
        Self { right: chance * FIRST_WEIGHT, all: FIRST_WEIGHT, memory: MEMORY }
    }

    fn observe(&mut self, right: bool) {
        if self.all >= self.memory {
            self.right *= 0.5;
            self.all *= 0.5;
        }
        self.right += f32::from(u8::from(right));
        self.all += 1.0;
    }

    fn chance(self) -> f32 {
        self.right / self.all
    }
}

/// Measured probabilities over all texts.
#[derive(Debug, Clone)]
pub(super) struct Odds {
    own: [Rate; LENGTHS.len()],
    remembered: [Rate; LENGTHS.len()],
    grammar: Rate,
    model: Rate,
}

impl Default for Odds {
    fn default() -> Self {
        let first = FIRST_CHANCE.map(Rate::new);
        Self {
            own: first,
            remembered: first,
            grammar: Rate::new(FIRST_CHANCE_OF_GRAMMARS),
            model: Rate { memory: MEMORY_OF_MODELS, ..Rate::new(FIRST_CHANCE_OF_MODELS) },
        }
    }
}

impl Odds {
    fn rate(&mut self, source: DraftSource, matched: usize) -> &mut Rate {
        let class = LENGTHS.partition_point(|length| *length <= matched) - 1;
        match source {
            DraftSource::Own => &mut self.own[class],
            DraftSource::History => &mut self.remembered[class],
            DraftSource::Grammar => &mut self.grammar,
            DraftSource::Model => &mut self.model,
        }
    }

    /// Probability that the token after a match of `matched` tokens is right, in a text with
    /// `text_odds`.
    pub fn chance(&mut self, source: DraftSource, matched: usize, text_odds: &TextOdds) -> f32 {
        let factor = if source == DraftSource::Grammar { 1.0 } else { text_odds.factor() };
        (self.rate(source, matched).chance() * factor).min(HIGHEST)
    }

    /// Records whether a draft token was right.
    pub fn observe(&mut self, source: DraftSource, matched: usize, right: bool, text_odds: &mut TextOdds) {
        let rate = self.rate(source, matched);
        // Tokens forced by a grammar do not show how repetitive a text is.
        if source != DraftSource::Grammar {
            text_odds.observe(rate.chance(), right);
        }
        rate.observe(right);
    }
}

/// Record of one text: right draft tokens compared with the expected number.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TextOdds {
    right: f32,
    expected: f32,
}

impl TextOdds {
    fn factor(self) -> f32 {
        (self.right + WEIGHT_OF_OTHERS) / (self.expected + WEIGHT_OF_OTHERS)
    }

    fn observe(&mut self, expected: f32, right: bool) {
        let keep = 1.0 - 1.0 / MEMORY_OF_TEXT;
        self.right = self.right * keep + f32::from(u8::from(right));
        self.expected = self.expected * keep + expected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_follow_what_happens_and_depend_on_source_and_length() {
        let (mut odds, mut text_odds) = (Odds::default(), TextOdds::default());
        for n in 0..400 {
            odds.observe(DraftSource::Own, 3, n % 4 == 0, &mut TextOdds::default());
            odds.observe(DraftSource::Own, 40, true, &mut TextOdds::default());
            odds.observe(DraftSource::History, 40, n % 2 == 0, &mut text_odds);
        }
        let mut chance = |source, matched| odds.chance(source, matched, &TextOdds::default());
        assert!((chance(DraftSource::Own, 3) - 0.25).abs() < 0.05);
        assert!(chance(DraftSource::Own, 50) > 0.97);
        assert!((chance(DraftSource::History, 32) - 0.5).abs() < 0.05);
        assert_eq!(chance(DraftSource::Own, 8), 0.6, "as at the start");
    }

    #[test]
    fn the_odds_of_a_text_fall_and_recover_with_its_drafts() {
        let (mut odds, mut text_odds) = (Odds::default(), TextOdds::default());
        let usual = odds.chance(DraftSource::Own, 10, &text_odds);
        (0..20).for_each(|_| odds.observe(DraftSource::Own, 10, false, &mut text_odds));
        let unlucky = odds.chance(DraftSource::Own, 10, &text_odds);
        assert!(unlucky < usual / 4.0, "{unlucky} after {usual}");
        assert!(odds.chance(DraftSource::Own, 10, &TextOdds::default()) > unlucky * 1.5, "others less so");
        (0..60).for_each(|_| odds.observe(DraftSource::Own, 10, true, &mut text_odds));
        assert!(odds.chance(DraftSource::Own, 10, &text_odds) > usual);
    }
}
