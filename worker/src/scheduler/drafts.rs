//! Plans and verifies drafts: tokens proposed before they are drawn. A right token saves a step, and a wrong
//! one costs a row; no output token depends on them. [`crate::draft`] makes drafts.

use std::time::Duration;

use super::class::Class;
use super::sequence::Sequence;
use super::step::Plan;
use super::{Note, Scheduler};
use crate::TokenId;
use crate::backend::{Answer, MOST_DRAFTED_WITH_STATES, Sampled};
use crate::draft::{Candidate, Guesser, MOST_DRAFTED, Progress, Share, Text};

/// Appends to the list at most that many vocabulary tokens that may follow the given ones.
pub type Propose = Box<dyn FnMut(&[TokenId], usize, &mut Vec<TokenId>) + Send>;

/// Most tokens of a draft under a grammar: each needs a mask, and the step waits for the last one.
const MOST_DRAFTED_UNDER_GRAMMAR: u32 = 8;

/// Origin of drafts.
pub struct Drafts(Origin);

enum Origin {
    /// Drafts of a guesser, which are verified if that pays off.
    Guessed(Box<Guesser>),
    /// Proposals of at most this many tokens, which are always verified; for tests.
    Given(Propose, u32),
    /// Drafts of a draft model of at most this many tokens, which are always verified; for tests.
    Modelled(u32),
}

impl std::fmt::Debug for Drafts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.0 {
            Origin::Guessed(_) => "Guessed",
            Origin::Given(..) => "Given",
            Origin::Modelled(_) => "Modelled",
        };
        f.debug_tuple(name).finish()
    }
}

impl Drafts {
    /// Drafts of at most `most` tokens each, all of which are verified.
    pub fn new(most: u32, propose: Propose) -> Self {
        Self(Origin::Given(propose, most))
    }

    /// Drafts of a draft model, of at most `most` tokens each, all of which are verified.
    pub fn modelled(most: u32) -> Self {
        Self(Origin::Modelled(most))
    }

    /// Drafts of `guesser`.
    pub fn guessed(guesser: Guesser) -> Self {
        Self(Origin::Guessed(Box::new(guesser)))
    }

    /// Whether each draw of a stream is a verification, even of zero tokens.
    pub(super) fn are_given(&self) -> bool {
        matches!(self.0, Origin::Given(..) | Origin::Modelled(_))
    }

    /// Makes drafts for the streams of a step that has room for `rows` draft tokens. A draft must follow a
    /// known token. If the last token is in flight, the draft only serves to measure how often drafts are
    /// right.
    fn make(&mut self, mut streams: Vec<&mut Sequence>, rows: u32) {
        let count = streams.len() as u32;
        let is_known = |sequence: &&mut Sequence| sequence.planned_len() == sequence.len();
        match &mut self.0 {
            Origin::Given(propose, most) => {
                let mut left = rows / 2;
                for sequence in streams.into_iter().filter(is_known) {
                    let most = (*most).min(sequence.most_drafted()).min(left) as usize;
                    let Sequence { tokens, progress, .. } = sequence;
                    progress.set_draft(|draft| {
                        if most > 0 {
                            propose(tokens, most, draft);
                            draft.truncate(most);
                        }
                    });
                    left -= progress.taken();
                }
            }
            Origin::Modelled(_) => {
                let mut left = rows / 2;
                for sequence in streams.into_iter().filter(is_known) {
                    let most = sequence.most_drafted().min(left) as usize;
                    let (text, progress) = sequence.text();
                    progress.set_draft(|draft| draft.extend(text.modelled.iter().take(most)));
                    left -= progress.taken();
                }
            }
            Origin::Guessed(guesser) => {
                for sequence in &mut streams {
                    let most = sequence.most_drafted() as usize;
                    let (text, progress) = sequence.text();
                    guesser.guess(&text, most, progress);
                }
                let mut known: Vec<&mut Sequence> = streams.into_iter().filter(is_known).collect();
                let drafts = known.iter().map(|sequence| &sequence.progress);
                let taken = guesser.choose(drafts, count, rows);
                for (sequence, taken) in known.iter_mut().zip(taken) {
                    sequence.progress.take(*taken);
                }
            }
        }
    }

