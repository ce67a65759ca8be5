//! Pipelines: as many steps in flight as stages, each with part of the streams.

use super::*;

/// A world whose backend has `stages` pipeline stages.
fn pipeline(stages: usize, config: &SchedulerConfig, kv_blocks: u32) -> World {
    let mut world = World::at_depth(stages, config, kv_blocks);
    world.scheduler.set_stages(stages as u32);
    world
}

#[test]
fn a_pipeline_draws_the_tokens_of_one_stage_and_carries_none() {
    for stages in [2, 3, 4] {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let config = SchedulerConfig { max_num_batched_tokens: 24, max_model_len: Some(40), ..roomy() };
            let mut world = pipeline(stages, &config, 40);
            let requests: Vec<_> = (1..=12).map(|key| random_request(&mut rng, key, 40)).collect();
            for request in &requests {
                world.submit(request.clone());
                for _ in 0..rng.within(0..=3) {
                    world.step();
                }
            }
            world.run();
            assert_eq!(world.carried, 0, "seed {seed}, {stages} stages");
            for request in requests {
                let expected = alone(&request, 40);
                for (sample, expected) in request.samples.iter().zip(expected) {
                    let stream = &world.streams[&(request.key, sample.index)];
                    assert_eq!(stream, &expected, "seed {seed}, {stages} stages");
                }
            }
        }
    }
}

#[test]
fn streams_are_spread_evenly_over_the_steps_in_flight() {
    let params = SamplingParams { max_tokens: 60, ..SamplingParams::default() };
    let mut world = pipeline(2, &roomy(), 200);
    (1..=5).for_each(|key| world.submit(request(key, vec![key as u32; 4], params.clone())));
    for _ in 0..20 {
        world.step();
    }
    let mut rows = Vec::new();
    for _ in 0..10 {
        let before = world.rows;
        assert!(world.step());
        rows.push(world.rows - before);
    }
    assert!(rows.iter().all(|rows| (2..=3).contains(rows)), "{rows:?}");
    assert!(
        rows.windows(2).all(|pair| pair[0] + pair[1] == 5),
        "each stream has one row in two steps: {rows:?}"
    );
}
