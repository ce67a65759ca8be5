//! Load whose streams are checked one by one as they end. In an open loop arrivals do not wait for answers;
//! in a closed loop each client has one request in flight.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skein_node::clock;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::check::{Verdict, compare};
use crate::client;
use crate::history::History;
use crate::requests::Corpus;
use crate::seeded::SeededRng;

/// Most concurrent streams of an open loop; further arrivals are counted and skipped.
const MAX_RUNNING: usize = 400;
/// Number of differences to keep descriptions of.
const KEPT_DIFFERENCES: usize = 5;

/// The servers that requests go to.
#[derive(Debug, Clone)]
pub struct Target {
    /// `http://host:port` of each server; requests use them in turn.
    pub urls: Vec<String>,
    /// Whether clients try the next server when a connection is lost. If not, a lost connection is a failure.
    pub reconnects: bool,
}

impl Target {
    /// One server, no reconnects.
    pub fn plain(url: &str) -> Self {
        Self { urls: vec![url.to_owned()], reconnects: false }
    }
}

/// The arrival process of requests.
#[derive(Debug, Clone, Copy)]
pub enum Arrivals {
    /// A Poisson process with this many requests per second, independent of answers.
    Open(f64),
    /// This many clients, each of which sends its next request when the last one has ended.
    Closed(usize),
}

/// Timing of a stream that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The stream's `request_id`.
    pub id: String,
    /// Time from sending to the first content.
    pub ttft: Option<Duration>,
    /// Longest gap after the first content.
    pub longest_gap: Duration,
    /// Connections after the first one.
    pub reconnects: u32,
}

impl Ended {
    /// The longest time without content, before the first token or after it.
    pub fn silence(&self) -> Duration {
        self.longest_gap.max(self.ttft.unwrap_or_default())
    }
}

/// Results of all streams.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Number of streams that were started.
    pub begun: u64,
    /// Streams that did not end properly.
    pub failed: u64,
    /// Number of streams answered with 429 or 503.
    pub refused: u64,
    /// Tokens missing, over all streams.
    pub lost: u64,
    /// Tokens that arrived more than once.
    pub duplicated: u64,
    /// Tokens and other parts that differ.
    pub altered: u64,
    /// Number of tokens received over all streams.
    pub tokens: u64,
    /// Arrivals skipped because [`MAX_RUNNING`] streams were in flight.
    pub left_out: u64,
    /// All streams that have ended.
    pub ended: Vec<Ended>,
    /// Descriptions of the first differences.
    pub differences: Vec<String>,
}

impl Tally {
    fn add(&mut self, id: String, history: &History, verdict: Verdict) {
        self.failed += u64::from(verdict.failed);
        self.refused += u64::from(matches!(history.status, 429 | 503));
        self.lost += verdict.lost;
        self.duplicated += verdict.duplicated;
        self.altered += verdict.altered;
        self.tokens += history.choices.values().map(|choice| choice.token_ids.len() as u64).sum::<u64>();
        if let Some(first) = verdict.first
            && self.differences.len() < KEPT_DIFFERENCES
        {
            self.differences.push(format!("{id}: {first}"));
        }
        let &History { ttft, longest_gap, reconnects, .. } = history;
        self.ended.push(Ended { id, ttft, longest_gap, reconnects });
    }
}

/// A running load; [`Load::finish`] stops it.
pub struct Load {
    state: Arc<State>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

struct State {
    corpus: Arc<Corpus>,
    target: Target,
    client: reqwest::Client,
    tag: String,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    tally: Tally,
    running: BTreeSet<u64>,
}

impl Load {
    /// Starts sending. Every request id begins with `tag`; two loads on the same cluster need different ones.
    pub fn start(corpus: Arc<Corpus>, target: Target, arrivals: Arrivals, seed: u64, tag: &str) -> Self {
        let client = reqwest::Client::new();
        let state =
            State { corpus, target, client, tag: format!("{tag}-{seed}"), progress: Mutex::default() };
        let state = Arc::new(state);
        let (stop, stopped) = watch::channel(false);
        let task = match arrivals {
            Arrivals::Open(per_second) => {
                tokio::spawn(open_loop(state.clone(), per_second, SeededRng::new(seed), stopped))
            }
            Arrivals::Closed(clients) => tokio::spawn(closed_loop(state.clone(), clients, stopped)),
        };
        Self { state, stop, task }
    }

    /// Number of streams begun and ended so far.
    pub fn counts(&self) -> (u64, u64) {
        let progress = self.state.progress();
        (progress.tally.begun, progress.tally.ended.len() as u64)
    }

    /// Number of streams in flight.
    pub fn running(&self) -> usize {
        self.state.progress().running.len()
    }

    /// Reconnects of the streams that have ended.
    pub fn reconnects(&self) -> u32 {
        self.state.progress().tally.ended.iter().map(|ended| ended.reconnects).sum()
    }

    /// Waits until every stream begun before this call has ended. Returns how long it took, or `None` if
    /// longer than `within`.
    pub async fn all_begun_have_ended(&self, within: Duration) -> Option<Duration> {
        let begun = self.counts().0;
        let start = clock::now();
        while clock::now().since(start) < within {
            if self.state.progress().running.first().is_none_or(|&first| first >= begun) {
                return Some(clock::now().since(start));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// Stops sending and waits for the streams in flight.
    pub async fn finish(self) -> Tally {
        self.stop.send_replace(true);
        self.task.await.expect("no stream panics");
        self.state.progress().tally.clone()
    }
}

impl State {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> u64 {
        let mut progress = self.progress();
        let number = progress.tally.begun;
        progress.tally.begun += 1;
        progress.running.insert(number);
        number
    }

    /// Sends one request, follows its stream and checks it.
    async fn run(&self, number: u64) {
        let id = format!("{}-{number}", self.tag);
        let (case, body) = self.corpus.request(number, &id);
        let Target { urls, reconnects } = &self.target;
        let first = number as usize % urls.len();
        let history = if *reconnects {
            client::follow(&self.client, urls, case.path, &body, first).await
        } else {
            client::stream_once(&self.client, &format!("{}{}", urls[first], case.path), &body).await
        };
        let verdict = compare(&history, &case.expected);
        let mut progress = self.progress();
        progress.running.remove(&number);
        progress.tally.add(id, &history, verdict);
    }
}

async fn open_loop(state: Arc<State>, per_second: f64, mut rng: SeededRng, mut stop: watch::Receiver<bool>) {
    let mut streams = JoinSet::new();
    let mut next = clock::now();
    loop {
        next = next + rng.arrival(per_second);
        tokio::select! {
            () = tokio::time::sleep(next.since(clock::now())) => {}
            _ = stop.wait_for(|&stop| stop) => break,
        }
        while let Some(ended) = streams.try_join_next() {
            ended.expect("no stream panics");
        }
        if streams.len() >= MAX_RUNNING {
            state.progress().tally.left_out += 1;
            continue;
        }
        let (number, state) = (state.begin(), state.clone());
        streams.spawn(async move { state.run(number).await });
    }
    while let Some(ended) = streams.join_next().await {
        ended.expect("no stream panics");
    }
}

async fn closed_loop(state: Arc<State>, clients: usize, stop: watch::Receiver<bool>) {
    let mut all = JoinSet::new();
    for _ in 0..clients {
        let (state, stop) = (state.clone(), stop.clone());
        all.spawn(async move {
            while !*stop.borrow() {
                let number = state.begin();
                state.run(number).await;
            }
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.expect("no stream panics");
    }
}
