//! Says when the link to a worker fails and when it is back: once each, not at every try.

use std::time::Duration;

use skein_node::clock::Timestamp;
use tonic::Code;

use super::worker_client::{CallError, Fault};

/// A router that answers and has no worker for a gateway is starting, for so long. After that somebody should look.
const STARTING: Duration = Duration::from_secs(30);
/// Reasons that are said of one outage: a text that changes at every try must not fill the log.
const MAX_REASONS: usize = 4;
/// Longest text of a worker that is repeated in the log, characters.
const MAX_REASON_CHARS: usize = 200;
/// What a worker answers until its weights are there; it may take any time.
const LOADING: &str = "the model is loading";

/// How far a session with a worker came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reached {
    /// Nobody.
    Nothing,
    /// Something that takes connections.
    Process,
    /// It has said what it serves.
    Worker,
    /// Its watch has said something.
    Watch,
    /// It takes requests.
    Service,
}

/// What the log says of one link.
#[derive(Debug, Default)]
pub(super) struct LinkLog {
    failing_since: Option<Timestamp>,
    /// It answers, and says that it cannot serve.
    unready_since: Option<Timestamp>,
    /// The reasons said since the link worked.
    said: Vec<String>,
}

impl LinkLog {
    /// A session ended; returns the reason if it is to be said. One that was heard has not failed: the next try tells
    /// whether the worker is gone.
    pub(super) fn ended(&mut self, now: Timestamp, reached: Reached, error: &CallError) -> Option<String> {
        if reached >= Reached::Watch {
            return None;
        }
        self.failing_since.get_or_insert(now);
        let reason = self.reason(now, reached, error)?;
        if self.said.len() >= MAX_REASONS || self.said.contains(&reason) {
            return None;
        }
        self.said.push(reason.clone());
        Some(reason)
    }

    /// The worker is heard; returns how long it was not, if that was said.
    pub(super) fn works(&mut self, now: Timestamp) -> Option<Duration> {
        let before = std::mem::take(self);
        before.failing_since.filter(|_| !before.said.is_empty()).map(|since| now.since(since))
    }

    fn reason(&mut self, now: Timestamp, reached: Reached, error: &CallError) -> Option<String> {
        let (Reached::Process, CallError::Fault(Fault { code: Some(Code::Unavailable), message })) =
            (reached, error)
        else {
            self.unready_since = None;
            return Some(in_words(reached, error));
        };
        let since = *self.unready_since.get_or_insert(now);
        if message.starts_with(LOADING) || now.since(since) < STARTING {
            return None;
        }
        let unready = printable(message);
        Some(format!("answers, but cannot serve: {unready} (do its own workers lead back to this process?)"))
    }
}

fn in_words(reached: Reached, error: &CallError) -> String {
    let code = if let CallError::Fault(fault) = error { fault.code } else { None };
    let error = printable(&error.to_string());
    match (reached, code) {
        (Reached::Nothing, _) => format!("cannot be reached: {error}"),
        (Reached::Process, Some(Code::Unauthenticated)) => {
            "asks for an API key: --router-api-key must be one of its own --api-key".to_owned()
        }
        (Reached::Process, Some(Code::Unimplemented)) => {
            format!("is neither a Skein worker nor a router: {error}")
        }
        (Reached::Process, _) => format!("does not answer as a Skein worker does: {error}"),
        (Reached::Worker | Reached::Watch | Reached::Service, _) => format!("its watch fails: {error}"),
    }
}

/// One line of bounded length: the text may come from anybody.
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
    fn a_worker_that_is_dead_for_hours_is_one_line_and_one_when_it_is_back() {
        let mut link = LinkLog::default();
        let refused = CallError::fault("tcp connect error: Connection refused");
        assert_eq!(link.ended(at(0), Reached::Service, &refused), None, "the next try tells");
        let reason = link.ended(at(1), Reached::Nothing, &refused).expect("said at once");
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
            let reason = LinkLog::default().ended(at(0), reached, &error).expect("said at once");
            assert!(reason.contains(expected), "{reason}");
        };
        let key = answered(Code::Unauthenticated, "Incorrect API key provided.");
        check(Reached::Process, key, "asks for an API key: --router-api-key");
        let other = answered(Code::Unimplemented, "");
        check(Reached::Process, other, "is neither a Skein worker nor a router: Unimplemented: ");
        check(
            Reached::Process,
            CallError::fault("it failed"),
            "does not answer as a Skein worker does: it failed",
        );
        check(Reached::Worker, CallError::fault("the watch ended"), "its watch fails: the watch ended");
        let busy = answered(Code::Unavailable, "busy");
        check(Reached::Worker, busy, "its watch fails: Unavailable: busy");
        check(Reached::Process, answered(Code::Internal, "a\nb\u{1b}[1m"), "Internal: a b [1m");
    }

    #[test]
    fn other_reasons_are_said_again_but_not_without_end() {
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
    fn who_is_starting_is_no_warning() {
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
        assert!(reason.contains("lead back to this process"), "{reason}");
        assert_eq!(link.works(at(4040)), Some(Duration::from_secs(40)));
    }
}
