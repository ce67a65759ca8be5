//! CPU backends with their drawn tokens replaced by those of given texts: always, or as often as a draft
//! model is right.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use skein_node::random::SplitMix64;
use skein_worker::TokenId;
use skein_worker::backend::cpu::CpuBackend;
use skein_worker::backend::{Answer, Backend, BackendError, Batch, Sampled, StepHandle, StepOutput, Want};

use crate::texts::Text;

/// One backend for engines that take turns.
pub type Shared = Arc<Mutex<CpuBackend>>;

/// Statistics of drafts.
#[derive(Debug, Default)]
pub struct Counts {
    draws: AtomicU64,
    drafted: AtomicU64,
    right: AtomicU64,
    /// Rows and nanoseconds of the draft model.
    rows: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Counts {
    /// Sets all counts to zero.
    pub fn reset(&self) {
        for count in [&self.draws, &self.drafted, &self.right, &self.rows, &self.nanoseconds] {
            count.store(0, Relaxed);
        }
    }

    /// Rows of the draft model, and the time that it took.
    pub fn of_draft_model(&self) -> (u64, Duration) {
        (self.rows.load(Relaxed), Duration::from_nanos(self.nanoseconds.load(Relaxed)))
    }

    /// Numbers of draws, of draft tokens, and of right draft tokens.
    pub fn take(&self) -> (u64, u64, u64) {
        (self.draws.load(Relaxed), self.drafted.load(Relaxed), self.right.load(Relaxed))
    }
}

/// Answer to one want.
enum Said {
    Token(TokenId),
    Verified { draft: Vec<TokenId>, right: Vec<TokenId> },
}

/// The backend of one engine.
pub struct Scripted {
    backend: Shared,
    answers: Vec<Vec<TokenId>>,
    counts: Arc<Counts>,
    in_flight: VecDeque<Vec<Said>>,
}

impl Scripted {
    /// Backend over `backend` that draws the tokens of `texts`, found by their numbers.
    pub fn new(backend: Shared, texts: &[Text], counts: Arc<Counts>) -> Self {
        let answers = texts.iter().map(|text| text.answer.clone()).collect();
        Self { backend, answers, counts, in_flight: VecDeque::new() }
    }

    fn token(&self, text: u64, at: u32) -> TokenId {
        self.answers[text as usize].get(at as usize).copied().unwrap_or(0)
    }

    fn said(&self, batch: &Batch, want: &Want) -> Said {
        match want {
            Want::Sample(sample) => {
                let at = sample.position - sample.prompt_len;
                self.counts.draws.fetch_add(u64::from(at > 0), Relaxed);
                Said::Token(self.token(sample.params.seed, at))
            }
            Want::Verify(verify) => {
                let first = verify.position - verify.prompt_len;
                let at = first..first + verify.rows.len() as u32;
                self.counts.draws.fetch_add(1, Relaxed);
                let right = at.map(|at| self.token(verify.params.seed, at)).collect();
                Said::Verified { draft: batch.draft(verify).to_vec(), right }
            }
            other => unreachable!("nobody asks for {other:?}"),
        }
    }
}

impl Backend for Scripted {
    fn kv_blocks(&self) -> u32 {
        self.backend.lock().expect("no side panics").kv_blocks()
    }

    fn verifies(&self) -> bool {
        true
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let said = batch.wants.iter().map(|want| self.said(&batch, want)).collect();
        self.in_flight.push_back(said);
        self.backend.lock().expect("no side panics").launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let output = self.backend.lock().expect("no side panics").collect(step)?;
        let said = self.in_flight.pop_front().unwrap_or_default();
        assert_eq!(said.len(), output.answers.len(), "every want is answered");
        let sampled = |token| Sampled { token, logprobs: None };
        let answer = |said: Said| match said {
            Said::Token(token) => Answer::Sampled(sampled(token)),
            Said::Verified { draft, right } => {
                let answer = Answer::verified(&draft, right.into_iter().map(sampled).collect());
                self.counts.drafted.fetch_add(draft.len() as u64, Relaxed);
                self.counts.right.fetch_add(answer.drawn().len() as u64 - 1, Relaxed);
                answer
            }
        };
        Ok(StepOutput { answers: said.into_iter().map(answer).collect() })
    }
}

/// The backend of a draft model.
pub struct Guessing {
    backend: CpuBackend,
    /// Answers, and the probability that a token of each is guessed.
    answers: Vec<(Vec<TokenId>, f64)>,
    guesses: Vec<TokenId>,
    counts: Arc<Counts>,
    launched: Timestamp,
}

impl Guessing {
    /// Backend over `backend` that draws tokens of `texts` with their agreement.
    pub fn new(backend: CpuBackend, texts: &[Text], counts: Arc<Counts>) -> Self {
        let answers = texts.iter().map(|text| (text.answer.clone(), text.agreement)).collect();
        Self { backend, answers, guesses: Vec::new(), counts, launched: clock::now() }
    }

    fn guess(&self, want: &Want) -> TokenId {
        let Want::Sample(sample) = want else { unreachable!("a draft model only samples") };
        let at = sample.position.saturating_sub(sample.prompt_len);
        // Its first steps are for measurement and have no text.
        let Some((answer, agreement)) = self.answers.get(sample.params.seed as usize) else { return 0 };
        let Some(token) = answer.get(at as usize) else { return 0 };
        let drawn = SplitMix64::new((sample.params.seed << 32) | u64::from(at)).unit();
        if drawn < *agreement { *token } else { *token + 1 }
    }
}

impl Backend for Guessing {
    fn kv_blocks(&self) -> u32 {
        self.backend.kv_blocks()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        self.guesses = batch.wants.iter().map(|want| self.guess(want)).collect();
        self.counts.rows.fetch_add(batch.tokens.len() as u64, Relaxed);
        self.launched = clock::now();
        self.backend.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        self.backend.collect(step)?;
        let took = clock::now().since(self.launched);
        self.counts.nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
        let answer = |token| Answer::Sampled(Sampled { token, logprobs: None });
        Ok(StepOutput { answers: self.guesses.drain(..).map(answer).collect() })
    }
}
