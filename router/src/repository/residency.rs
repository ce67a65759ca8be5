//! Which models are in memory, and which of them leave it for others. Pure.
//!
//! A model's memory counts from before it is loaded until its workers have ended. Models that are asked for
//! and are not in memory are loaded in the order in which they were first asked for: memory that one needs is
//! not given to a later one, so each is loaded at some time. Room is made by the least used models: those
//! with the fewest requests, of which each counts half as much after each [`HALF_LIFE`]. If the least used
//! one is in use, the one asked for waits [`PATIENCE`] for it. Then a model that nobody uses leaves, else the
//! least used one takes no new requests, and leaves once those that run on it have ended.

use std::collections::VecDeque;
use std::time::Duration;

use skein_node::clock::Timestamp;

/// Time after which a request counts half as much for its model.
pub const HALF_LIFE: Duration = Duration::from_secs(60);

/// How long a model that is asked for waits until nobody uses the least used one.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How long a model stays in memory without requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepAlive {
    /// Until its memory is needed.
    #[default]
    UntilNeeded,
    /// For this long, or until its memory is needed.
    For(Duration),
    /// Always: other models never take its memory.
    Always,
}

/// Where a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// On disk only.
    Unloaded,
    /// On its way into memory.
    Loading,
    /// In memory.
    Loaded,
    /// In memory, for the requests that run on it; others wait until it is loaded again.
    Leaving,
    /// Its workers are ending.
    Ending,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Load the model of this number.
    Load(usize),
    /// End the workers of the model of this number.
    End(usize),
    /// Refuse the requests that wait for the model of this number: what always stays leaves it no room.
    Refuse(usize),
}

/// Result of a request for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// The request uses it.
    Now,
    /// The request waits until it is loaded.
    Waits,
}

#[derive(Debug)]
struct Model {
    bytes: u64,
    keep_alive: KeepAlive,
    stage: Stage,
    /// Requests that use it.
    users: usize,
    /// Requests that wait for it.
    waiting: usize,
    /// When a request last came or ended.
    last_used: Timestamp,
    /// Requests, as they counted at `counted_at`.
    uses: f64,
    counted_at: Timestamp,
    /// Since when it is asked for and not in memory.
    wanted_since: Timestamp,
}

impl Model {
    /// Requests as they count now.
    fn uses(&self, now: Timestamp) -> f64 {
        self.uses * (-now.since(self.counted_at).div_duration_f64(HALF_LIFE)).exp2()
    }

    fn count(&mut self, now: Timestamp) {
        (self.uses, self.counted_at, self.last_used) = (self.uses(now) + 1.0, now, now);
    }
}

/// The models of a server and the memory that they may take.
#[derive(Debug)]
pub struct Residency {
    budget: u64,
    models: Vec<Model>,
    /// Models that are asked for and not in memory, the longest wait first.
    wanted: VecDeque<usize>,
}

impl Residency {
    /// None of the models is in memory; each takes so many bytes there. At most `budget` bytes are taken at
    /// once.
    pub fn new(budget: u64, models: impl IntoIterator<Item = (u64, KeepAlive)>) -> Self {
        let model = |(bytes, keep_alive)| Model {
            bytes,
            keep_alive,
            stage: Stage::Unloaded,
            users: 0,
            waiting: 0,
            last_used: Timestamp::ZERO,
            uses: 0.0,
            counted_at: Timestamp::ZERO,
            wanted_since: Timestamp::ZERO,
        };
        Self { budget, models: models.into_iter().map(model).collect(), wanted: VecDeque::new() }
    }

    /// Where a model is.
    pub fn stage(&self, model: usize) -> Stage {
        self.models[model].stage
    }

    /// Requests that use a model, and those that wait for it.
    pub fn requests(&self, model: usize) -> (usize, usize) {
        let Model { users, waiting, .. } = self.models[model];
        (users, waiting)
    }

    /// Bytes that are taken or are about to be.
    pub fn taken(&self) -> u64 {
        self.bytes_of(|stage| stage != Stage::Unloaded)
    }

    /// When a model leaves memory unless it is asked for; `None` = not by itself.
    pub fn expires(&self, model: usize) -> Option<Timestamp> {
        let Model { keep_alive, stage, users, last_used, .. } = self.models[model];
        match keep_alive {
            KeepAlive::For(time) if stage == Stage::Loaded && users == 0 => Some(last_used + time),
            _ => None,
        }
    }

