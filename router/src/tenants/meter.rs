//! What a key or a tenant has used of its limits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_node::clock::Timestamp;

use super::bucket::Bucket;

/// What a client should wait when as many requests run as may: none says when it ends.
const UNTIL_ONE_ENDS: Duration = Duration::from_secs(1);

/// Limits of a key or of a tenant; `None` = no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute.
    pub requests: Option<u64>,
    /// Uncached prompt tokens and output tokens a minute.
    pub tokens: Option<u64>,
    /// Requests that run or wait at once.
    pub concurrent: Option<u32>,
}

/// State of the limits of one key or tenant; kept when the file is read again.
#[derive(Debug, Default)]
pub struct Meter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    requests: Bucket,
    tokens: Bucket,
    running: u32,
}

/// What a request takes from the limits when it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// 1, or 0 for a further prompt of the same call, whose tokens may leave a debt.
    pub requests: u64,
    /// Its prompt tokens and expected output tokens.
    pub tokens: u64,
}

/// The limit that refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// Which one.
    pub limit: Limit,
    /// When to ask again.
    pub retry_after: Duration,
}

/// A kind of limit, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Requests a minute.
    Requests(u64),
    /// Tokens a minute.
    Tokens(u64),
    /// Requests at once.
    Concurrent(u32),
}

/// One limit for a client to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Units a minute.
    pub limit: u64,
    /// Units that are left now.
    pub remaining: u64,
    /// How long until all of them are there again.
    pub reset: Duration,
}

/// The limits of a key for a client to see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Requests; `None` = no limit.
    pub requests: Option<Quota>,
    /// Tokens; `None` = no limit.
    pub tokens: Option<Quota>,
}

impl Quotas {
    /// For each limit the one of which less is left.
    pub fn tighter(self, other: Self) -> Self {
        let tighter = |one: Option<Quota>, other: Option<Quota>| match (one, other) {
            (Some(one), Some(other)) if other.remaining < one.remaining => Some(other),
            (Some(one), _) => Some(one),
            (None, other) => other,
        };
        Self { requests: tighter(self.requests, other.requests), tokens: tighter(self.tokens, other.tokens) }
    }
}

impl Meter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a client may see of `limits`.
    pub fn quotas(&self, limits: &Limits, now: Timestamp) -> Quotas {
        let state = self.state();
        let quota = |bucket: &Bucket, limit: Option<u64>| {
            limit.map(|limit| Quota {
                limit,
                remaining: bucket.remaining(limit, now),
                reset: bucket.until_full(now),
            })
        };
        Quotas {
            requests: quota(&state.requests, limits.requests),
            tokens: quota(&state.tokens, limits.tokens),
        }
    }

    /// Returns what a request took and did not use, and its place.
    pub fn give(&self, limits: &Limits, unused: Ask) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        state.requests.give(unused.requests, limits.requests.unwrap_or(u64::MAX));
        state.tokens.give(unused.tokens, limits.tokens.unwrap_or(u64::MAX));
    }

    /// Takes tokens beyond those of the request's beginning.
    pub fn take_more(&self, limits: &Limits, tokens: u64, now: Timestamp) {
        if let Some(limit) = limits.tokens {
            self.state().tokens.take(tokens, limit, now);
        }
    }
}

impl State {
    fn check(&self, limits: &Limits, ask: Ask, now: Timestamp) -> Result<(), Over> {
        if let Some(most) = limits.concurrent.filter(|most| self.running >= *most) {
            return Err(Over { limit: Limit::Concurrent(most), retry_after: UNTIL_ONE_ENDS });
        }
        if ask.requests == 0 {
            // The first prompt of the call decided. A call of more tokens than the limit would never run.
            return Ok(());
        }
        let requests = limits.requests.map(|limit| (Limit::Requests(limit), &self.requests, ask.requests));
        let tokens = limits.tokens.map(|limit| (Limit::Tokens(limit), &self.tokens, ask.tokens));
        for (limit, bucket, units) in [requests, tokens].into_iter().flatten() {
            let (Limit::Requests(most) | Limit::Tokens(most)) = limit else { continue };
            let retry_after = bucket.wait(units, most, now);
            if !retry_after.is_zero() {
                return Err(Over { limit, retry_after });
            }
        }
        Ok(())
    }

    fn take(&mut self, limits: &Limits, ask: Ask, now: Timestamp) {
        self.running += 1;
        if let Some(limit) = limits.requests {
            self.requests.take(ask.requests, limit, now);
        }
        if let Some(limit) = limits.tokens {
            self.tokens.take(ask.tokens, limit, now);
        }
    }
}

