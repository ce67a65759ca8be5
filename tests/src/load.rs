//! Streams without end, checked one by one as they end: arrivals that do not wait for answers (open loop), or clients
//! that each have one request under way (closed loop).

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
use crate::seeded::Seeded;

/// Most streams of an open loop at once; arrivals beyond it are counted and left out.
const MAX_RUNNING: usize = 400;
/// Differences that are kept in words.
const KEPT_DIFFERENCES: usize = 5;

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Target {
    /// `http://host:port`, one for each front; requests take them in turn.
    pub urls: Vec<String>,
    /// Whether clients go to the next front when a connection is lost. If not, a lost connection is a failure.
    pub reconnects: bool,
}

impl Target {
    /// One front, no second try.
    pub fn plain(url: &str) -> Self {
        Self { urls: vec![url.to_owned()], reconnects: false }
    }
}

/// When requests come.
#[derive(Debug, Clone, Copy)]
pub enum Arrivals {
    /// So many a second, at random, whatever happens.
    Open(f64),
    /// So many clients, each with its next request when the last one has ended.
    Closed(usize),
}

/// A stream that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its `request_id`.
    pub id: String,
    /// Send to first content.
    pub ttft: Option<Duration>,
    /// Longest silence after that.
    pub longest_gap: Duration,
    /// Connections after the first one.
    pub reconnects: u32,
}

impl Ended {
    /// The longest time in which nothing came, before the first token or after it.
    pub fn silence(&self) -> Duration {
        self.longest_gap.max(self.ttft.unwrap_or_default())
    }
}

/// What became of all streams.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Sent.
    pub begun: u64,
    /// Did not end as a stream should.
    pub failed: u64,
    /// Tokens, summed over the streams.
    pub lost: u64,
    /// Tokens that came twice.
    pub duplicated: u64,
    /// Tokens and other parts that changed.
    pub altered: u64,
    /// Tokens received.
    pub tokens: u64,
    /// Arrivals that found [`MAX_RUNNING`] streams under way and were left out.
    pub left_out: u64,
    /// All streams that have ended.
    pub ended: Vec<Ended>,
    /// The first differences, in words.
    pub differences: Vec<String>,
}

impl Tally {
    fn add(&mut self, id: String, history: &History, verdict: Verdict) {
        self.failed += u64::from(verdict.failed);
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

/// A running load.
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
    book: Mutex<Book>,
}

/// Held for moments.
#[derive(Default)]
struct Book {
    tally: Tally,
    running: BTreeSet<u64>,
}

impl Load {
    /// Starts sending. `tag` begins every request id: two loads at the same cluster need different ones.
    pub fn start(corpus: Arc<Corpus>, target: Target, arrivals: Arrivals, seed: u64, tag: &str) -> Self {
        let client = reqwest::Client::new();
        let state = State { corpus, target, client, tag: format!("{tag}-{seed}"), book: Mutex::default() };
        let state = Arc::new(state);
        let (stop, stopped) = watch::channel(false);
        let task = match arrivals {
            Arrivals::Open(per_second) => {
                tokio::spawn(open_loop(state.clone(), per_second, Seeded::new(seed), stopped))
            }
            Arrivals::Closed(clients) => tokio::spawn(closed_loop(state.clone(), clients, stopped)),
        };
        Self { state, stop, task }
    }

    /// Streams begun and ended so far.
    pub fn counts(&self) -> (u64, u64) {
        let book = self.state.book();
        (book.tally.begun, book.tally.ended.len() as u64)
    }

    /// Streams under way.
    pub fn running(&self) -> usize {
        self.state.book().running.len()
    }

    /// Waits until every stream begun before this call has ended; returns how long it took, `None` if longer than
    /// `within`.
    pub async fn all_begun_have_ended(&self, within: Duration) -> Option<Duration> {
        let begun = self.counts().0;
        let start = clock::now();
        while clock::now().since(start) < within {
            if self.state.book().running.first().is_none_or(|&first| first >= begun) {
                return Some(clock::now().since(start));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// Sends no more, and waits for what is under way.
    pub async fn finish(self) -> Tally {
        self.stop.send_replace(true);
        self.task.await.expect("no stream panics");
        self.state.book().tally.clone()
    }
}

impl State {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> u64 {
        let mut book = self.book();
        let number = book.tally.begun;
        book.tally.begun += 1;
        book.running.insert(number);
        number
    }

    /// One stream, from its sending to its judgement.
    async fn run(&self, number: u64) {
        let id = format!("{}-{number}", self.tag);
        let (case, body) = self.corpus.request(number, &id);
        let Target { urls, reconnects } = &self.target;
        let first = number as usize % urls.len();
        let history = match reconnects {
            true => client::follow(&self.client, urls, case.path, &body, first).await,
            false => client::stream_once(&self.client, &format!("{}{}", urls[first], case.path), &body).await,
        };
        let verdict = compare(&history, &case.expected);
        let mut book = self.book();
        book.running.remove(&number);
        book.tally.add(id, &history, verdict);
    }
}

async fn open_loop(state: Arc<State>, per_second: f64, mut dice: Seeded, mut stop: watch::Receiver<bool>) {
    let mut streams = JoinSet::new();
    let mut next = clock::now();
    loop {
        next = next + dice.arrival(per_second);
        tokio::select! {
            () = tokio::time::sleep(next.since(clock::now())) => {}
            _ = stop.wait_for(|&stop| stop) => break,
        }
        while let Some(ended) = streams.try_join_next() {
            ended.expect("no stream panics");
        }
        if streams.len() >= MAX_RUNNING {
            state.book().tally.left_out += 1;
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
