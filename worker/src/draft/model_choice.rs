//! Decides for which texts a draft model runs before a step, and how many tokens it drafts for each: as many
//! as maximise the expected tokens per second, the time of the draft model included.

use std::time::Duration;

use super::row_cost::RowCost;

/// Most tokens that a draft model drafts for a text in a step. Each is a step of the draft model.
pub const MOST_MODELLED: u32 = 16;
/// Least expected speedup over a step without the draft model.
const MARGIN: f64 = 1.04;
/// Longest expected time of a step with its drafts, in steps without.
const LONGEST: f64 = 3.0;
/// Tokens that every text is assumed to have left, unless its limit is lower. Beyond that, a text is
/// assumed to continue for as long as it already is.
const LEAST_FURTHER: u32 = 32;
/// Rows of a draft model's step from which its time measures that of a row.
const MANY_ROWS: u32 = 32;
/// Weight of the latest measurement of a row's time.
const GAIN: f64 = 0.2;
/// Fraction of the time for trials: drafts that are not expected to pay off, and catching up for them. They
/// show when the draft model has become right more often.
const FOR_TRIALS: f64 = 0.02;
/// Most time saved up for trials, in plain steps.
const MOST_FOR_TRIALS: f64 = 64.0;
/// Tokens of such a draft.
const TRIAL_DEPTH: u32 = 2;
/// Most known tokens that the draft model computes in its first step for a text, where the step's time is
/// about that of one row.
const NEAR: u32 = 48;
/// Most known tokens that the draft model computes in one step for a text that is further behind.
const MOST_CAUGHT_UP: u32 = 256;
const LEAST_CAUGHT_UP: u32 = 16;

/// A text for which the draft model could run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidate {
    /// Probability that a token of its draft is right if all earlier ones are.
    pub chance: f32,
    /// Probability that the first token of a draft from another source is right.
    pub rival: f32,
    /// All tokens drawn since its latest draft were as drafted.
    pub was_right: bool,
    /// Most tokens of a draft.
    pub most: u32,
    /// Known tokens that the draft model has not computed; at least 1.
    pub behind: u32,
    /// Tokens generated so far.
    pub drawn: u32,
    /// Most tokens that it may still get.
    pub left: u32,
}

/// What the draft model does for one text before a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Most known tokens to compute; 0 = the text has no share.
    pub rows: u32,
    /// Tokens to draft; 0 = only known tokens are computed.
    pub drafted: u32,
}

/// Measured times of a draft model, and the decision that follows from them.
#[derive(Debug, Default)]
pub(super) struct ModelChoice {
    steps: RowCost,
    /// Seconds of a row in a step of many.
    row: Option<f64>,
    /// Seconds left for trials.
    for_trials: f64,
    /// Kept to reuse its allocation.
    order: Vec<usize>,
}

impl ModelChoice {
    /// Records that a step of `rows` rows of the draft model took `took`.
    pub fn took(&mut self, rows: u32, took: Duration) {
        self.steps.observe(rows, took);
        if rows >= MANY_ROWS {
            let now = took.as_secs_f64() / f64::from(rows);
            self.row = Some(self.row.map_or(now, |row| row + (now - row) * GAIN));
        }
    }

