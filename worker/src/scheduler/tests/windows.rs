//! Sequences that give window blocks back. The fake backend checks that every key that a row sees is in the
//! window blocks of its sequence.

use super::scenarios::{Drafting, Scale, scenario_with};
use super::*;
use crate::backend::WindowBlocks;

/// From the fewest window blocks that the longest sequence needs to plenty, by seed.
fn windows(&Scale { seed, blocks, block_size, longest, .. }: &Scale) -> KvBlocks {
    let rng = &mut Rng::new(!seed);
    let window = rng.within(1..=14);
    let least = ((window - 1).div_ceil(block_size) + 1).min(longest.div_ceil(block_size));
    let window = WindowBlocks { window, blocks: least + rng.within(0..=least + 3) * rng.within(0..=2) };
    KvBlocks { window: Some(window), ..blocks.into() }
}

#[test]
fn sequences_that_give_window_blocks_back_draw_the_tokens_of_those_that_keep_all() {
    let mut preemptions = 0;
    for seed in 0..600 {
        for drafting in [Drafting::Off, Drafting::Given, Drafting::Guessed] {
            for depth in [1, 2, 4] {
                let run = || scenario_with(windows, seed, depth, drafting);
                let Ok((world, _)) = std::panic::catch_unwind(run) else {
                    panic!("seed {seed}, depth {depth}, {drafting:?} failed, see above")
                };
                preemptions += world.scheduler.preemptions();
            }
        }
    }
    assert!(preemptions > 1000, "window blocks ran out: {preemptions} preemptions");
}

/// A world with blocks of four tokens and windows of ten.
fn world(blocks: u32, windows: u32) -> World {
    let window = Some(WindowBlocks { window: 10, blocks: windows });
    World::new(&roomy(), KvBlocks { window, ..blocks.into() })
}

fn windows_held(world: &World) -> u32 {
    world.scheduler.kv.window_counts().expect("it has windows").held
}

#[test]
fn a_stream_holds_its_window_and_no_more() {
    let mut world = world(64, 20);
    let params = SamplingParams { max_tokens: 150, ..SamplingParams::default() };
    world.submit(request(1, vec![1; 60], params));
    let mut most = 0;
    while world.step() {
        if world.scheduler.queues.running.first().is_some_and(Sequence::is_streaming) {
            most = most.max(windows_held(&world));
        }
    }
    assert_eq!(most, 4, "ten positions lie in at most four blocks of four");
}

#[test]
fn a_long_prompt_has_large_steps_beside_streams() {
    let steps = |windows: u32| {
        let mut world = world(256, windows);
        let params = SamplingParams { max_tokens: 200, ..SamplingParams::default() };
        for key in 1..=6 {
            world.submit(request(key, vec![key as u32; 20], params.clone()));
        }
        while world.first_tokens.len() < 6 {
            world.step();
        }
        world.submit(request(7, vec![7; 500], params));
        (0..200).take_while(|_| world.step() && world.first_tokens.len() < 7).count()
    };
    let (scarce, plenty) = (steps(6 * 4 + 16), steps(200));
    assert!(scarce < plenty * 3 / 2, "{scarce} steps, {plenty} with plenty of window blocks");
}

#[test]
fn a_prefix_is_shared_where_its_last_window_is_cached() {
    let mut world = world(64, 14);
    let whole: Vec<u32> = (0..37).collect();
    let mut hit = |key: u64, prompt: &[TokenId]| {
        let params = SamplingParams { max_tokens: 1, ..SamplingParams::default() };
        world.submit(request(key, prompt.to_vec(), params));
        world.run();
        world.hits[&RequestKey(key)]
    };
    assert_eq!(hit(1, &whole), 0);
    // Nine full blocks, and as many window blocks, because nobody else needed them.
    assert_eq!(hit(2, &whole[..21]), 20);
    // Seven window blocks: two more than are blank, so that the first ones given back are lost.
    let other: Vec<u32> = (0..25).map(|at| 39 - at).collect();
    assert_eq!(hit(3, &other), 0);
    assert_eq!(hit(4, &whole[..36]), 32, "the end of the prefix has its window");
    assert_eq!(hit(5, &whole[..14]), 0, "its start has not");
    assert_eq!(hit(6, &whole[..14]), 12, "until it is computed again");
}
