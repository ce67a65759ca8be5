//! Decision receipts: why a request is at its worker. Only for requests that ask.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

/// Most candidates of a receipt: those with the shortest prediction, and the chosen one.
pub const MAX_CANDIDATES: usize = 8;
/// Most receipts of an answer: the first choices of a call with several prompts, or that moved.
pub const MAX_RECEIPTS: usize = 2;
/// Longest name of a worker in a receipt, in characters.
const MAX_NAME: usize = 64;

/// One choice of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Name of the policy.
    pub policy: &'static str,
    /// Number of workers that could be chosen.
    pub candidates: u32,
    /// Estimated or exact tokens of the prompt.
    pub prompt_tokens: u32,
    /// The best candidates by prediction, at most [`MAX_CANDIDATES`].
    pub best: Vec<Considered>,
}

/// A worker that could have been chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Considered {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Tokens of the prompt that it is expected to cache.
    pub overlap_tokens: u32,
    /// Components of its predicted time to the first token.
    pub terms: Terms,
}

/// Components of the predicted time to first token at one worker, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Terms {
    /// Prefill of the prompts queued before this one.
    pub queue: f64,
    /// Prefill of this prompt, without its cached part.
    pub prefill: f64,
    /// Wait for free cache blocks.
    pub blocks: f64,
    /// Wait for a sequence to end, if all seats are taken.
    pub seats: f64,
    /// Rest of the running step.
    pub step: f64,
    /// Cost of the prefill to running streams.
    pub slowdown: f64,
    /// Time to read the request's adapter.
    pub adapter: f64,
}

impl Terms {
    /// The time to the first token, without the cost to others.
    #[inline]
    pub fn first_token(&self) -> f64 {
        self.sum() - self.slowdown
    }

    /// What workers are compared by: the predicted time, and the cost to others.
    #[inline]
    pub fn sum(&self) -> f64 {
        self.queue + self.prefill + self.blocks + self.seats + self.step + self.slowdown + self.adapter
    }

    /// Each component with its name.
    pub fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("queue", self.queue),
            ("prefill", self.prefill),
            ("blocks", self.blocks),
            ("seats", self.seats),
            ("step", self.step),
            ("slowdown", self.slowdown),
            ("adapter", self.adapter),
        ]
    }
}

impl Receipt {
    fn json(&self) -> Value {
        let best = self.best.iter().map(Considered::json).collect::<Vec<_>>();
        json!({
            "policy": self.policy, "candidates": self.candidates, "prompt_tokens": self.prompt_tokens, "best": best,
        })
    }

    /// The chosen worker.
    pub fn chosen(&self) -> Option<&Considered> {
        self.best.iter().find(|considered| considered.chosen)
    }
}

impl Considered {
    fn json(&self) -> Value {
        // Escaped, because a header has only printable ASCII.
        let name: String = self.worker.escape_default().take(MAX_NAME).collect();
        let mut object = json!({
            "worker": name, "chosen": self.chosen, "overlap_tokens": self.overlap_tokens,
            "seconds": rounded(self.terms.sum()),
        });
        for (term, seconds) in self.terms.named() {
            object[term] = rounded(seconds);
        }
        object
    }
}

/// Seconds with microseconds: more digits would only be noise.
fn rounded(seconds: f64) -> Value {
    json!((seconds * 1e6).round() / 1e6)
}

/// Collects the receipts of one call.
#[derive(Debug, Clone, Default)]
pub struct Receipts(Arc<Mutex<Vec<Receipt>>>);

impl Receipts {
    /// Adds a receipt, up to the bound.
    pub fn add(&self, receipt: Receipt) {
        let mut receipts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if receipts.len() < MAX_RECEIPTS {
            receipts.push(receipt);
        }
    }

    /// All of them as one JSON list in printable ASCII; `None` if there are none.
    pub fn json(&self) -> Option<String> {
        let receipts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<Value> = receipts.iter().map(Receipt::json).collect();
        (!all.is_empty()).then(|| Value::from(all).to_string())
    }
}
