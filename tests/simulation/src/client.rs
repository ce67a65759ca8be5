//! One client: it sends a request to a router and reads the answer. If its router dies it retries with the
//! same id. It may also cancel.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use skein_node::clock;
use skein_router::refusal::Refusal;
use tokio::time::Instant;

use crate::executor;
use crate::faults::Fault;
use crate::names::CLIENT;
use crate::network::Incoming;
use crate::process::Process;
use crate::random::Random;
use crate::reading::Reading;
use crate::reference::Answers;
use crate::served::{Ask, Part, Served, Tokens};
use crate::workload;
use crate::world::World;

/// Number of faults after which a router may give up a request, because each move has a fault as its cause.
const FAULTS_TO_LOSE: usize = 4;
/// Longest duration of a fault's effects, such as a stuck engine or a blocked link.
const FAULTS_LAST: Duration = Duration::from_secs(40);
/// This long after the last fault every process is up, connected and trusted again.
pub const SETTLED_AFTER: Duration = Duration::from_secs(75);

/// Final result of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It received the whole answer.
    Completed,
    /// The client cancelled its request.
    Cancelled,
    /// Its deadline passed.
    TooLate,
}

/// Why an attempt ended.
enum Ended {
    Done(Outcome),
    /// The router refused or gave up.
    Refused(Refusal),
    /// The connection to the router broke.
    Disconnected(String),
}

/// One client, from its first attempt to its outcome.
pub struct Client {
    world: Arc<World>,
    spec: workload::Client,
    random: Random,
    process: Process,
    answers: Answers,
    started: Instant,
    /// Time when the last fault is over.
    calm_at: Instant,
}

impl Client {
    /// A client that starts now.
    pub async fn new(world: Arc<World>, spec: workload::Client, random: Random, calm_at: Instant) -> Self {
        let answers = Answers::to(&world.plan, &spec.ask.request).await;
        // A client's process never dies.
        let process = Process::new(Random::new(0, "client"), 0);
        Self { world, spec, random, process, answers, started: Instant::now(), calm_at }
    }

    /// Retries until the client has its answer.
    pub async fn run(self) -> Outcome {
        let cancel = self.spec.cancels_after;
        let outcome = tokio::select! {
            biased;
            outcome = self.ask_until_done() => outcome,
            () = sleep_or_never(cancel) => Outcome::Cancelled,
        };
        self.say(format_args!("{outcome:?}"));
        outcome
    }

    async fn ask_until_done(&self) -> Outcome {
        let mut reading = Reading::new(&self.spec.ask);
        loop {
            let asked_at = executor::elapsed();
            if self.spec.resumes {
                reading.resume();
            } else {
                reading = Reading::new(&self.spec.ask);
            }
            match self.try_once(&mut reading).await {
                Ended::Done(outcome) => return outcome,
                Ended::Refused(Refusal::DeadlineExceeded { .. }) if self.time_left().is_some() => {
                    // A request that would come too late may be refused before its deadline.
                    return Outcome::TooLate;
                }
                Ended::Refused(refusal) => {
                    self.say(format_args!("is refused: {refusal:?}"));
                    self.judge(&refusal, asked_at);
                    if matches!(refusal, Refusal::VersionGone) {
                        // What it has cannot be continued.
                        reading = Reading::new(&self.spec.ask);
                    }
                }
                Ended::Disconnected(why) => self.say(format_args!("is cut off: {why}")),
            }
            tokio::time::sleep(self.random.millis(10, 1000)).await;
        }
    }