    /// The guesser, if drafts are its.
    pub(super) fn guesser(&mut self) -> Option<&mut Guesser> {
        if let Origin::Guessed(guesser) = &mut self.0 { Some(guesser) } else { None }
    }

    /// Whether a draft model is a source.
    pub(super) fn have_model(&self) -> bool {
        match &self.0 {
            Origin::Guessed(guesser) => guesser.has_model(),
            Origin::Modelled(_) => true,
            Origin::Given(..) => false,
        }
    }

    /// A sample's chances with the draft model.
    pub(super) fn candidate(&mut self, sequence: &mut Sequence, behind: u32) -> Candidate {
        let (drawn, left) = (sequence.output_len(), sequence.max_len - sequence.len());
        let most = sequence.most_drafted();
        let candidate = match &mut self.0 {
            Origin::Guessed(guesser) => {
                let (text, progress) = sequence.text();
                guesser.candidate(&text, most as usize, progress)
            }
            Origin::Given(..) | Origin::Modelled(_) => Candidate { most, ..Candidate::default() },
        };
        Candidate { behind, drawn, left, ..candidate }
    }

    /// Each candidate's share of the draft model's work before a step of `streams` streams that takes at most
    /// `rows` draft tokens.
    pub(super) fn shares(&mut self, streams: u32, rows: u32, candidates: &[Candidate]) -> Vec<Share> {
        match &mut self.0 {
            Origin::Guessed(guesser) => guesser.shares(streams, rows, candidates),
            Origin::Modelled(most) => {
                let share = |of: &Candidate| Share { rows: of.behind, drafted: of.most.min(*most) };
                candidates.iter().map(share).collect()
            }
            Origin::Given(..) => Vec::new(),
        }
    }

    /// Updates the statistics with the tokens drawn after `sequence`.
    fn learn(&mut self, sequence: &mut Sequence, drawn: &[Sampled]) {
        match &mut self.0 {
            Origin::Given(..) | Origin::Modelled(_) => sequence.progress.clear(),
            Origin::Guessed(guesser) => {
                guesser.drawn(drawn.iter().map(|drawn| drawn.token), &mut sequence.progress);
            }
        }
    }
}

impl Sequence {
    /// It as a source of drafts, and the state of its drafts.
    pub(super) fn text(&mut self) -> (Text<'_>, &mut Progress) {
        let len = self.len();
        let Self { tokens, scope, params, progress, forced, modelled, .. } = self;
        let of_now = |(known, tokens): &'_ (u32, Vec<TokenId>)| if *known == len { tokens.len() } else { 0 };
        let (forced, modelled) = (&forced.1[..of_now(forced)], &modelled.1[..of_now(modelled)]);
        (Text { tokens, scope, stops: &params.stop_token_ids, forced, modelled }, progress)
    }

    /// Most tokens of a draft. Leaves room for the token that is always drawn after it.
    pub(super) fn most_drafted(&self) -> u32 {
        let most = match self.table.tokens_in_state() {
            _ if self.is_constrained() => MOST_DRAFTED_UNDER_GRAMMAR,
            Some(_) => MOST_DRAFTED_WITH_STATES,
            None => MOST_DRAFTED as u32,
        };
        (self.max_len - self.len()).saturating_sub(1).min(most)
    }
}

impl Scheduler {
    /// Makes drafts for the first `most` streams of `class` in a step with room for `rows` rows. Drafts take
    /// no row from a prompt or from a stream of another class, which always yield tokens, and no block that
    /// another stream may need.
    pub(super) fn make_drafts(&mut self, class: Class, most: usize, rows: u32, plan: &mut Plan) {
        let Some(mut drafts) = self.drafts.take() else { return };
        let number = plan.step.number;
        let all = self.queues.running.iter().filter(|sequence| sequence.is_decoding(number)).count();
        let waits = (plan.step.rows > 0 || self.has_prompt_rows(class, number)) && !drafts.are_given();
        let is_meant = |sequence: &&mut Sequence| class.has(sequence.rank) && sequence.is_decoding(number);
        let mut streams: Vec<&mut Sequence> =
            self.queues.running.iter_mut().filter(is_meant).take(most).collect();
        streams.iter_mut().for_each(|sequence| sequence.progress.clear());
        let count = streams.len() as u32;
        if !waits {
            drafts.make(streams, rows.saturating_sub(count));
        }
        let available = self.kv.available().min(self.kv.available_windows());
        plan.step.draft_blocks = available.saturating_sub(all as u32);
        self.drafts = Some(drafts);
    }

