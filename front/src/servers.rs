//! The workers and the choice among them. Pure: events and the time go in.
//!
//! What a worker carries is what this router has sent it and not seen ended; other clients of a worker are
//! not known. Rates are not known either, so the policy compares workers by its assumed ratio of prefill to
//! decode.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use serde_json::Value;
use skein_choice::breaker::{Breaker, Outcome};
use skein_choice::ledger::CurrentLoad;
use skein_choice::policy::{Demand, Pick, Picker, Policy, WorkerView};
use skein_choice::receipt::Receipt;
use skein_choice::worker_id::WorkerId;
use skein_node::clock::Timestamp;

use super::prefixes::Prefixes;
use super::prompt::Prompt;

/// A worker that refused a request as full gets no other one for this long, or until one of its requests
/// ends.
const FULL_FOR: Duration = Duration::from_secs(1);
/// Sequences that a worker runs at once: not known, so more than any runs.
const MANY_SEQUENCES: u32 = 1 << 20;
/// Missed health checks until a worker is down.
const MISSES: u32 = 2;

/// What a health check found.
#[derive(Debug, Clone, PartialEq)]
pub enum Check {
    /// The worker accepts requests. Its models, if they were asked for.
    Up(Option<Vec<Value>>),
    /// It responded, but does not accept requests.
    Refuses,
    /// Nobody listens there.
    Refused,
    /// No response within the time.
    Missed,
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Not checked yet.
    Unknown,
    /// Its last check found that it accepts requests.
    Up,
    /// Responds, but does not accept requests.
    NotReady,
    /// Does not respond; its requests are lost.
    Lost,
    /// This place of a name has no address.
    Absent,
}

impl Health {
    /// Word for messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "not checked yet",
            Self::Up => "up",
            Self::NotReady => "not ready",
            Self::Lost => "lost",
            Self::Absent => "without an address",
        }
    }
}

#[derive(Debug)]
struct Worker {
    name_hash: u64,
    health: Health,
    misses: u32,
    breaker: Breaker,
    full_until: Timestamp,
    in_flight: u32,
    /// Estimated tokens of prompts without a first byte.
    queued_tokens: u64,
    models: Vec<Value>,
    /// Ids of `models`, for comparison with requests.
    names: Vec<String>,
}

/// A request's place at a worker. Ends with [`Servers::ended`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assignment {
    /// Position of the worker.
    pub worker: u32,
    samples: u32,
    queued_tokens: u64,
    /// The prediction behind the choice.
    pub pick: Pick,
}

/// Why no worker was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// No worker passes its health checks.
    NoneUp,
    /// All that are up are full.
    Full,
}

/// A worker as operators see it.
#[derive(Debug, Clone, Copy)]
pub struct WorkerState {
    /// Result of its health checks.
    pub health: Health,
    /// Whether its breaker is open.
    pub open: bool,
    /// Requests in flight.
    pub in_flight: u32,
    /// Estimated tokens of prompts without a first byte.
    pub queued_tokens: u64,
}

/// All workers, what they are assumed to cache, and the policy.
#[derive(Debug)]
pub struct Servers {
    workers: Vec<Worker>,
    prefixes: Prefixes,
    picker: Picker,
    was_up: bool,
    /// Buffers reused between choices.
    hits: Vec<u32>,
    views: Vec<WorkerView>,
}

impl Servers {
    /// Workers by the hashes of their names, none checked yet.
    pub fn new(names: impl IntoIterator<Item = u64>, policy: Policy, max_index_bytes: usize) -> Self {
        let workers: Vec<Worker> = names.into_iter().map(Worker::new).collect();
        Self {
            prefixes: Prefixes::new(workers.len(), max_index_bytes),
            hits: vec![0; workers.len()],
            views: Vec::with_capacity(workers.len()),
            picker: Picker::new(policy),
            was_up: false,
            workers,
        }
    }

