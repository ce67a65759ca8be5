//! Prompts whose vectors are wanted.

use skein_proto::pooling::Pooling;

use super::*;

fn pooled(key: u64, prompt: Vec<TokenId>) -> NewRequest {
    let pooling = Some(Pooling::default());
    request(key, prompt, SamplingParams { max_tokens: 1, pooling, ..SamplingParams::default() })
}

/// A world whose model reads prompts whole.
fn whole(depth: usize, config: &SchedulerConfig, kv_blocks: u32) -> World {
    let config = SchedulerConfig { enable_prefix_caching: false, ..config.clone() };
    let mut world = World::at_depth(depth, &config, kv_blocks);
    world.scheduler.set_whole_prompts();
    world.backend = FakeBackend::new(FakeOptions {
        vocab_size: VOCAB,
        block_size: config.block_size,
        kv_blocks,
        steps_in_flight: depth,
        reads_whole: true,
        ..FakeOptions::default()
    });
    world
}

fn prompt(rng: &mut Rng, longest: u32) -> Vec<TokenId> {
    let len = rng.within(1..=longest);
    (0..len).map(|_| rng.within(0..=VOCAB - 1)).collect()
}

fn vector_alone(mut world: World, prompt: &[TokenId]) -> Vec<f32> {
    world.submit(pooled(0, prompt.to_vec()));
    world.run();
    world.vectors.remove(&RequestKey(0)).expect("a vector")
}

#[test]
fn a_vector_is_that_of_the_prompt_alone_whatever_else_runs() {
    for seed in 0..60 {
        let (mut rng, is_whole, depth) = (Rng::new(seed), seed % 2 == 0, 1 + (seed as usize / 2) % 2);
        let world = || match is_whole {
            true => whole(depth, &roomy(), 40),
            false => World::at_depth(depth, &roomy(), 40),
        };
        let prompts: Vec<_> = (0..20).map(|_| prompt(&mut rng, 90)).collect();
        let mut together = world();
        for (key, prompt) in prompts.iter().enumerate() {
            together.submit(pooled(key as u64, prompt.clone()));
            if rng.chance(40) {
                together.step();
            }
        }
        together.run();
        for (key, prompt) in prompts.iter().enumerate() {
            let key = RequestKey(key as u64);
            assert_eq!(together.vectors[&key], vector_alone(world(), prompt), "seed {seed}, {key:?}");
            let stream = &together.streams[&(key, 0)];
            assert_eq!(stream.finish, Some(FinishReason::Stop(None)), "seed {seed}");
            assert!(stream.tokens.is_empty(), "seed {seed}: no token is drawn");
        }
    }
}

#[test]
fn a_prompt_read_whole_is_never_cut() {
    let mut world = whole(1, &roomy(), 64);
    // The second does not fit beside the first, the third does; the fourth is longer than any step.
    for (key, len) in [(1, 40), (2, 30), (3, 20), (4, 100)] {
        world.submit(pooled(key, vec![key as TokenId; len]));
    }
    let mut rows = Vec::new();
    while let Some(plan) = world.scheduler.plan(world.now) {
        rows.push(plan.batch.tokens.len());
        let handle = world.backend.launch(plan.batch).expect("the fake backend runs");
        let output = world.backend.collect(handle).expect("the fake backend runs");
        let events = world.scheduler.commit(plan.step, &output, world.now);
        world.take(events);
    }
    assert_eq!(rows, [60, 30, 100]);
    assert_eq!(world.vectors.len(), 4);
}

#[test]
fn a_vector_of_the_last_row_is_computed_in_chunks_and_from_the_cache() {
    let mut world = World::new(&roomy(), 64);
    let prompt = vec![3; 100];
    world.submit(pooled(1, prompt.clone()));
    world.run();
    let (first, steps) = (world.rows, world.scheduler.committed_steps);
    assert!(first == 100 && steps > 1, "{first} rows in {steps} steps");
    world.submit(pooled(2, prompt));
    world.run();
    assert!(world.hits[&RequestKey(2)] >= 96, "{:?}", world.hits);
    assert_eq!(world.vectors[&RequestKey(1)], world.vectors[&RequestKey(2)]);
}

#[test]
fn a_prompt_may_be_as_long_as_a_sequence() {
    for mut world in [whole(1, &roomy(), 16), World::new(&roomy(), 16)] {
        assert_eq!(world.scheduler.limits.max_model_len, 64);
        world.submit(pooled(1, vec![1; 64]));
        world.run();
        assert!(world.vectors.contains_key(&RequestKey(1)));
    }
}
