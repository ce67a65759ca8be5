//! Beginnings of prompts that most workers cache. Pure.

use super::view::{Demand, WorkerView};

/// A beginning that half of the workers cache is given to another one if that costs at most this fraction of
/// what the prompt computes anyway. It is paid once.
const SPREAD_COST: f64 = 0.1;

/// The beginning of a prompt that at least half of the workers cache (and two), such as a system prompt. If
/// it is short, it is no reason to avoid the others: a worker that lacks it computes it once, and then has
/// it, too. Otherwise a worker that once lacks it would get requests only while all others are busy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Everybodys {
    /// Tokens of the beginning.
    tokens: u32,
    /// Shortest hit of a worker that is compared as if it had them.
    from: u32,
}

impl Everybodys {
    /// `hits` is a reused buffer.
    pub fn of(demand: &Demand, fleet: &[WorkerView], hits: &mut Vec<u32>) -> Self {
        // What one of two workers caches may be a conversation of its own.
        let half = fleet.len().div_ceil(2).max(2);
        if fleet.iter().filter(|worker| worker.hit_tokens > 0).count() < half {
            return Self { tokens: 0, from: 0 };
        }
        hits.clear();
        hits.extend(fleet.iter().map(|worker| worker.hit_tokens));
        let (_, &mut tokens, _) = hits.select_nth_unstable(fleet.len() - half);
        let rest = demand.prompt_tokens.saturating_sub(tokens);
        Self { tokens, from: tokens.saturating_sub((f64::from(rest) * SPREAD_COST) as u32) }
    }

    /// The hit with which a worker is compared.
    #[inline]
    pub fn hit(self, worker: &WorkerView) -> u32 {
        if worker.hit_tokens >= self.from { worker.hit_tokens.max(self.tokens) } else { worker.hit_tokens }
    }
}