    /// Chooses a worker for `prompt` and records it there. Workers in `tried` get it only if no other can.
    ///
    /// # Errors
    /// If no worker accepts requests now.
    pub fn choose(
        &mut self,
        now: Timestamp,
        prompt: &Prompt,
        tried: &[u32],
        rng: &mut impl Rng,
    ) -> Result<Assignment, Unavailable> {
        self.hits.fill(0);
        self.prefixes.search(&prompt.marks, &mut self.hits);
        let listed = self.workers.iter().any(|worker| worker.lists(prompt.model.as_deref()));
        let up = |at: &u32| {
            let worker = &self.workers[*at as usize];
            worker.health == Health::Up && (!listed || worker.lists(prompt.model.as_deref()))
        };
        let up: Vec<u32> = (0..self.workers.len() as u32).filter(up).collect();
        if up.is_empty() {
            return Err(Unavailable::NoneUp);
        }
        let free: Vec<u32> =
            up.into_iter().filter(|&at| now >= self.workers[at as usize].full_until).collect();
        if free.is_empty() {
            return Err(Unavailable::Full);
        }
        // If all breakers are open although health checks pass, they are wrong together: then any worker is
        // better than none.
        let untried = |at: &u32| !tried.contains(at);
        let allowed = |at: &u32| self.workers[*at as usize].breaker.allows(now);
        let best = [
            free.iter().copied().filter(|at| untried(at) && allowed(at)).collect::<Vec<_>>(),
            free.iter().copied().filter(untried).collect(),
            free,
        ];
        let candidates = best.into_iter().find(|candidates| !candidates.is_empty()).unwrap_or_default();
        self.views.clear();
        self.views
            .extend(candidates.iter().map(|&at| self.workers[at as usize].view(at, self.hits[at as usize])));
        let pick = self
            .picker
            .pick(&demand(prompt), prompt.affinity(), &self.views, rng)
            .ok_or(Unavailable::NoneUp)?;
        Ok(self.place(now, prompt, pick))
    }

    /// Explains the last [`choose`](Self::choose), which was `assignment`.
    pub fn explain(
        &self,
        prompt: &Prompt,
        assignment: &Assignment,
        name: impl Fn(u32) -> Option<Arc<str>>,
    ) -> Receipt {
        self.picker.explain(&demand(prompt), &assignment.pick, &self.views, |id| name(id.0))
    }

    fn place(&mut self, now: Timestamp, prompt: &Prompt, pick: Pick) -> Assignment {
        let at = pick.worker.0;
        let queued_tokens = u64::from(prompt.tokens.saturating_sub(pick.hit_tokens));
        self.prefixes.sent(&prompt.marks, at);
        let worker = &mut self.workers[at as usize];
        worker.breaker.dispatched(now);
        worker.in_flight += prompt.samples;
        worker.queued_tokens += queued_tokens;
        Assignment { worker: at, samples: prompt.samples, queued_tokens, pick }
    }

    /// Records that the answer has begun: the prompt is no longer queued.
    pub fn began(&mut self, now: Timestamp, assignment: &mut Assignment) {
        let worker = &mut self.workers[assignment.worker as usize];
        worker.queued_tokens -= std::mem::take(&mut assignment.queued_tokens);
        worker.breaker.record(now, Outcome::Success);
    }

    /// Records the end of a request at a worker.
    pub fn ended(&mut self, now: Timestamp, assignment: Assignment, outcome: Outcome) {
        let worker = &mut self.workers[assignment.worker as usize];
        worker.queued_tokens -= assignment.queued_tokens;
        worker.in_flight -= assignment.samples;
        worker.breaker.record(now, outcome);
        worker.full_until = match outcome {
            Outcome::Backpressure => now + FULL_FOR,
            Outcome::Success => Timestamp::ZERO,
            Outcome::Fault | Outcome::Neutral => worker.full_until,
        };
    }

    /// Frees a place of a name: it gets no more requests. Those that run there go on.
    pub fn vanished(&mut self, at: u32) {
        let worker = &mut self.workers[at as usize];
        worker.health = Health::Absent;
        (worker.models, worker.names) = (Vec::new(), Vec::new());
    }

    /// Whether a place has no address, and no request that still runs at an earlier one.
    pub fn is_free(&self, at: u32) -> bool {
        let worker = &self.workers[at as usize];
        worker.health == Health::Absent && worker.in_flight == 0
    }

    /// Puts a worker whose name has the hash `name_hash` in a free place.
    pub fn appeared(&mut self, at: u32, name_hash: u64) {
        self.workers[at as usize] = Worker::new(name_hash);
        self.prefixes.forget(at);
    }

