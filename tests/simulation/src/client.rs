//! One client: it asks a router, reads, comes back under the same id when its router dies, and goes away when it likes.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use skein_node::clock;
use skein_router::refusal::Refusal;
use skein_router::request::TokenDelta;
use tokio::time::Instant;

use crate::executor;
use crate::names::CLIENT;
use crate::network::Incoming;
use crate::process::Process;
use crate::random::Random;
use crate::reading::Reading;
use crate::reference::{self, Answer};
use crate::served::{Ask, Served, Tokens};
use crate::workload;
use crate::world::World;

/// Faults that the router may need to give a request up: each move takes one.
const FAULTS_TO_LOSE: usize = 4;
/// For so long a fault may be felt: an engine that got stuck, a link that was blocked.
const FAULTS_LAST: Duration = Duration::from_secs(40);
/// After the last fault everybody is up, connected and trusted again within this time.
pub const SETTLED_AFTER: Duration = Duration::from_secs(75);

/// How a client fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It has its whole answer.
    Completed,
    /// It went away.
    Cancelled,
    /// Its deadline passed.
    TooLate,
}

/// What ended one try.
enum Ended {
    Done(Outcome),
    /// The router refused, or gave up.
    Refused(Refusal),
    /// The way to the router broke.
    Broken(String),
}

/// One client, from its first try to its end.
pub struct Client {
    world: Arc<World>,
    spec: workload::Client,
    random: Random,
    process: Process,
    answer: Answer,
    started: Instant,
    /// When nothing is disturbed any more.
    calm_at: Instant,
}

impl Client {
    /// A client that begins now.
    pub async fn new(world: Arc<World>, spec: workload::Client, random: Random, calm_at: Instant) -> Self {
        let answer = reference::answer(&world.plan, &spec.ask.request).await;
        // Clients live as long as their world.
        let process = Process::new(Random::new(0, "client"), 0);
        Self { world, spec, random, process, answer, started: Instant::now(), calm_at }
    }

    /// Asks until it has its answer.
    pub async fn live(self) -> Outcome {
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
                    // It may be refused ahead of time, when it is clear that it comes too late.
                    return Outcome::TooLate;
                }
                Ended::Refused(refusal) => {
                    self.say(format_args!("is refused: {refusal:?}"));
                    self.judge(&refusal, asked_at);
                }
                Ended::Broken(why) => self.say(format_args!("is cut off: {why}")),
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
        ask.request.resume = self.spec.resumes.then(|| Arc::new(reading.resume_from(&self.answer)));
        ask.request.deadline = time_left.map(|left| clock::now() + left);
        self.say(format_args!("asks {router}"));
        let network = &self.world.network;
        let connection = match network.connect(CLIENT, &self.process, router).await {
            Ok(connection) => connection,
            Err(why) => return Ended::Broken(why),
        };
        let start = move |served| async move { Ok(answers(served, ask).await) }.boxed();
        match network.call(connection, false, Box::new(start)).await {
            Ok(messages) => self.read(reading, messages).await,
            Err(status) => Ended::Broken(status.to_string()),
        }
    }

    async fn read(
        &self,
        reading: &mut Reading,
        mut messages: Incoming<Result<TokenDelta, Refusal>>,
    ) -> Ended {
        loop {
            match messages.next().await {
                Some(Ok(Ok(delta))) => {
                    self.say(format_args!(
                        "s{} @{} +{}",
                        delta.sample_index,
                        delta.from_position,
                        delta.tokens.len()
                    ));
                    if let Err(wrong) = reading.take(&delta, &self.answer) {
                        self.violated(format_args!("{wrong}"));
                    }
                }
                Some(Ok(Err(refusal))) => return Ended::Refused(refusal),
                Some(Err(status)) => return Ended::Broken(status.to_string()),
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
        self.spec.patience.map(|patience| patience.saturating_sub(self.started.elapsed()))
    }

    /// Which refusals a client may get, and when.
    fn judge(&self, refusal: &Refusal, asked_at: Duration) {
        let calm = Instant::now() >= self.calm_at + SETTLED_AFTER;
        let allowed = match refusal {
            // Load is no fault.
            Refusal::Overloaded { .. } => true,
            Refusal::NoReadyWorker { .. } => !calm,
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

/// A refusal is an answer like another: the network carries it.
pub(crate) async fn answers(served: Arc<Served>, ask: Ask) -> Incoming<Result<TokenDelta, Refusal>> {
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
