//! Small cases that can be checked by hand, and the published ranking of the rules.

use std::time::Duration;

use skein_bench::engine::steps::Work;
use skein_worker::config::SchedulerConfig;

use super::batcher::{Batcher, Job, Next};
use super::contiguous::Contiguous;
use super::jobs::{Arrival, Lengths, jobs};
use super::orca::{Orca, Reserve};
use super::padded::Padded;
use super::run::{Run, run};
use super::step_time::StepTime;
use super::sweep::{Rule, Setup, Statistic, Sweep};

/// One second per step, whatever its size.
const SECOND: StepTime = StepTime { overhead: 1.0, weights: 0.0, row: 0.0, context_token: 0.0 };

fn job(at: u64, prompt: u32, output: u32) -> Job {
    Job { at: Duration::from_secs(at), prompt, output }
}

fn seconds(run: &Run, jobs: &[Job]) -> Vec<u64> {
    run.normalised
        .iter()
        .zip(jobs)
        .map(|(time, job)| (*time * job.output).as_secs_f64().round() as u64)
        .collect()
}

/// Two short jobs beside a long one, and one that arrives while they run.
fn example() -> Vec<Job> {
    vec![job(0, 4, 2), job(0, 8, 6), job(0, 4, 1), job(1, 4, 2)]
}

#[test]
fn a_padded_batch_ends_with_its_longest_job() {
    let jobs = example();
    let run = run(&mut Padded::new(100, 20, 8, Duration::ZERO), &jobs, &SECOND);
    // Three start together and end after 6 steps; the fourth waits for them.
    assert_eq!(seconds(&run, &jobs), [6, 6, 6, 7]);
    assert_eq!((run.steps, run.duration.as_secs()), (8, 8));
}

#[test]
fn a_dynamic_batch_starts_full_or_after_its_delay() {
    let check = |most: usize, delay: u64, jobs: &[Job], expected: &[u64]| {
        let delay = Duration::from_secs(delay);
        let run = run(&mut Padded::new(1000, 20, most, delay), jobs, &SECOND);
        assert_eq!(seconds(&run, jobs), expected, "{most} jobs, {delay:?}");
    };
    let jobs = [job(0, 1, 1), job(3, 1, 1), job(9, 1, 1)];
    check(2, 5, &jobs, &[4, 1, 1]); // full at 3 s; nothing follows the last one, so it does not wait
    check(4, 5, &jobs, &[6, 3, 1]); // after 5 s
}

#[test]
fn orca_lets_jobs_join_and_leave_between_steps() {
    let jobs = example();
    let run = run(&mut Orca::new(100, Reserve::Oracle, 8), &jobs, &SECOND);
    assert_eq!(seconds(&run, &jobs), [2, 6, 1, 2]);
    assert_eq!(run.steps, 6);
}

#[test]
fn orca_waits_for_a_contiguous_piece() {
    // 20 tokens: 8, 6 and 6 are allocated. After the 8 and the second 6 are freed, 14 are free but not
    // contiguous.
    let jobs = [job(0, 6, 2), job(0, 2, 4), job(0, 4, 2), job(0, 9, 2)];
    let mut orca = Orca::new(20, Reserve::Oracle, 8);
    let run = run(&mut orca, &jobs, &SECOND);
    assert_eq!(seconds(&run, &jobs), [2, 4, 2, 6]);
    let [_, _, _, external] = run.kv.shares();
    assert!(external > 0.0, "the free pieces are counted as external waste");
}

#[test]
fn reservations_are_what_their_names_say() {
    let check = |reserve: Reserve, expected: u64| {
        let mut orca = Orca::new(1000, reserve, 8);
        orca.submit(0, job(0, 10, 5));
        assert!(matches!(orca.plan(Duration::ZERO, false), Next::Step(Work { rows: 10, context: 10 })));
        let held = orca.held();
        assert_eq!(held.live + held.reserved + held.internal, expected, "{reserve:?}");
        assert_eq!((held.live, held.reserved), (10, 5), "{reserve:?}");
    };
    check(Reserve::Max(200), 200);
    check(Reserve::PowerOfTwo, 18);
    check(Reserve::Oracle, 15);
}

