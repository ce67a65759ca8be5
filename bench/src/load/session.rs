//! One session: when it starts, and its turns.

use std::time::Duration;

use skein_node::clock::{self, Timestamp};
use tokio::sync::mpsc;

use super::arrivals::Arrivals;
use super::client::Server;
use super::metrics::Record;
use super::pace::Pace;
use super::workload::Session;

/// Sessions with their send times: their own, or those of the arrival process.
pub(super) fn arrival_times(
    sessions: Vec<Session>,
    pace: &Pace,
) -> impl Iterator<Item = (Session, Duration)> + use<> {
    let mut arrivals = pace.request_rate.map(|rate| Arrivals::new(rate, pace.burstiness, pace.seed));
    sessions.into_iter().map(move |session| {
        let next = arrivals.as_mut().and_then(Iterator::next);
        let intended = session.at.or(next).unwrap_or_default();
        (session, intended)
    })
}

/// Sends the turns one after another, each with the conversation so far.
pub(super) async fn run_session(
    server: &Server,
    session: Session,
    intended: Option<Duration>,
    start: Timestamp,
    done: &mpsc::Sender<Record>,
) {
    let mut prompt = Vec::new();
    let mut intended = intended;
    for turn in session.turns {
        prompt.extend(turn.tokens);
        // Only a session's first turn has an intended time; later turns follow the answer.
        let meant = intended.take().unwrap_or_else(|| clock::now().since(start));
        let (record, answer) = server.complete(&prompt, turn.output_tokens, meant, start).await;
        prompt.extend(answer);
        let failed = record.error.is_some();
        if done.send(record).await.is_err() || failed {
            return;
        }
    }
}
