//! Background requests beside others: how much they delay them, and how many rows they get.

use super::overtake::{SPEEDS, Speed, first_token, prompt};
use super::*;

/// Number of sequences in the batch, and their lengths.
const BATCH: u64 = 32;
const TOKENS: u32 = 40;

fn of_batch(key: u64, priority: i32) -> NewRequest {
    let params = SamplingParams { max_tokens: TOKENS, ..SamplingParams::default() };
    NewRequest { priority, params: Arc::new(params), ..prompt(key, 60) }
}

/// A world with a running batch and a recent request of another kind.
fn beside_a_batch(speed: Speed, priority: i32) -> World {
    let mut world = speed.world();
    for key in 1..=BATCH {
        world.submit(of_batch(key, priority));
    }
    for _ in 0..30 {
        world.step_that_takes(speed.of_step());
    }
    assert!(!world.scheduler.is_idle(), "the batch still runs");
    world
}

#[test]
fn a_request_beside_a_batch_waits_for_a_step_that_is_hardly_longer() {
    for speed in SPEEDS {
        let mut world = speed.world();
        let start = world.now;
        world.submit(prompt(500, 128));
        let (alone, _) = first_token(&mut world, 500, start, speed);

        let mut world = beside_a_batch(speed, BACKGROUND);
        // The request arrives just after a step of the batch was planned.
        world.launch(speed.of_step());
        let (arrival, in_its_way) = (world.now, world.last_step);
        world.submit(prompt(500, 128));
        world.collect();
        let (beside, _) = first_token(&mut world, 500, arrival, speed);
        let slightly_longer = speed.of_step()(1).mul_f64(1.4) + Duration::from_millis(1);
        assert!(in_its_way <= slightly_longer, "{speed:?}: a step of the batch takes {in_its_way:?}");
        assert!(beside <= alone + in_its_way, "{speed:?}: {beside:?}, alone {alone:?}");
        world.run();
    }
}

#[test]
fn a_batch_alone_gets_whole_steps() {
    let speed = SPEEDS[1];
    let mut world = speed.world();
    world.now = world.now + Duration::from_secs(11);
    let rows = world.rows;
    for key in 1..=BATCH {
        world.submit(of_batch(key, BACKGROUND));
    }
    let mut steps = 0;
    while world.step_that_takes(speed.of_step()) {
        steps += 1;
    }
    let whole = u64::from(world.rows - rows) as usize;
    assert!(steps < 3 * TOKENS as usize, "{steps} steps for {whole} rows");
    assert!(world.streams.values().all(|stream| stream.finish.is_some()));
}

#[test]
fn a_batch_continues_while_others_decode() {
    let speed = SPEEDS[1];
    let mut world = beside_a_batch(speed, BACKGROUND);
    let params = SamplingParams { max_tokens: 400, ignore_eos: true, ..SamplingParams::default() };
    world.submit(NewRequest { params: Arc::new(params), ..prompt(500, 20) });
    let tokens = |world: &World| {
        (1..=BATCH).map(|key| world.streams[&(RequestKey(key), 0)].tokens.len()).sum::<usize>()
    };
    let before = tokens(&world);
    for _ in 0..50 {
        world.step_that_takes(speed.of_step());
    }
    assert!(tokens(&world) >= before + 50, "a row a step at least");
    world.run();
}
