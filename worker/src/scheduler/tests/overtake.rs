//! Short prompts behind long ones: how long they wait, and that the long ones make progress.

use super::super::budget::{MIN_CHUNK, SHORT_STEP};
use super::*;

/// Duration of a step: a fixed part (reading the weights) and a part for each row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed {
    fixed_micros: u64,
    row_micros: u64,
}

/// A CPU with 16-bit weights, one with 8-bit weights, one with a large model, and a GPU.
pub(super) const SPEEDS: [Speed; 4] = [
    Speed { fixed_micros: 35_000, row_micros: 3_000 },
    Speed { fixed_micros: 18_000, row_micros: 900 },
    Speed { fixed_micros: 90_000, row_micros: 12_000 },
    Speed { fixed_micros: 6_000, row_micros: 25 },
];

const LONG: usize = 4000;

impl Speed {
    pub(super) fn of_step(self) -> impl Fn(u32) -> Duration {
        move |rows| Duration::from_micros(self.fixed_micros + self.row_micros * u64::from(rows))
    }

    /// A world at this speed that has already run steps of many sizes.
    pub(super) fn world(self) -> World {
        let config = SchedulerConfig {
            block_size: 16,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            ..SchedulerConfig::default()
        };
        let mut world = World::new(&config, 2048);
        for (key, prompt_len) in (1000..).zip([10, 200, 60, 400, 33]) {
            world.submit(request(key, vec![key as u32 % VOCAB; prompt_len], to_first_token()));
            while world.step_that_takes(self.of_step()) {}
        }
        world
    }
}

fn to_first_token() -> SamplingParams {
    SamplingParams { max_tokens: 1, ..SamplingParams::default() }
}

pub(super) fn prompt(key: u64, len: usize) -> NewRequest {
    let params = to_first_token();
    // A scope for each key, so that no two share a block.
    NewRequest { scope: CacheScope::new("model", &key.to_string()), ..request(key, vec![3; len], params) }
}

/// Steps until `key` has its first token. Returns the time since `arrival` and the longest step.
pub(super) fn first_token(
    world: &mut World,
    key: u64,
    arrival: Timestamp,
    speed: Speed,
) -> (Duration, Duration) {
    let mut longest = Duration::ZERO;
    while !world.first_tokens.contains(&RequestKey(key)) {
        assert!(world.step_that_takes(speed.of_step()), "it waits, so there is something to compute");
        longest = longest.max(world.last_step);
    }
    (world.now.since(arrival), longest)
}

#[test]
fn a_short_prompt_behind_a_long_one_waits_twice_its_own_time_and_a_step_at_most() {
    for speed in SPEEDS {
        for len in [1, 8, 64, 150, 500] {
            let mut world = speed.world();
            let start = world.now;
            world.submit(prompt(1, len));
            let (alone, _) = first_token(&mut world, 1, start, speed);
            world.submit(prompt(2, LONG));
            world.step_that_takes(speed.of_step());
            // It arrives just after a step was planned.
            world.launch(speed.of_step());
            let (arrival, in_its_way) = (world.now, world.last_step);
            world.submit(prompt(3, len));
            world.collect();
            let (behind, longest) = first_token(&mut world, 3, arrival, speed);
            let least = SHORT_STEP.max(speed.of_step()(MIN_CHUNK));
            let bound = (alone * 2).max(least) + longest.max(in_its_way);
            assert!(behind <= bound, "{speed:?}, {len} tokens: {behind:?}, alone {alone:?}, bound {bound:?}");
            assert!(!world.first_tokens.contains(&RequestKey(2)), "the long one is still being computed");
        }
    }
}

#[test]
fn a_long_prompt_moves_at_half_the_speed_whatever_overtakes_it() {
    for speed in SPEEDS {
        for short in [1, 20, 64, 300] {
            let mut world = speed.world();
            let rows = world.rows;
            world.submit(prompt(1, LONG));
            let mut key = 1;
            let mut steps = 0;
            while !world.first_tokens.contains(&RequestKey(1)) {
                steps += 1;
                for _ in 0..2 {
                    key += 1;
                    world.submit(prompt(key, short));
                }
                world.step_that_takes(speed.of_step());
            }
            let others = (world.rows - rows) as usize - LONG;
            // The allowance is for others in its last step, one of them with a folded remainder.
            assert!(others <= LONG + 512 + 512 / 8, "{speed:?}, {short}: {others} rows for others");
            assert!(others >= LONG.min(steps * short) / 2, "{speed:?}, {short}: only {others} for others");
            world.run();
        }
    }
}