/// Fails as [`take`] would, and takes nothing.
///
/// # Errors
/// As [`take`].
pub fn check(
    key: (&Limits, &Meter),
    tenant: (&Limits, &Meter),
    ask: Ask,
    now: Timestamp,
) -> Result<(), (Over, bool)> {
    key.1.state().check(key.0, ask, now).map_err(|over| (over, false))?;
    tenant.1.state().check(tenant.0, ask, now).map_err(|over| (over, true))
}

/// Takes `ask` from the limits of a key and of its tenant, from both or from neither.
///
/// # Errors
/// The limit that has no room; whether it is the tenant's.
pub fn take(
    key: (&Limits, &Meter),
    tenant: (&Limits, &Meter),
    ask: Ask,
    now: Timestamp,
) -> Result<(), (Over, bool)> {
    // Always in this order, so that two requests cannot wait for each other.
    let (mut of_key, mut of_tenant) = (key.1.state(), tenant.1.state());
    of_key.check(key.0, ask, now).map_err(|over| (over, false))?;
    of_tenant.check(tenant.0, ask, now).map_err(|over| (over, true))?;
    of_key.take(key.0, ask, now);
    of_tenant.take(tenant.0, ask, now);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Ask = Ask { requests: 1, tokens: 100 };

    fn now() -> Timestamp {
        Timestamp::from_start(Duration::from_secs(100))
    }

    #[test]
    fn a_request_takes_from_both_or_from_neither() {
        let (key, tenant) = (Meter::default(), Meter::default());
        let of_key = Limits { requests: Some(10), ..Limits::default() };
        let of_tenant = Limits { tokens: Some(250), ..Limits::default() };
        let ask = || take((&of_key, &key), (&of_tenant, &tenant), ONE, now());
        assert_eq!((ask(), ask()), (Ok(()), Ok(())));
        let over = Over { limit: Limit::Tokens(250), retry_after: Duration::from_secs(12) };
        assert_eq!(ask(), Err((over, true)));
        assert_eq!(key.quotas(&of_key, now()).requests.map(|quota| quota.remaining), Some(8));
        assert_eq!((key.state().running, tenant.state().running), (2, 2));
        tenant.give(&of_tenant, Ask { requests: 0, tokens: 60 });
        assert_eq!(tenant.quotas(&of_tenant, now()).tokens.map(|quota| quota.remaining), Some(110));
    }

    #[test]
    fn requests_at_once_are_bounded_and_without_limits_nothing_is() {
        let (key, tenant) = (Meter::default(), Meter::default());
        let (two, none) = (Limits { concurrent: Some(2), ..Limits::default() }, Limits::default());
        let ask = || take((&two, &key), (&none, &tenant), ONE, now()).map_err(|(over, _)| over.limit);
        assert_eq!((ask(), ask(), ask()), (Ok(()), Ok(()), Err(Limit::Concurrent(2))));
        key.give(&two, ONE);
        assert_eq!(ask(), Ok(()));
        assert_eq!(tenant.quotas(&none, now()), Quotas::default());
        let free = Meter::default();
        (0..1000).for_each(|_| assert!(take((&none, &free), (&none, &tenant), ONE, now()).is_ok()));
    }

    #[test]
    fn further_prompts_of_a_call_leave_a_debt() {
        let (key, tenant) = (Meter::default(), Meter::default());
        let (limits, none) = (Limits { tokens: Some(150), ..Limits::default() }, Limits::default());
        let take = |ask| take((&limits, &key), (&none, &tenant), ask, now()).map_err(|(over, _)| over.limit);
        let further = Ask { requests: 0, ..ONE };
        assert_eq!((take(ONE), take(further), take(further)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(take(Ask { requests: 1, tokens: 1 }), Err(Limit::Tokens(150)));
        let left = |after| {
            key.quotas(&limits, now() + Duration::from_secs(after)).tokens.map(|quota| quota.remaining)
        };
        assert_eq!((left(0), left(60), left(120)), (Some(0), Some(0), Some(150)));
    }

    #[test]
    fn the_tighter_limit_is_shown() {
        let quota = |limit, remaining| Some(Quota { limit, remaining, reset: Duration::ZERO });
        let one = Quotas { requests: quota(10, 4), tokens: None };
        let other = Quotas { requests: quota(100, 3), tokens: quota(5, 5) };
        let expected = Quotas { requests: quota(100, 3), tokens: quota(5, 5) };
        assert_eq!((one.tighter(other), other.tighter(one)), (expected, expected));
    }
}