    async fn try_once(&self, reading: &mut Reading) -> Ended {
        if reading.is_whole() {
            return Ended::Done(Outcome::Completed);
        }
        let router = self.random.pick(&self.world.plan.routers);
        let time_left = self.time_left();
        if time_left.is_some_and(|left| left.is_zero()) {
            return Ended::Done(Outcome::TooLate);
        }
        let mut ask = self.spec.ask.clone();
        ask.has = reading.tokens_by_sample();
        ask.request.resume = self.spec.resumes.then(|| Arc::new(reading.resume_from(&self.answers)));
        ask.request.version = reading.version();
        ask.request.deadline = time_left.map(|left| clock::now() + left);
        self.say(format_args!("asks {router}"));
        let network = &self.world.network;
        let connection = match network.connect(CLIENT, &self.process, router).await {
            Ok(connection) => connection,
            Err(why) => return Ended::Disconnected(why),
        };
        let start = move |served| async move { Ok(answers(served, ask).await) }.boxed();
        match network.call(connection, Box::new(start)).await {
            Ok(messages) => self.read(reading, messages).await,
            Err(status) => Ended::Disconnected(status.to_string()),
        }
    }

    async fn read(&self, reading: &mut Reading, mut messages: Incoming<Result<Part, Refusal>>) -> Ended {
        loop {
            match messages.next().await {
                Some(Ok(Ok(part))) => {
                    let Part { delta, version } = &part;
                    self.say(format_args!(
                        "s{} @{} +{} of {version}",
                        delta.sample_index,
                        delta.from_position,
                        delta.tokens.len()
                    ));
                    if let Err(wrong) = reading.take(&part, &self.answers) {
                        self.violated(format_args!("{wrong}"));
                    }
                }
                Some(Ok(Err(refusal))) => return Ended::Refused(refusal),
                Some(Err(status)) => return Ended::Disconnected(status.to_string()),
                None if reading.is_whole() => return Ended::Done(Outcome::Completed),
                None => {
                    self.violated(format_args!("its stream ends early, after {} tokens", reading.tokens()));
                    return Ended::Done(Outcome::Completed);
                }
            }
            sleep_or_now(self.spec.reads_every).await;
        }
    }

    fn time_left(&self) -> Option<Duration> {
        self.spec.timeout.map(|timeout| timeout.saturating_sub(self.started.elapsed()))
    }

    /// Checks that a client may get this refusal at this time.
    fn judge(&self, refusal: &Refusal, asked_at: Duration) {
        let calm = Instant::now() >= self.calm_at + SETTLED_AFTER;
        let allowed = match refusal {
            // Overload and a deadline that is too short occur without faults.
            Refusal::Overloaded { .. } | Refusal::DeadlineTooShort { .. } => true,
            Refusal::NoReadyWorker { .. } => !calm,
            // The only worker with other weights came back with the usual ones. The client is told after it
            // has waited for one, so what counts is when it asked.
            Refusal::VersionGone => {
                let asked = Instant::now() - executor::elapsed().saturating_sub(asked_at);
                asked < self.calm_at + SETTLED_AFTER && self.world.plan.faults.contains(&Fault::OtherWeights)
            }
            Refusal::WorkersLost { .. } => {
                let since = asked_at.saturating_sub(FAULTS_LAST);
                !calm && self.world.log.disturbances_since(since) >= FAULTS_TO_LOSE
            }
            _ => false,
        };
        if !allowed {
            self.violated(format_args!("it must not be refused with: {refusal}"));
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        self.world.log.say(&self.spec.ask.request.id, what);
    }

    fn violated(&self, what: std::fmt::Arguments<'_>) {
        self.world.log.violated(&self.spec.ask.request.id, what);
    }
}

/// A refusal travels over the network like any answer.
pub(crate) async fn answers(served: Arc<Served>, ask: Ask) -> Incoming<Result<Part, Refusal>> {
    let refused = |refusal| futures::stream::iter([Err(refusal)]).boxed();
    let tokens: Tokens = match &served.front {
        Some(front) => front.submit(ask).await.unwrap_or_else(refused),
        None => refused(Refusal::Internal),
    };
    tokens.map(Ok).boxed()
}

async fn sleep_or_never(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

async fn sleep_or_now(time: Option<Duration>) {
    if let Some(time) = time {
        tokio::time::sleep(time).await;
    }
}