#[test]
fn overtaking_makes_no_steps_of_a_few_rows() {
    for speed in SPEEDS {
        let mut world = speed.world();
        let (rng, start) = (&mut Rng::new(5), world.now);
        let mut tokens = 0;
        for key in 1..=32 {
            let len = rng.within(100..=1000);
            tokens += u64::from(len);
            world.submit(prompt(key, len as usize));
        }
        let mut steps = 0u32;
        while world.step_that_takes(speed.of_step()) {
            steps += 1;
        }
        // The minimum assumes full steps only.
        let per_step =
            (Duration::from_millis(500).as_micros() as u64 - speed.fixed_micros) / speed.row_micros;
        let full = tokens.div_ceil(per_step.min(512)) as u32;
        let took = world.now.since(start);
        let least = Duration::from_micros(tokens * speed.row_micros + u64::from(full) * speed.fixed_micros);
        assert!(
            took < least * 11 / 10,
            "{speed:?}: {took:?} in {steps} steps, {least:?} in {full} full ones"
        );
    }
}

#[test]
fn equal_prompts_end_one_after_another_half_of_them_in_half_the_time() {
    // On the GPU it is over in a few steps, and half a step more or less decides.
    for speed in &SPEEDS[..3] {
        let mut world = speed.world();
        world.first_tokens.clear();
        let start = world.now;
        let params = SamplingParams { max_tokens: 64, ..SamplingParams::default() };
        for key in 1..=32 {
            world.submit(NewRequest { params: Arc::new(params.clone()), ..prompt(key, 128) });
        }
        let (mut came, mut seen) = (Vec::new(), 0);
        while came.len() < 32 {
            world.step_that_takes(speed.of_step());
            came.resize(world.first_tokens.len(), world.now.since(start));
            assert!(came.len() - seen <= 4, "{speed:?}: {} at once", came.len() - seen);
            seen = came.len();
        }
        assert_eq!(world.first_tokens, (1..=32).map(RequestKey).collect::<Vec<_>>());
        assert!(came[15] * 2 <= came[31], "{speed:?}: {:?} of {:?}", came[15], came[31]);
    }
}

#[test]
fn priorities_are_not_overtaken() {
    let speed = SPEEDS[0];
    let mut world = speed.world();
    world.first_tokens.clear();
    world.submit(prompt(1, LONG));
    world.submit(NewRequest { priority: 1, ..prompt(2, 8) });
    world.step_that_takes(speed.of_step());
    world.submit(NewRequest { priority: -1, ..prompt(3, 900) });
    world.submit(NewRequest { priority: -1, ..prompt(4, 20) });
    while world.step_that_takes(speed.of_step()) {}
    assert_eq!(world.first_tokens, [4, 3, 1, 2].map(RequestKey));
}

/// Order of the first tokens of three prompts that arrive together.
fn order(config: &SchedulerConfig, kv_blocks: u32, lens: [usize; 3]) -> Vec<u64> {
    let mut world = World::new(config, kv_blocks);
    let params = SamplingParams { max_tokens: 2, ..SamplingParams::default() };
    for (key, len) in (1..).zip(lens) {
        world.submit(NewRequest { params: Arc::new(params.clone()), ..prompt(key, len) });
    }
    world.run();
    world.first_tokens.iter().map(|key| key.0).collect()
}

#[test]
fn a_sequence_waiting_for_blocks_or_a_seat_is_not_passed_by_smaller_ones() {
    let config = SchedulerConfig { max_num_batched_tokens: 16, max_model_len: Some(100), ..roomy() };
    assert_eq!(order(&config, 64, [80, 40, 4]), [3, 2, 1], "with room for all the shortest is first");
    // 30 blocks of 4: two long prompts do not fit.
    assert_eq!(order(&config, 30, [80, 40, 4]), [1, 3, 2], "the third one comes in when the second one does");
    let seats = SchedulerConfig { max_num_seqs: 2, ..config };
    assert_eq!(order(&seats, 64, [80, 20, 4]), [2, 3, 1], "the second seat is the second one's first");
}
