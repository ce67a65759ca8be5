//! What this router lets in: a bounded number of requests, and of tokens they will cost. Pure but for the shared
//! counter that a [`Permit`] gives back to, however its request ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::AdmissionConfig;
use crate::refusal::Refusal;

/// Bounds of what a refused client is told to wait.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The gate. Clones share one count.
#[derive(Debug, Clone)]
pub struct Admission {
    config: AdmissionConfig,
    running: Arc<Mutex<Running>>,
}

/// What is let in at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Running {
    /// Requests.
    pub requests: u32,
    /// Their uncached prompt tokens and expected output tokens.
    pub tokens: u64,
}

/// What is known of a request before it is let in.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Uncached prompt tokens plus expected output tokens.
    pub tokens: u64,
    /// When the best worker would give its first token; `None` while no rate has been measured.
    pub first_token_after: Option<Duration>,
    /// What its client still waits.
    pub time_left: Option<Duration>,
}

/// A request's place; dropping it frees the place.
#[derive(Debug)]
pub struct Permit {
    tokens: u64,
    running: Arc<Mutex<Running>>,
}

impl Admission {
    /// An empty gate.
    pub fn new(config: AdmissionConfig) -> Self {
        Self { config, running: Arc::default() }
    }

    /// Lets the request in or refuses it at once.
    ///
    /// A deadline refuses early if and only if even the best worker would miss it. A request larger than the
    /// whole token bound is let in when nothing else runs: it could never be served otherwise.
    pub fn admit(&self, ask: Ask) -> Result<Permit, Refusal> {
        if let (Some(wait), Some(left)) = (ask.first_token_after, ask.time_left)
            && wait > left
        {
            let reason = format!(
                "the first token is due in {} ms, the deadline in {} ms",
                wait.as_millis(),
                left.as_millis()
            );
            return Err(overloaded(reason, wait - left));
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let retry_after = ask.first_token_after.unwrap_or(Duration::from_secs(1));
        let AdmissionConfig { max_num_queued_reqs, max_num_queued_tokens } = self.config;
        if running.requests >= max_num_queued_reqs {
            return Err(overloaded(
                format!("{max_num_queued_reqs} requests are running or queued"),
                retry_after,
            ));
        }
        if running.requests > 0 && running.tokens.saturating_add(ask.tokens) > max_num_queued_tokens {
            let reason =
                format!("{} of {max_num_queued_tokens} tokens are running or queued", running.tokens);
            return Err(overloaded(reason, retry_after));
        }
        running.requests += 1;
        running.tokens += ask.tokens;
        Ok(Permit { tokens: ask.tokens, running: self.running.clone() })
    }

    /// What is let in at the moment.
    pub fn running(&self) -> Running {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.requests -= 1;
        running.tokens -= self.tokens;
    }
}

fn overloaded(reason: String, retry_after: Duration) -> Refusal {
    Refusal::Overloaded { reason, retry_after: retry_after.clamp(SHORTEST_RETRY, LONGEST_RETRY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(tokens: u64) -> Ask {
        Ask { tokens, first_token_after: None, time_left: None }
    }

    fn gate(max_num_queued_reqs: u32, max_num_queued_tokens: u64) -> Admission {
        Admission::new(AdmissionConfig { max_num_queued_reqs, max_num_queued_tokens })
    }

    /// Asks in order, keeping every permit, and says which were let in.
    fn check(gate: &Admission, tokens: &[u64], admitted: &[bool]) {
        let permits: Vec<_> = tokens.iter().map(|&tokens| gate.admit(ask(tokens))).collect();
        let got: Vec<bool> = permits.iter().map(Result::is_ok).collect();
        assert_eq!(got, admitted);
        drop(permits);
        assert_eq!(gate.running(), Running::default(), "every place is given back");
    }

    #[test]
    fn requests_and_tokens_are_bounded_and_given_back() {
        check(&gate(2, 1000), &[1, 1, 1], &[true, true, false]);
        check(&gate(9, 1000), &[600, 600, 400, 1], &[true, false, true, false]);
        check(&gate(9, 1000), &[5000, 1], &[true, false]);
        check(&gate(0, 1000), &[1], &[false]);
    }

    #[test]
    fn a_deadline_refuses_early_only_if_the_best_worker_would_miss_it() {
        let gate = gate(9, 1000);
        let seconds = Duration::from_secs;
        let ask = |wait, left| Ask { tokens: 1, first_token_after: wait, time_left: left };
        assert!(gate.admit(ask(Some(seconds(2)), Some(seconds(2)))).is_ok());
        assert!(gate.admit(ask(None, Some(seconds(2)))).is_ok(), "nothing measured, nothing known");
        assert!(gate.admit(ask(Some(seconds(99)), None)).is_ok());
        let refusal = gate.admit(ask(Some(seconds(5)), Some(seconds(2)))).expect_err("too late");
        assert_eq!(refusal.retry_after(), Some(seconds(3)));
        assert_eq!(refusal.http().status, 429);
    }
}