    /// Each candidate's share before a step of `streams` streams that takes at most `most` draft rows, at the
    /// costs `verify` of the model's own steps.
    pub fn choose(
        &mut self,
        verify: &RowCost,
        streams: u32,
        most: u32,
        candidates: &[Candidate],
    ) -> Vec<Share> {
        let mut shares = vec![Share::default(); candidates.len()];
        let Some((plain, row)) = verify.seconds(streams).zip(self.row) else { return shares };
        self.order.clear();
        let is_ready = |candidate: &Candidate| {
            candidate.behind <= NEAR && candidate.most > 0 && candidate.chance > candidate.rival
        };
        self.order.extend((0..candidates.len()).filter(|at| is_ready(&candidates[*at])));
        self.order.sort_by(|a, b| candidates[*b].chance.total_cmp(&candidates[*a].chance));
        let (count, mut depth) = self.best(verify, plain, streams, most, candidates);
        let mut chosen = &self.order[..count];
        let trial = self.seconds(verify, streams + TRIAL_DEPTH, 1, TRIAL_DEPTH) - plain;
        self.for_trials = (self.for_trials + FOR_TRIALS * plain).min(MOST_FOR_TRIALS * plain);
        if count == 0 {
            // A text whose last draft was right goes on at once, so that a few steps suffice to recover.
            let lucky = self.order.iter().position(|at| candidates[*at].was_right);
            let most_likely = (self.for_trials >= trial && !self.order.is_empty()).then_some(0);
            if let Some(nth) = lucky.or(most_likely) {
                (chosen, depth) = (&self.order[nth..=nth], TRIAL_DEPTH);
                self.for_trials = (self.for_trials - trial).max(0.0);
            }
        }
        for at in chosen {
            let Candidate { most, behind, .. } = candidates[*at];
            shares[*at] = Share { rows: behind, drafted: depth.min(most) };
        }
        self.catch_up(verify, plain, row, streams, candidates, &mut shares);
        shares
    }

    /// Number of texts, most promising first, and tokens for each.
    fn best(
        &self,
        verify: &RowCost,
        plain: f64,
        streams: u32,
        most: u32,
        candidates: &[Candidate],
    ) -> (usize, u32) {
        let mut best = ((0, 0), MARGIN * f64::from(streams) / plain);
        for depth in 1..=MOST_MODELLED {
            let (mut tokens, mut rows) = (f64::from(streams), 0);
            for (nth, at) in self.order.iter().enumerate() {
                let of = &candidates[*at];
                rows += depth.min(of.most);
                if rows > most {
                    break;
                }
                tokens += expected(of.chance, depth.min(of.most));
                let seconds = self.seconds(verify, streams + rows, nth as u32 + 1, depth);
                if seconds <= LONGEST * plain && tokens / seconds > best.1 {
                    best = ((nth + 1, depth), tokens / seconds);
                }
            }
        }
        best.0
    }

    /// Time of a step of `rows` rows after drafts of `depth` tokens for `drafting` texts.
    fn seconds(&self, verify: &RowCost, rows: u32, drafting: u32, depth: u32) -> f64 {
        let of = |cost: &RowCost, rows| cost.seconds(rows).unwrap_or(f64::INFINITY);
        of(verify, rows) + f64::from(depth) * of(&self.steps, drafting)
    }

    /// Lets texts catch up if their drafts are expected to save more time than that takes, or for a trial.
    /// All together take at most the time of a plain step.
    fn catch_up(
        &mut self,
        verify: &RowCost,
        plain: f64,
        row: f64,
        streams: u32,
        candidates: &[Candidate],
        shares: &mut [Share],
    ) {
        let mut left = ((plain / row) as u32).clamp(LEAST_CAUGHT_UP, MOST_CAUGHT_UP);
        for (share, of) in shares.iter_mut().zip(candidates) {
            let further = of.drawn.max(LEAST_FURTHER).min(of.left);
            let pays = || {
                let gain = self.gain(verify, plain, streams, of);
                gain * f64::from(further) >= row * f64::from(of.behind)
            };
            if of.behind <= NEAR || of.most == 0 || left == 0 {
                continue;
            }
            let (rows, pays) = (of.behind.min(left), pays());
            if pays || self.for_trials >= row * f64::from(of.behind) {
                (share.rows, left) = (rows, left - rows);
                self.for_trials -= if pays { 0.0 } else { row * f64::from(rows) };
            }
        }
    }

    /// Seconds that drafts for this text alone save per token of it.
    fn gain(&self, verify: &RowCost, plain: f64, streams: u32, of: &Candidate) -> f64 {
        let saved = |depth: u32| {
            let further = expected(of.chance, depth);
            let without = plain * (1.0 + further / f64::from(streams));
            (without - self.seconds(verify, streams + depth, 1, depth)) / (1.0 + further)
        };
        (1..=MOST_MODELLED.min(of.most)).map(saved).fold(0.0, f64::max)
    }
}