    /// Records a health check; returns the new state if it has changed.
    pub fn checked(&mut self, at: u32, check: Check) -> Option<Health> {
        let worker = &mut self.workers[at as usize];
        if worker.health == Health::Absent {
            return None; // the check began earlier
        }
        worker.misses = if check == Check::Missed { worker.misses + 1 } else { 0 };
        let health = match check {
            Check::Up(models) => {
                if let Some(models) = models {
                    let names = models.iter().filter_map(|model| model["id"].as_str());
                    worker.names = names.map(str::to_owned).collect();
                    worker.models = models;
                }
                self.was_up = true;
                Health::Up
            }
            Check::Refuses => Health::NotReady,
            Check::Refused => Health::Lost,
            Check::Missed if worker.misses >= MISSES => Health::Lost,
            Check::Missed => worker.health,
        };
        let before = std::mem::replace(&mut worker.health, health);
        if before == Health::Lost && health == Health::Up {
            // What it had cached before is gone if it restarted.
            self.prefixes.forget(at);
            self.workers[at as usize].breaker = Breaker::default();
        }
        (before != health).then_some(health)
    }

    /// Whether any worker accepts requests.
    pub fn is_up(&self) -> bool {
        self.workers.iter().any(|worker| worker.health == Health::Up)
    }

    /// Whether any worker was ever up.
    pub fn was_up(&self) -> bool {
        self.was_up
    }

    /// State of each worker.
    pub fn states(&self, now: Timestamp) -> Vec<WorkerState> {
        let state = |worker: &Worker| WorkerState {
            health: worker.health,
            open: !worker.breaker.allows(now),
            in_flight: worker.in_flight,
            queued_tokens: worker.queued_tokens,
        };
        self.workers.iter().map(state).collect()
    }

    /// Models of all workers that are up, each once.
    pub fn models(&self) -> Vec<Value> {
        let mut models: Vec<Value> = Vec::new();
        for model in
            self.workers.iter().filter(|worker| worker.health == Health::Up).flat_map(|worker| &worker.models)
        {
            if !models.iter().any(|known| known["id"] == model["id"]) {
                models.push(model.clone());
            }
        }
        models
    }
}

fn demand(prompt: &Prompt) -> Demand {
    Demand::new(prompt.tokens as usize, prompt.output_tokens, prompt.samples)
}

impl Worker {
    fn new(name_hash: u64) -> Self {
        Self {
            name_hash,
            health: Health::Unknown,
            misses: 0,
            breaker: Breaker::default(),
            full_until: Timestamp::ZERO,
            in_flight: 0,
            queued_tokens: 0,
            models: Vec::new(),
            names: Vec::new(),
        }
    }

    fn lists(&self, model: Option<&str>) -> bool {
        model.is_some_and(|asked| self.names.iter().any(|name| name == asked))
    }

