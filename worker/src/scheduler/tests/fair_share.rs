//! A small request beside a call of many sequences: its waiting time, and that both produce the same tokens
//! as alone.

use super::*;

/// Approximate duration of a step of the shipped model on a laptop.
fn duration_of_step(rows: u32) -> Duration {
    Duration::from_micros(2_000 + 150 * u64::from(rows))
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        block_size: 16,
        max_num_seqs: 64,
        max_num_batched_tokens: 512,
        max_model_len: Some(1024),
        ..SchedulerConfig::default()
    }
}

/// A prompt of call `call`: `samples` samples of up to `tokens` tokens.
fn part_of(call: u64, key: u64, samples: u32, tokens: u32) -> NewRequest {
    let params = SamplingParams { temperature: 1.0, max_tokens: tokens, ..SamplingParams::default() };
    let prompt = (0..20).map(|at| (at * 3 + key as u32) % VOCAB).collect();
    let samples = (0..samples).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    NewRequest { call: Some(call), samples, ..request(key, prompt, params) }
}

fn small(key: u64) -> NewRequest {
    part_of(key, key, 1, 8)
}

/// Steps until request `key` ends; returns the simulated time.
fn time_to_end(world: &mut World, key: u64) -> Duration {
    let start = world.now;
    while world.streams[&(RequestKey(key), 0)].finish.is_none() {
        assert!(
            world.step_that_takes(duration_of_step),
            "it has not ended, so there is something to compute"
        );
    }
    world.now.since(start)
}

#[test]
fn eight_tokens_beside_a_call_of_128_prompts_of_16_samples_of_1000_tokens_take_a_few_steps() {
    // With room for everything that runs, and with room for a quarter of it.
    for kv_blocks in [64 * 64, 16 * 64] {
        let mut world = World::new(&config(), kv_blocks);
        world.submit(small(1));
        let alone = time_to_end(&mut world, 1);
        for key in 1000..1128 {
            world.submit(part_of(5000, key, 16, 1000));
        }
        let mut waits = Vec::new();
        for key in 2..12 {
            for _ in 0..40 {
                world.step_that_takes(duration_of_step);
            }
            world.submit(small(key));
            waits.push(time_to_end(&mut world, key));
            world.scheduler.audit().expect("blocks and queues are consistent");
        }
        let full_step = duration_of_step(64 + 20);
        waits.sort_unstable();
        println!("{kv_blocks} blocks: alone {alone:?}, beside it {:?} to {:?}", waits[0], waits[9]);
        assert!(waits[9] < full_step * 20, "{kv_blocks} blocks: {waits:?}");
    }
}

#[test]
fn a_small_request_passes_one_that_needs_every_seat_while_another_has_them() {
    let mut world = World::new(&config(), 64 * 64);
    for key in [1, 2] {
        world.submit(part_of(key, key, 64, 300));
    }
    for _ in 0..40 {
        world.step_that_takes(duration_of_step);
    }
    let mut waits = Vec::new();
    for key in 3..13 {
        world.submit(small(key));
        waits.push(time_to_end(&mut world, key));
        world.scheduler.audit().expect("blocks and queues are consistent");
    }
    assert!(waits.iter().all(|wait| *wait < duration_of_step(64 + 20) * 20), "{waits:?}");
    // Neither waits forever, although small ones keep arriving.
    let mut key = 13;
    while [1, 2].iter().any(|of| world.streams[&(RequestKey(*of), 0)].finish.is_none()) {
        world.submit(small(key));
        time_to_end(&mut world, key);
        key += 1;
        assert!(key < 2000, "the large requests get on");
    }
}

#[test]
fn a_call_alone_has_all_seats_and_beside_others_its_share() {
    let seats = |world: &World, call| {
        let running = world.scheduler.queues.running.iter();
        let of_call =
            running.filter(|sequence| sequence.call == crate::scheduler::sequence::Call::Named(call));
        of_call.map(|sequence| sequence.samples.len()).sum::<usize>()
    };
    let mut world = World::new(&config(), 64 * 64);
    for key in 0..20 {
        world.submit(part_of(1, key, 4, 500));
    }
    for _ in 0..20 {
        world.step_that_takes(duration_of_step);
    }
    assert_eq!(seats(&world, 1), 64, "alone");
    for key in 20..60 {
        world.submit(part_of(2, key, 4, 500));
    }
    for _ in 0..20 {
        world.step_that_takes(duration_of_step);
    }
    assert_eq!([seats(&world, 1), seats(&world, 2)], [32, 32], "two calls share evenly");
    // More calls than shares: no call loses a seat within its least share.
    for key in 100..200 {
        world.submit(part_of(key, key, 1, 500));
    }
    for _ in 0..20 {
        world.step_that_takes(duration_of_step);
    }
    assert_eq!([seats(&world, 1), seats(&world, 2)], [8, 8]);
    assert_eq!(world.scheduler.queues.seats_taken(0), 64, "no seat is empty");
}

#[test]
fn a_call_beside_small_requests_without_end_gets_on_in_its_share() {
    let mut world = World::new(&config(), 64 * 64);
    for key in 0..8 {
        world.submit(part_of(1, key, 8, 200));
    }
    let mut key = 100;
    let unfinished = |world: &World| {
        world.streams.iter().filter(|((key, _), stream)| key.0 < 8 && stream.finish.is_none()).count()
    };
    let mut steps = 0;
    while unfinished(&world) > 0 {
        steps += 1;
        // As many as the remaining seats can hold.
        for _ in 0..7 {
            world.submit(small(key));
            key += 1;
        }
        world.step_that_takes(duration_of_step);
        assert!(steps < 8 * 200 * 2, "{} sequences of the call are left", unfinished(&world));
    }
    println!("64 sequences of 200 tokens in {steps} steps beside {} small requests", key - 100);
}

#[test]
fn sharing_seats_changes_no_token() {
    for seed in 0..30 {
        let rng = &mut Rng::new(seed);
        let config = SchedulerConfig { max_num_seqs: 8, max_model_len: Some(60), ..roomy() };
        let mut world = World::new(&config, 40);
        let mut requests = Vec::new();
        for key in 0..24 {
            let samples = rng.within(1..=4);
            requests.push(part_of(u64::from(rng.within(1..=3)), key, samples, rng.within(1..=30)));
        }
        for request in &requests {
            world.submit(request.clone());
            for _ in 0..rng.within(0..=3) {
                world.step();
            }
        }
        world.run();
        for request in &requests {
            let alone = alone(request, 60);
            for (sample, expected) in request.samples.iter().zip(alone) {
                assert_eq!(world.streams[&(request.key, sample.index)], expected, "seed {seed}");
            }
        }
    }
}