    /// How long a model stays without requests.
    pub fn keep_alive(&self, model: usize) -> KeepAlive {
        self.models[model].keep_alive
    }

    /// Changes how long a model stays without requests.
    pub fn set_keep_alive(&mut self, model: usize, keep_alive: KeepAlive) {
        self.models[model].keep_alive = keep_alive;
    }

    /// Whether there is room for `model` beside those in memory that always stay.
    pub fn fits_beside_kept(&self, model: usize) -> bool {
        let kept = |(number, other): (usize, &Model)| {
            let stays = other.keep_alive == KeepAlive::Always
                && matches!(other.stage, Stage::Loading | Stage::Loaded);
            if number == model || stays { other.bytes } else { 0 }
        };
        self.models.iter().enumerate().map(kept).fold(0, u64::saturating_add) <= self.budget
    }

    /// A request comes for a model.
    pub fn enter(&mut self, model: usize, now: Timestamp) -> Entered {
        let entry = &mut self.models[model];
        entry.count(now);
        if entry.stage == Stage::Loaded {
            entry.users += 1;
            return Entered::Now;
        }
        entry.waiting += 1;
        if entry.stage != Stage::Loading && !self.wanted.contains(&model) {
            entry.wanted_since = now;
            self.wanted.push_back(model);
        }
        Entered::Waits
    }

    /// A request that waited for a model no longer does.
    pub fn give_up(&mut self, model: usize) {
        let entry = &mut self.models[model];
        entry.waiting = entry.waiting.saturating_sub(1);
        if entry.waiting == 0 {
            self.wanted.retain(|wanted| *wanted != model);
        }
    }

    /// A request that used a model has ended.
    pub fn leave(&mut self, model: usize, now: Timestamp) {
        let entry = &mut self.models[model];
        entry.users = entry.users.saturating_sub(1);
        entry.last_used = now;
    }

    /// A model is in memory. All requests that waited for it use it now.
    pub fn loaded(&mut self, model: usize, now: Timestamp) {
        let entry = &mut self.models[model];
        entry.stage = Stage::Loaded;
        entry.users += std::mem::take(&mut entry.waiting);
        entry.last_used = now;
    }

    /// A model could not be loaded, and takes no memory. The requests that waited for it have failed.
    pub fn failed(&mut self, model: usize) {
        let entry = &mut self.models[model];
        entry.stage = Stage::Unloaded;
        entry.waiting = 0;
    }

    /// The workers of a model have ended.
    pub fn ended(&mut self, model: usize) {
        self.models[model].stage = Stage::Unloaded;
    }

    /// A model is to leave memory once its requests have ended.
    pub fn unload(&mut self, model: usize) {
        let entry = &mut self.models[model];
        if entry.stage == Stage::Loaded {
            entry.stage = Stage::Leaving;
        }
    }

    /// What is to be done now; it counts as begun.
    pub fn step(&mut self, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        for model in 0..self.models.len() {
            let is_over = self.expires(model).is_some_and(|at| at <= now);
            let entry = &mut self.models[model];
            if entry.users == 0 && (is_over || entry.stage == Stage::Leaving) {
                entry.stage = Stage::Ending;
                actions.push(Action::End(model));
            }
        }
        for model in self.wanted.clone() {
            // One that is about to leave is loaded again after that.
            if self.models[model].stage != Stage::Unloaded {
                continue;
            }
            if !self.fits_beside_kept(model) {
                self.wanted.retain(|wanted| *wanted != model);
                self.models[model].waiting = 0;
                actions.push(Action::Refuse(model));
                continue;
            }
            if self.taken().saturating_add(self.models[model].bytes) > self.budget {
                self.make_room(model, now, &mut actions);
                break;
            }
            self.wanted.retain(|wanted| *wanted != model);
            self.models[model].stage = Stage::Loading;
            actions.push(Action::Load(model));
        }
        actions
    }