    fn view(&self, at: u32, hit_tokens: u32) -> WorkerView {
        let load = CurrentLoad {
            queued_uncached_tokens: self.queued_tokens,
            sequences: self.in_flight,
            free_blocks: u32::MAX,
            prefill_tokens_per_second: 0.0,
            decode_tokens_per_second: 0.0,
        };
        let id = WorkerId(at);
        WorkerView {
            id,
            name_hash: self.name_hash,
            hit_tokens,
            load,
            max_num_seqs: MANY_SEQUENCES,
            block_size: 16,
            reads_adapter: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use serde_json::json;

    use super::*;

    struct Scene {
        servers: Servers,
        rng: StdRng,
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_start(Duration::from_millis(ms))
    }

    fn prompt(text: &str) -> Prompt {
        Prompt::read(json!({"model": "m", "prompt": text}).to_string().as_bytes(), 1)
    }

    impl Scene {
        /// Three workers that are up.
        fn new(policy: Policy) -> Self {
            let mut servers = Servers::new(0..3, policy, 1 << 20);
            for worker in 0..3 {
                assert_eq!(servers.checked(worker, Check::Up(None)), Some(Health::Up));
            }
            Self { servers, rng: StdRng::seed_from_u64(1) }
        }

        fn choose(&mut self, ms: u64, text: &str, tried: &[u32]) -> Result<Assignment, Unavailable> {
            self.servers.choose(at(ms), &prompt(text), tried, &mut self.rng)
        }

        fn end(&mut self, ms: u64, assignment: Assignment, outcome: Outcome) {
            self.servers.ended(at(ms), assignment, outcome);
        }
    }

    #[test]
    fn a_conversation_returns_to_its_worker_until_that_is_busy() {
        let mut scene = Scene::new(Policy::FirstToken);
        let text = "a long conversation ".repeat(200);
        let first = scene.choose(0, &text, &[]).unwrap();
        scene.end(1, first, Outcome::Success);
        for turn in 0..10 {
            let placed = scene.choose(2, &format!("{text}{turn}"), &[]).unwrap();
            assert_eq!(placed.worker, first.worker);
            scene.end(3, placed, Outcome::Success);
        }
        let crowd: Vec<u32> = (0..300).map(|_| scene.choose(4, &text, &[]).unwrap().worker).collect();
        assert!(
            (0..3).all(|worker| crowd.iter().filter(|at| **at == worker).count() > 50),
            "others help out"
        );
    }

    #[test]
    fn round_robin_takes_each_in_turn() {
        let mut scene = Scene::new(Policy::RoundRobin);
        let picks: Vec<u32> = (0..6).map(|_| scene.choose(0, "x", &[]).unwrap().worker).collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn only_workers_that_are_up_and_not_full_are_chosen() {
        let mut scene = Scene::new(Policy::LeastLoad);
        assert_eq!(scene.servers.checked(0, Check::Refused), Some(Health::Lost));
        assert_eq!(scene.servers.checked(1, Check::Missed), None, "one missed check proves nothing");
        let placed = scene.choose(0, "x", &[1]).unwrap();
        assert_eq!(placed.worker, 2);
        scene.end(0, placed, Outcome::Backpressure);
        assert_eq!(scene.choose(10, "x", &[]).unwrap().worker, 1);
        assert_eq!(scene.servers.checked(1, Check::Missed), Some(Health::Lost));
        assert_eq!(scene.choose(10, "x", &[]), Err(Unavailable::Full));
        assert_eq!(scene.choose(1000, "x", &[]).unwrap().worker, 2, "a second later it may have room");
        assert_eq!(scene.servers.checked(2, Check::Refuses), Some(Health::NotReady));
        assert_eq!(scene.choose(2000, "x", &[]), Err(Unavailable::NoneUp));
    }

    #[test]
    fn a_failing_worker_is_avoided_but_not_if_all_fail() {
        let mut scene = Scene::new(Policy::RoundRobin);
        for _ in 0..3 {
            let placed = scene.choose(0, "x", &[1, 2]).unwrap();
            assert_eq!(placed.worker, 0);
            scene.end(0, placed, Outcome::Fault);
        }
        assert!((0..6).all(|_| scene.choose(1, "x", &[]).unwrap().worker != 0));
        for worker in [1, 2] {
            for _ in 0..3 {
                let others: Vec<u32> = (0..3).filter(|other| *other != worker).collect();
                let placed = scene.choose(2, "x", &others).unwrap();
                scene.end(2, placed, Outcome::Fault);
            }
        }
        assert!(scene.choose(3, "x", &[]).is_ok(), "health checks pass: the requests may be at fault");
    }

    #[test]
    fn a_model_is_asked_for_where_it_is_served() {
        let mut scene = Scene::new(Policy::RoundRobin);
        scene.servers.checked(1, Check::Up(Some(vec![json!({"id": "m"})])));
        scene.servers.checked(2, Check::Up(Some(vec![json!({"id": "other"}), json!({"id": "m2"})])));
        assert!((0..6).all(|_| scene.choose(0, "x", &[]).unwrap().worker == 1));
        assert_eq!(scene.servers.models().len(), 3);
        // An unknown name may be an alias: a worker answers.
        let unknown = Prompt { model: Some("alias".to_owned()), ..prompt("x") };
        assert!(scene.servers.choose(at(0), &unknown, &[], &mut scene.rng).is_ok());
    }

    #[test]
    fn a_restarted_worker_caches_nothing() {
        let mut scene = Scene::new(Policy::FirstToken);
        let text = "words ".repeat(500);
        let first = scene.choose(0, &text, &[]).unwrap();
        scene.servers.checked(first.worker, Check::Refused);
        scene.servers.checked(first.worker, Check::Up(None));
        assert_eq!(scene.choose(0, &text, &[]).unwrap().pick.hit_tokens, 0);
    }

    #[test]
    fn counts_return_to_zero() {
        let mut scene = Scene::new(Policy::FirstToken);
        let placed: Vec<Assignment> = (0..9).map(|_| scene.choose(0, "some text", &[]).unwrap()).collect();
        for (mut assignment, nth) in placed.into_iter().zip(0..) {
            if nth % 2 == 0 {
                scene.servers.began(at(1), &mut assignment);
            }
            scene.end(2, assignment, if nth % 3 == 0 { Outcome::Neutral } else { Outcome::Success });
        }
        let idle = |state: &WorkerState| state.in_flight == 0 && state.queued_tokens == 0 && !state.open;
        assert!(scene.servers.states(at(3)).iter().all(idle));
    }
}