/// Expected right tokens of a draft of `depth` tokens.
fn expected(chance: f32, depth: u32) -> f64 {
    (1..=depth).map(|nth| f64::from(chance).powi(nth as i32)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that verifies up to eight rows in 20 ms, and `small` milliseconds a step of the draft model.
    fn measured(small: f64) -> (RowCost, ModelChoice) {
        let (mut verify, mut choice) = (RowCost::default(), ModelChoice::default());
        for _ in 0..40 {
            for rows in [1u32, 4, 8, 12, 16, 24, 32, 48, 64] {
                verify.observe(rows, Duration::from_millis(20) * rows.div_ceil(8));
                let took = small * (1.0 + f64::from(rows) / 16.0);
                choice.took(rows, Duration::from_secs_f64(took / 1e3));
            }
        }
        (verify, choice)
    }

    const TEXT: Candidate =
        Candidate { chance: 0.8, rival: 0.0, most: 31, behind: 2, drawn: 10, left: 100, was_right: false };

    fn chosen(small: f64, candidates: &[Candidate], streams: u32) -> Vec<u32> {
        let (verify, mut choice) = measured(small);
        let shares = choice.choose(&verify, streams, 64, candidates);
        shares.iter().map(|share| share.drafted).collect()
    }

    #[test]
    fn the_depth_follows_from_chances_and_times() {
        let of = |chance: f32, small| chosen(small, &[Candidate { chance, ..TEXT }], 1)[0];
        assert_eq!(of(0.99, 0.5), 7, "a tile full");
        assert!((3..=6).contains(&of(0.8, 2.0)), "{}", of(0.8, 2.0));
        assert!(of(0.8, 2.0) > of(0.6, 2.0));
        assert_eq!(of(0.8, 30.0), 0, "the draft model is slower than the model");
        assert_eq!(of(0.05, 2.0), 0);
        assert_eq!(chosen(0.5, &[Candidate { most: 2, ..TEXT }], 1), [2], "all it may have");
        assert_eq!(chosen(0.5, &[TEXT; 8], 8), [0; 8], "eight streams fill the tile");
    }

    #[test]
    fn better_sources_and_better_texts_come_first() {
        let rival = Candidate { rival: 0.95, ..TEXT };
        assert_eq!(chosen(1.0, &[rival], 1), [0]);
        let poor = Candidate { chance: 0.1, ..TEXT };
        let got = chosen(1.0, &[poor, TEXT], 2);
        assert!(got[0] == 0 && got[1] > 2, "{got:?}");
    }

    #[test]
    fn a_text_catches_up_in_parts_once_that_pays() {
        let (verify, mut choice) = measured(1.0);
        let mut share = |behind, drawn| {
            choice.choose(&verify, 1, 64, &[Candidate { behind, drawn, left: 10_000, ..TEXT }])[0]
        };
        let rows = share(400, 10).rows;
        assert!((16..400).contains(&rows), "{rows}");
        assert_eq!(share(400, 10).drafted, 0, "not before it has caught up");
        assert_eq!(share(30_000, 10), Share::default(), "too far for so few tokens");
        assert!(share(30_000, 5_000).rows > 0, "a long answer goes on");
        let near_end = Candidate { behind: 3_000, drawn: 500, left: 2, ..TEXT };
        assert_eq!(choice.choose(&verify, 1, 64, &[near_end]), [Share::default()]);
    }

    #[test]
    fn nothing_is_chosen_unmeasured_and_a_hopeless_text_is_tried_again_rarely() {
        let mut choice = ModelChoice::default();
        assert_eq!(choice.choose(&measured(1.0).0, 1, 64, &[TEXT]), [Share::default()]);
        let (verify, mut choice) = measured(1.0);
        let hopeless = Candidate { chance: 0.02, ..TEXT };
        let tried = (0..1280).filter(|_| choice.choose(&verify, 1, 64, &[hopeless])[0].drafted > 0).count();
        // Two steps of about a millisecond each, beside 1,280 of 20.
        let part = tried as f64 * 2.0 / (1280.0 * 20.0);
        assert!((0.005..FOR_TRIALS * 1.1).contains(&part), "{tried} trials");
        let lucky = Candidate { was_right: true, ..hopeless };
        assert_eq!(choice.choose(&verify, 1, 64, &[lucky])[0].drafted, TRIAL_DEPTH, "it goes on");
    }
}