    /// When [`step`](Self::step) may have something to do without any other event.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let expiries = (0..self.models.len()).filter_map(|model| self.expires(model));
        let impatience = self.wanted.iter().map(|model| self.models[*model].wanted_since + PATIENCE);
        expiries.chain(impatience.filter(|at| *at > now)).min()
    }

    /// Has models leave until those that remain leave room for `model`.
    fn make_room(&mut self, model: usize, now: Timestamp, actions: &mut Vec<Action>) {
        let Model { bytes, wanted_since, .. } = self.models[model];
        let is_impatient = now.since(wanted_since) >= PATIENCE;
        let mut stays = self.bytes_of(|stage| matches!(stage, Stage::Loading | Stage::Loaded));
        while stays.saturating_add(bytes) > self.budget {
            let Some(victim) = self.least_used(is_impatient, now) else { return };
            let entry = &mut self.models[victim];
            stays = stays.saturating_sub(entry.bytes);
            if entry.users == 0 {
                entry.stage = Stage::Ending;
                actions.push(Action::End(victim));
            } else {
                entry.stage = Stage::Leaving;
            }
        }
    }

    /// The model that is to leave: the least used one if nobody uses it now, and after a wait any that nobody
    /// uses, else the least used.
    fn least_used(&self, is_impatient: bool, now: Timestamp) -> Option<usize> {
        let is = |model: &usize, stage: Stage| self.models[*model].stage == stage;
        let idle = |model: &usize| is(model, Stage::Loaded) && self.models[*model].users == 0;
        let order = |a: &usize, b: &usize| {
            let [a, b] = [a, b].map(|model| &self.models[*model]);
            a.uses(now).total_cmp(&b.uses(now)).then(a.last_used.cmp(&b.last_used))
        };
        let all =
            || (0..self.models.len()).filter(|model| self.models[*model].keep_alive != KeepAlive::Always);
        if is_impatient {
            let in_use = || all().filter(|model| is(model, Stage::Loaded)).min_by(order);
            return all().filter(idle).min_by(order).or_else(in_use);
        }
        // One that is being loaded is about to be used, and may be the least used all the same.
        let there = all().filter(|model| is(model, Stage::Loaded) || is(model, Stage::Loading));
        there.min_by(order).filter(idle)
    }

    fn bytes_of(&self, counts: impl Fn(Stage) -> bool) -> u64 {
        self.models
            .iter()
            .filter(|model| counts(model.stage))
            .map(|model| model.bytes)
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_start(Duration::from_millis(ms))
    }

    /// Models of one byte each, `budget` of which fit.
    fn of(budget: u64, count: usize) -> Residency {
        Residency::new(budget, (0..count).map(|_| (1, KeepAlive::UntilNeeded)))
    }

    /// Loads a model that is asked for at `ms` and used until then.
    fn used(residency: &mut Residency, model: usize, ms: u64) {
        if residency.enter(model, at(ms)) == Entered::Waits {
            let actions = residency.step(at(ms));
            for action in &actions {
                if let Action::End(victim) = action {
                    residency.ended(*victim);
                }
            }
            residency.step(at(ms));
            assert_eq!(residency.stage(model), Stage::Loading, "{actions:?}");
            residency.loaded(model, at(ms));
        }
        residency.leave(model, at(ms));
    }

    #[test]
    fn the_least_recently_used_model_makes_room() {
        let mut residency = of(2, 3);
        used(&mut residency, 0, 1);
        used(&mut residency, 1, 2);
        used(&mut residency, 0, 3);
        assert_eq!(residency.enter(2, at(4)), Entered::Waits);
        assert_eq!(residency.step(at(4)), [Action::End(1)]);
        assert_eq!(residency.step(at(5)), [], "its memory is not free before its workers have ended");
        residency.ended(1);
        assert_eq!(residency.step(at(6)), [Action::Load(2)]);
        residency.loaded(2, at(7));
        assert_eq!((residency.requests(2), residency.taken()), ((1, 0), 2));
    }

    #[test]
    fn a_model_that_is_used_much_stays_for_one_that_is_used_little() {
        let mut residency = of(2, 3);
        for ms in 0..100 {
            used(&mut residency, 0, ms);
        }
        residency.enter(1, at(100));
        residency.step(at(100));
        residency.loaded(1, at(100));
        residency.enter(2, at(101));
        assert_eq!(residency.step(at(101)), [], "the least used one is in use, and the other is used much");
        residency.leave(1, at(150));
        assert_eq!(residency.step(at(150)), [Action::End(1)]);
        residency.ended(1);
        assert_eq!(residency.step(at(150)), [Action::Load(2)]);
        residency.loaded(2, at(151));
        // The first is not asked for any more, and what was counts less and less.
        let later = 10 * 60 * 1000;
        used(&mut residency, 2, later);
        residency.enter(1, at(later + 1));
        assert_eq!(residency.step(at(later + 1)), [Action::End(0)]);
    }

    #[test]
    fn a_model_that_is_being_loaded_may_be_the_least_used() {
        let mut residency = of(2, 3);
        for ms in 0..100 {
            used(&mut residency, 0, ms);
        }
        residency.enter(1, at(100));
        assert_eq!(residency.step(at(100)), [Action::Load(1)]);
        residency.enter(2, at(101));
        assert_eq!(residency.step(at(101)), [], "the one that is used much stays");
        residency.loaded(1, at(102));
        assert_eq!(residency.step(at(102)), []);
        residency.leave(1, at(103));
        assert_eq!(residency.step(at(103)), [Action::End(1)]);
    }

    #[test]
    fn after_a_wait_a_model_that_nobody_uses_leaves_however_much_it_was_used() {
        let mut residency = of(2, 3);
        for ms in 0..100 {
            used(&mut residency, 0, ms);
        }
        residency.enter(1, at(100));
        residency.step(at(100));
        residency.loaded(1, at(100));
        residency.enter(2, at(101));
        assert_eq!(residency.step(at(101)), []);
        assert_eq!(residency.step(at(101) + PATIENCE), [Action::End(0)]);
        assert_eq!(residency.stage(1), Stage::Loaded);
    }

    #[test]
    fn a_model_in_use_leaves_only_for_one_that_has_waited_and_once_its_requests_have_ended() {
        let mut residency = of(1, 2);
        residency.enter(0, at(0));
        assert_eq!(residency.step(at(0)), [Action::Load(0)]);
        residency.loaded(0, at(0));
        assert_eq!(residency.enter(1, at(10)), Entered::Waits);
        assert_eq!(residency.step(at(10)), []);
        let impatient = at(10) + PATIENCE;
        assert_eq!(residency.next(at(10)), Some(impatient));
        assert_eq!(residency.enter(0, at(11)), Entered::Now, "it serves on until then");
        residency.leave(0, at(12));
        assert_eq!(residency.step(impatient), []);
        assert_eq!(residency.stage(0), Stage::Leaving);
        assert_eq!(residency.enter(0, impatient), Entered::Waits, "others wait until it is back");
        residency.leave(0, impatient);
        assert_eq!(residency.step(impatient), [Action::End(0)]);
        residency.ended(0);
        assert_eq!(residency.step(impatient), [Action::Load(1)], "in the order in which they were asked for");
        residency.loaded(1, impatient);
        residency.leave(1, impatient);
        assert_eq!(residency.step(impatient), [Action::End(1)]);
        residency.ended(1);
        assert_eq!(residency.step(impatient), [Action::Load(0)]);
    }

    #[test]
    fn an_idle_model_leaves_after_its_time_and_one_that_is_kept_never() {
        let keep = [
            KeepAlive::For(Duration::from_millis(100)),
            KeepAlive::Always,
            KeepAlive::UntilNeeded,
            KeepAlive::UntilNeeded,
        ];
        let mut residency = Residency::new(3, keep.map(|keep| (1, keep)));
        for model in 0..3 {
            used(&mut residency, model, 10 + model as u64);
        }
        assert_eq!(residency.next(at(20)), Some(at(110)));
        assert_eq!(residency.step(at(109)), []);
        residency.enter(0, at(109));
        assert_eq!((residency.step(at(500)), residency.expires(0)), (Vec::new(), None), "it is in use");
        residency.leave(0, at(500));
        assert_eq!(residency.step(at(600)), [Action::End(0)]);
        residency.ended(0);
        used(&mut residency, 0, 700);
        residency.enter(3, at(701));
        assert_eq!(residency.step(at(701)), [Action::End(2)], "the one before it is always kept");
        residency.set_keep_alive(1, KeepAlive::For(Duration::ZERO));
        assert_eq!(residency.step(at(701)), [Action::End(1)]);
    }

    #[test]
    fn a_model_that_does_not_fit_beside_the_kept_ones_is_known() {
        let models = [(3, KeepAlive::Always), (2, KeepAlive::UntilNeeded), (1, KeepAlive::UntilNeeded)];
        let mut residency = Residency::new(4, models);
        assert_eq!(
            [0, 1, 2].map(|model| residency.fits_beside_kept(model)),
            [true; 3],
            "nothing is in memory"
        );
        used(&mut residency, 0, 1);
        assert_eq!([0, 1, 2].map(|model| residency.fits_beside_kept(model)), [true, false, true]);
        residency.enter(1, at(2));
        assert_eq!(residency.step(at(2)), [Action::Refuse(1)]);
        assert_eq!(residency.requests(1), (0, 0));
        residency.unload(0);
        assert_eq!(residency.step(at(3)), [Action::End(0)]);
        assert!(residency.fits_beside_kept(1), "it has left");
    }

    #[test]
    fn a_request_that_no_longer_waits_loads_nothing() {
        let mut residency = of(1, 2);
        residency.enter(0, at(0));
        residency.enter(0, at(0));
        residency.give_up(0);
        residency.give_up(0);
        assert_eq!((residency.step(at(1)), residency.taken()), (Vec::new(), 0));
        residency.enter(1, at(2));
        assert_eq!(residency.step(at(2)), [Action::Load(1)]);
        residency.give_up(1);
        residency.loaded(1, at(3));
        assert_eq!(residency.requests(1), (0, 0));
        residency.enter(0, at(4));
        assert_eq!(residency.step(at(4)), [Action::End(1)]);
        residency.ended(1);
        assert_eq!(residency.step(at(4)), [Action::Load(0)]);
        residency.failed(0);
        assert_eq!((residency.taken(), residency.requests(0)), (0, (0, 0)));
    }

    /// Whatever happens, memory stays within the budget, and every request is served at some time.
    #[test]
    fn no_order_of_events_exceeds_the_budget_or_leaves_a_request_waiting() {
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let sizes: Vec<u64> = (0..6).map(|_| rng.random_range(1..5)).collect();
            let budget = rng.random_range(sizes.iter().copied().max().unwrap_or(1)..10);
            let keep = [KeepAlive::UntilNeeded, KeepAlive::For(Duration::from_millis(50))];
            let keeps: Vec<KeepAlive> = sizes.iter().map(|_| keep[rng.random_range(0..2)]).collect();
            let mut residency = Residency::new(budget, sizes.iter().copied().zip(keeps));
            let (mut loading, mut ending, mut users) = (Vec::new(), Vec::new(), vec![0_usize; 6]);
            let mut asked = [0_usize; 6];
            let mut now = 0;
            let mut turn =
                |residency: &mut Residency, now: u64, event: u32, model: usize, rng: &mut dyn Rng| {
                    match event {
                        0 | 1 => {
                            asked[model] += 1;
                            if residency.enter(model, at(now)) == Entered::Now {
                                users[model] += 1;
                            }
                        }
                        2 | 3 if users[model] > 0 => {
                            users[model] -= 1;
                            asked[model] -= 1;
                            residency.leave(model, at(now));
                        }
                        4 if residency.requests(model).1 > 0 && residency.stage(model) != Stage::Loading => {
                            asked[model] -= 1;
                            residency.give_up(model);
                        }
                        5 if !loading.is_empty() => {
                            let model: usize = loading.swap_remove(rng.next_u32() as usize % loading.len());
                            if rng.next_u32().is_multiple_of(8) {
                                asked[model] -= residency.requests(model).1;
                                residency.failed(model);
                            } else {
                                users[model] += residency.requests(model).1;
                                residency.loaded(model, at(now));
                            }
                        }
                        6 if !ending.is_empty() => {
                            residency.ended(ending.swap_remove(rng.next_u32() as usize % ending.len()));
                        }
                        7 => residency.unload(model),
                        _ => {}
                    }
                    for action in residency.step(at(now)) {
                        match action {
                            Action::Refuse(_) => panic!("seed {seed}: none always stays"),
                            Action::Load(model) => loading.push(model),
                            Action::End(model) => {
                                assert_eq!(users[model], 0, "seed {seed}: a model ends under its requests");
                                ending.push(model);
                            }
                        }
                    }
                    assert!(residency.taken() <= budget, "seed {seed}");
                    (asked.iter().sum::<usize>(), users.iter().sum::<usize>())
                };
            for _ in 0..400 {
                now += rng.random_range(0..40);
                let (event, model) = (rng.random_range(0..8), rng.random_range(0..6));
                turn(&mut residency, now, event, model, &mut rng);
            }
            // No new requests: those that there are end.
            for round in 0..2000_u64 {
                now += 40;
                let event = [2, 5, 6][(round % 3) as usize];
                turn(&mut residency, now, event, (round / 3 % 6) as usize, &mut rng);
            }
            let (asked, users) = turn(&mut residency, now, 9, 0, &mut rng);
            assert_eq!((asked, users), (0, 0), "seed {seed}: requests are left");
        }
    }
}