    /// Whether a prompt of `class` could get rows in `step`.
    fn has_prompt_rows(&self, class: Class, step: u64) -> bool {
        let prompts = |sequence: &Sequence| {
            class.has(sequence.rank) && !sequence.is_decoding(step) && sequence.pending(step) > 0
        };
        self.queues.running.iter().any(prompts)
            || self
                .queues
                .waiting
                .values()
                .find(|head| class.has(head.rank))
                .is_some_and(|head| self.fits(head))
    }

    /// Allocates blocks for the draft of the running sequence at `index`, whose last token is at `end - 1`,
    /// without preemption. Returns the number of draft tokens with blocks.
    pub(super) fn grow_for_draft(&mut self, index: usize, end: u32, plan: &mut Plan) -> u32 {
        let sequence = &mut self.queues.running[index];
        let taken = sequence.progress.taken();
        if taken == 0 {
            return 0;
        }
        assert_eq!(sequence.len(), end, "a draft follows a known token");
        let held = sequence.table.blocks().len() as u32;
        let room = (held + plan.step.draft_blocks) * self.limits.block_size;
        let wanted = (end + taken).min(room);
        let drafted = self.kv.grow(&mut sequence.table, end, wanted, plan.batch.all_copies()) - end;
        plan.step.draft_blocks -= sequence.table.blocks().len() as u32 - held;
        drafted
    }

    /// Accepts a plain draw, and records whether a draft would have been right.
    pub(super) fn accept_draw(
        &mut self,
        sequence: &mut Sequence,
        answer: &Answer,
        events: &mut Vec<super::RequestEvent>,
    ) {
        self.learn(sequence, answer.drawn());
        answer.drawn().iter().for_each(|drawn| sequence.accept(drawn, events));
    }

    /// Accepts the right tokens of a draft of `drafted` tokens and the one after them, and frees the blocks
    /// of the wrong ones.
    pub(super) fn accept_draft(
        &mut self,
        sequence: &mut Sequence,
        drafted: u32,
        answer: &Answer,
        events: &mut Vec<super::RequestEvent>,
    ) {
        self.learn(sequence, answer.drawn());
        let accepted = (answer.drawn().len() as u32).saturating_sub(1);
        if drafted > 0 {
            self.notes.push(Note::Drafted { request: sequence.request, drafted, accepted });
        }
        let computed = sequence.computed + accepted;
        for drawn in answer.drawn() {
            sequence.accept(drawn, events);
            if sequence.finished {
                break;
            }
        }
        sequence.computed = computed.min(sequence.len());
        let known = sequence.len();
        self.kv.truncate(&mut sequence.table, known);
        self.register(sequence);
    }

    fn learn(&mut self, sequence: &mut Sequence, drawn: &[Sampled]) {
        if let Some(drafts) = &mut self.drafts {
            drafts.learn(sequence, drawn);
        }
    }

    /// Records that a step of `rows` decoding rows and nothing else took `took`.
    pub(super) fn learn_time(&mut self, rows: u32, took: Duration) {
        if let Some(Drafts(Origin::Guessed(guesser))) = &mut self.drafts {
            guesser.took(rows, took);
        }
    }

    /// Stores the text of an ended sequence, as a source of drafts for others.
    pub(super) fn remember(&mut self, sequence: &Sequence) {
        if let Some(Drafts(Origin::Guessed(guesser))) = &mut self.drafts {
            guesser.ended(&sequence.scope, &sequence.tokens, sequence.prompt_len);
        }
    }
}
