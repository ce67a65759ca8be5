//! Admission: bounds the requests that run at once and the tokens they will cost. Pure except for the shared
//! counter, to which a [`Permit`] returns its share however its request ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::AdmissionConfig;
use crate::refusal::Refusal;

/// Shortest `retry-after` of a refusal.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);
/// Longest `retry-after` of a refusal.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The admission gate. Clones share one count.
#[derive(Debug, Clone)]
pub struct Admission {
    config: AdmissionConfig,
    running: Arc<Mutex<Running>>,
    rejections: Arc<Mutex<Rejections>>,
}

/// Requests that a limit of the queue refused, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rejections {
    /// By `max_num_queued_reqs`.
    pub by_requests: u64,
    /// By `max_num_queued_tokens`.
    pub by_tokens: u64,
}

/// The admitted requests that have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Running {
    /// Number of requests.
    pub requests: u32,
    /// Their uncached prompt tokens and expected output tokens.
    pub tokens: u64,
}

/// A request that asks for admission.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Uncached prompt tokens plus expected output tokens.
    pub tokens: u64,
    /// Predicted time to the first token on the best worker; `None` while no rate has been measured.
    pub first_token_after: Option<Duration>,
    /// Predicted time of the prefill alone on an idle worker; `None` as above.
    pub prefill_takes: Option<Duration>,
    /// Time until the request's deadline.
    pub time_left: Option<Duration>,
}

/// One admitted request. Dropping it frees its place.
#[derive(Debug)]
pub struct Permit {
    tokens: u64,
    running: Arc<Mutex<Running>>,
}

impl Admission {
    /// A gate with nothing admitted.
    pub fn new(config: AdmissionConfig) -> Self {
        Self { config, running: Arc::default(), rejections: Arc::default() }
    }

    /// Admits the request or refuses it at once.
    ///
    /// A deadline causes an early refusal only if even the best worker would miss it: as too short if an idle
    /// worker would miss it too, otherwise as overload. A request larger than the whole token limit is
    /// admitted when nothing else runs: it could never be served otherwise.
    pub fn admit(&self, candidate: Candidate) -> Result<Permit, Refusal> {
        if let (Some(wait), Some(left)) = (candidate.first_token_after, candidate.time_left)
            && wait > left
        {
            if let Some(needed) = candidate.prefill_takes.filter(|needed| *needed > left) {
                return Err(Refusal::DeadlineTooShort { needed, left });
            }
            let reason = format!(
                "the first token is due in {} ms, the deadline in {} ms",
                wait.as_millis(),
                left.as_millis()
            );
            return Err(overloaded(reason, wait - left));
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let retry_after = candidate.first_token_after.unwrap_or(Duration::from_secs(1));
        let AdmissionConfig { max_num_queued_reqs, max_num_queued_tokens } = self.config;
        if running.requests >= max_num_queued_reqs {
            self.count(|rejections| rejections.by_requests += 1);
            return Err(overloaded(
                format!("{max_num_queued_reqs} requests are running or queued"),
                retry_after,
            ));
        }
        if running.requests > 0 && running.tokens.saturating_add(candidate.tokens) > max_num_queued_tokens {
            self.count(|rejections| rejections.by_tokens += 1);
            let reason =
                format!("{} of {max_num_queued_tokens} tokens are running or queued", running.tokens);
            return Err(overloaded(reason, retry_after));
        }
        running.requests += 1;
        running.tokens += candidate.tokens;
        Ok(Permit { tokens: candidate.tokens, running: self.running.clone() })
    }

    fn count(&self, rejected: impl FnOnce(&mut Rejections)) {
        rejected(&mut self.rejections.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Requests that a limit of the queue refused.
    pub fn rejections(&self) -> Rejections {
        *self.rejections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The admitted requests that have not ended.
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

    fn ask(tokens: u64) -> Candidate {
        Candidate { tokens, first_token_after: None, prefill_takes: None, time_left: None }
    }

    fn gate(max_num_queued_reqs: u32, max_num_queued_tokens: u64) -> Admission {
        Admission::new(AdmissionConfig { max_num_queued_reqs, max_num_queued_tokens })
    }

    /// Admits in order, keeping every permit, and compares which were admitted.
    fn check(gate: &Admission, tokens: &[u64], admitted: &[bool]) {
        let permits: Vec<_> = tokens.iter().map(|&tokens| gate.admit(ask(tokens))).collect();
        let got: Vec<bool> = permits.iter().map(Result::is_ok).collect();
        assert_eq!(got, admitted);
        let Rejections { by_requests, by_tokens } = gate.rejections();
        assert_eq!(by_requests + by_tokens, got.iter().filter(|admitted| !**admitted).count() as u64);
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
        let ask = |wait, left| Candidate {
            tokens: 1,
            first_token_after: wait,
            prefill_takes: None,
            time_left: left,
        };
        assert!(gate.admit(ask(Some(seconds(2)), Some(seconds(2)))).is_ok());
        assert!(gate.admit(ask(None, Some(seconds(2)))).is_ok(), "nothing measured, nothing known");
        assert!(gate.admit(ask(Some(seconds(99)), None)).is_ok());
        let refusal = gate.admit(ask(Some(seconds(5)), Some(seconds(2)))).expect_err("too late");
        assert_eq!(refusal.retry_after(), Some(seconds(3)));
        assert_eq!(refusal.http().status, 429);
    }

    #[test]
    fn a_deadline_that_an_idle_worker_would_miss_is_no_overload() {
        let gate = gate(9, 1000);
        let ms = |ms| Some(Duration::from_millis(ms));
        let refused = |prefill, wait, left| {
            let ask = Candidate {
                tokens: 1,
                first_token_after: ms(wait),
                prefill_takes: ms(prefill),
                time_left: ms(left),
            };
            gate.admit(ask).expect_err("too late")
        };
        let alone = refused(40, 50, 5);
        assert_eq!((alone.http().status, alone.retry_after()), (504, None));
        let message = "The first token would take 40 ms and the deadline is in 5 ms; allow more time.";
        assert_eq!(alone.to_string(), message);
        assert_eq!(refused(40, 500, 45).http().status, 429, "the queue is to blame");
    }
}