#[test]
fn contiguous_pieces_never_overlap() {
    let mut random = skein_node::random::SplitMix64::new(5);
    let mut memory = Contiguous::new(1000);
    let mut pieces: Vec<(u32, u32)> = Vec::new();
    for _ in 0..2000 {
        let length = 1 + (random.next_u64() % 120) as u32;
        if random.next_u64().is_multiple_of(2)
            && let Some(start) = memory.take(length)
        {
            let apart = |&(other, other_length): &(u32, u32)| {
                start + length <= other || other + other_length <= start
            };
            assert!(start + length <= 1000 && pieces.iter().all(apart), "a piece of {length} at {start}");
            pieces.push((start, length));
        } else if !pieces.is_empty() {
            let (start, _) = pieces.swap_remove(random.next_u64() as usize % pieces.len());
            memory.give_back(start);
        }
        let taken: u32 = pieces.iter().map(|(_, length)| length).sum();
        assert_eq!(memory.free(), 1000 - taken);
    }
}

fn setup(count: usize) -> Setup {
    Setup {
        capacity: 15_700,
        context: 2048,
        most: 256,
        step_time: StepTime::OPT_13B_A100,
        lengths: Lengths::SHAREGPT,
        count,
        seed: 1,
        scheduler: SchedulerConfig { max_num_batched_tokens: 2048, ..SchedulerConfig::default() },
    }
}

#[test]
fn every_job_ends_once_under_every_rule() {
    let sweep = Sweep { setup: setup(60) };
    let delay = Duration::from_millis(50);
    for rule in [
        Rule::Static,
        Rule::Dynamic { most: 8, delay },
        Rule::OrcaMax,
        Rule::OrcaPowerOfTwo,
        Rule::OrcaOracle,
        Rule::Skein,
    ] {
        let point = sweep.at(rule, Some(3.0));
        assert!(point.run.normalised.iter().all(|time| !time.is_zero()), "{rule}: a job has no end");
        let shares = point.run.kv.shares();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{rule}: {shares:?}");
        assert!((0.0..1.0).contains(&point.run.idle_share()), "{rule}: {}", point.run.idle_share());
    }
}

#[test]
fn under_load_paged_memory_is_nearly_all_live_and_latency_follows_the_published_order() {
    let sweep = Sweep { setup: setup(300) };
    let latency = |rule| Statistic::Mean.of(&sweep.at(rule, Some(2.5)).run);
    let (skein, oracle) = (latency(Rule::Skein), latency(Rule::OrcaOracle));
    let (max, padded) = (latency(Rule::OrcaMax), latency(Rule::Static));
    assert!(skein < oracle && oracle < max && max < padded, "{skein} {oracle} {max} {padded}");
    let [live, ..] = sweep.at(Rule::Skein, Some(2.5)).run.kv.shares();
    assert!(live > 0.95, "live {live}");
}

#[test]
fn the_highest_rate_keeps_the_bound_and_a_little_more_does_not() {
    let sweep = Sweep { setup: setup(200) };
    let bound = 10.0 * sweep.setup.step_time.alone(161);
    let highest = sweep.highest(Rule::Static, Statistic::Mean, bound, 0.01).expect("a low rate keeps it");
    assert!(Statistic::Mean.of(&highest.run) <= bound);
    let more = sweep.at(Rule::Static, highest.rate.map(|rate| rate * 1.1));
    assert!(Statistic::Mean.of(&more.run) > bound);
}

#[test]
fn equal_seeds_repeat_and_rates_change_no_lengths() {
    let sweep = Sweep { setup: setup(40) };
    let steps = |rate| sweep.at(Rule::Skein, Some(rate)).run.steps;
    assert_eq!(steps(2.0), steps(2.0));
    let lengths = |rate| {
        let jobs = jobs(40, &Lengths::ALPACA, Arrival::Rate(rate), 3);
        jobs.iter().map(|job| (job.prompt, job.output)).collect::<Vec<_>>()
    };
    assert_eq!(lengths(1.0), lengths(9.0));
}
