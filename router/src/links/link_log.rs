//! Decides what to log about a link: its failure and its recovery once each, not every attempt.

use std::time::Duration;

use skein_node::clock::Timestamp;
use tonic::Code;

use super::worker_client::{CallError, Fault};

/// A router without ready workers is considered to be starting for this long; after that the operator should
/// look.
const STARTING: Duration = Duration::from_secs(30);
/// Most reasons logged per outage, in case the text changes with every attempt.
const MAX_REASONS: usize = 4;
/// Longest text of a worker that is repeated in the log, characters.
const MAX_REASON_CHARS: usize = 200;
/// Start of a worker's answer while its weights load, which may take any time.
const LOADING: &str = "the model is loading";

/// How far a session with a worker got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reached {
    /// No connection was made.
    Nothing,
    /// A connection was made.
    Process,
    /// Its info was read.
    Worker,
    /// Its watch delivered an event.
    Watch,
    /// It became ready.
    Service,
}

/// What has been logged about one link.
#[derive(Debug, Default)]
pub(super) struct LinkLog {
    failing_since: Option<Timestamp>,
    /// Since when it answers that it cannot serve.
    unready_since: Option<Timestamp>,
    /// Reasons logged since the link last worked.
    logged: Vec<String>,
}

impl LinkLog {
    /// Records that a session ended; returns the reason if it should be logged. The end of a session that
    /// worked is not logged: the next attempt shows whether the worker is gone.
    pub(super) fn ended(&mut self, now: Timestamp, reached: Reached, error: &CallError) -> Option<String> {
        if reached >= Reached::Watch {
            return None;
        }
        self.failing_since.get_or_insert(now);
        let reason = self.reason(now, reached, error)?;
        if self.logged.len() >= MAX_REASONS || self.logged.contains(&reason) {
            return None;
        }
        self.logged.push(reason.clone());
        Some(reason)
    }

    /// Records that the link works; returns how long it did not, if that was logged.
    pub(super) fn works(&mut self, now: Timestamp) -> Option<Duration> {
        let before = std::mem::take(self);
        before.failing_since.filter(|_| !before.logged.is_empty()).map(|since| now.since(since))
    }

    fn reason(&mut self, now: Timestamp, reached: Reached, error: &CallError) -> Option<String> {
        let (Reached::Process, CallError::Fault(Fault { code: Some(Code::Unavailable), message })) =
            (reached, error)
        else {
            self.unready_since = None;
            return Some(describe(reached, error));
        };
        let since = *self.unready_since.get_or_insert(now);
        if message.starts_with(LOADING) || now.since(since) < STARTING {
            return None;
        }
        let unready = printable(message);
        Some(format!("answers, but cannot serve: {unready} (is this process among its own workers?)"))
    }
}

fn describe(reached: Reached, error: &CallError) -> String {
    let code = if let CallError::Fault(fault) = error { fault.code } else { None };
    let error = printable(&error.to_string());
    match (reached, code) {
        (Reached::Nothing, _) => format!("cannot be reached: {error}"),
        (Reached::Process, Some(Code::Unauthenticated)) => {
            format!(
                "does not accept this process: {error} (a worker needs the same --cluster-secret-file; a router that, or \
                 one of its --api-key values as --router-api-key)"
            )
        }
        (Reached::Process, Some(Code::Unimplemented)) => {
            format!("is neither a Skein worker nor a router: {error}")
        }
        (Reached::Process, _) => format!("does not answer like a Skein worker: {error}"),
        (Reached::Worker | Reached::Watch | Reached::Service, _) => format!("its watch fails: {error}"),
    }
}

/// One line of bounded length, because the text comes from outside.
fn printable(text: &str) -> String {
    let letter = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(letter).take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn answered(code: Code, message: &str) -> CallError {
        CallError::Fault(Fault { code: Some(code), message: message.to_owned() })
    }

    #[test]
    fn an_outage_of_hours_is_one_line_and_its_end_another() {
        let mut link = LinkLog::default();
        let refused = CallError::fault("tcp connect error: Connection refused");
        assert_eq!(link.ended(at(0), Reached::Service, &refused), None, "the next try tells");
        let reason = link.ended(at(1), Reached::Nothing, &refused).expect("logged at once");
        assert_eq!(reason, "cannot be reached: tcp connect error: Connection refused");
        for second in 2..7200 {
            assert_eq!(link.ended(at(second), Reached::Nothing, &refused), None);
        }
        assert_eq!(link.works(at(7201)), Some(Duration::from_secs(7200)));
        assert_eq!(link.works(at(7202)), None);
        assert!(link.ended(at(7300), Reached::Nothing, &refused).is_some(), "another outage");
    }

    #[test]
    fn each_reason_says_what_to_do() {
        let check = |reached, error: CallError, expected: &str| {
            let reason = LinkLog::default().ended(at(0), reached, &error).expect("logged at once");
            assert!(reason.contains(expected), "{reason}");
        };
        let key = answered(Code::Unauthenticated, "Incorrect API key provided.");
        check(Reached::Process, key, "API key provided. (a worker needs the same --cluster-secret-file");
        check(Reached::Process, answered(Code::Unauthenticated, ""), "as --router-api-key");
        let other = answered(Code::Unimplemented, "");
        check(Reached::Process, other, "is neither a Skein worker nor a router: Unimplemented: ");
        check(
            Reached::Process,
            CallError::fault("it failed"),
            "does not answer like a Skein worker: it failed",
        );
        check(Reached::Worker, CallError::fault("the watch ended"), "its watch fails: the watch ended");
        let busy = answered(Code::Unavailable, "busy");
        check(Reached::Worker, busy, "its watch fails: Unavailable: busy");
        check(Reached::Process, answered(Code::Internal, "a\nb\u{1b}[1m"), "Internal: a b [1m");
    }

    #[test]
    fn new_reasons_are_logged_up_to_a_limit() {
        let mut link = LinkLog::default();
        let mut said = 0;
        for try_number in 0..1000 {
            let error = CallError::fault(format!("fault {try_number}"));
            said += usize::from(link.ended(at(try_number), Reached::Nothing, &error).is_some());
            let long = CallError::fault("x".repeat(100_000));
            let reason = link.ended(at(try_number), Reached::Nothing, &long);
            assert!(reason.is_none_or(|reason| reason.len() < 2 * MAX_REASON_CHARS));
        }
        assert_eq!(said, MAX_REASONS - 1);
    }

    #[test]
    fn a_starting_peer_is_no_warning() {
        let mut link = LinkLog::default();
        let loading = answered(Code::Unavailable, "the model is loading; retry when health says SERVING");
        let empty = answered(Code::Unavailable, "No worker is ready: one is connecting.");
        for second in 0..3600 {
            assert_eq!(link.ended(at(second), Reached::Process, &loading), None);
        }
        assert_eq!(link.works(at(3600)), None);
        assert_eq!(link.ended(at(4000), Reached::Process, &empty), None);
        assert_eq!(link.ended(at(4029), Reached::Process, &empty), None);
        let reason = link.ended(at(4030), Reached::Process, &empty).expect("it has had its time");
        assert!(reason.contains("No worker is ready: one is connecting."), "{reason}");
        assert!(reason.contains("is this process among"), "{reason}");
        assert_eq!(link.works(at(4040)), Some(Duration::from_secs(40)));
    }
}
