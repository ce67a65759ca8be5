//! Held sequences: they wait while others run.

use super::super::in_flight::Pause;
use super::*;

/// A hold for the mask of the token at `position`.
fn mask(position: u32) -> Hold {
    Hold::Mask { position }
}

#[test]
fn a_sequence_waits_for_its_masks_while_others_go_on() {
    for depth in [1, 2, 3] {
        let params = SamplingParams { temperature: 1.0, max_tokens: 12, ..SamplingParams::default() };
        let masked = request(1, vec![3; 10], params.clone());
        let free = request(2, vec![4; 10], params);
        let expected = [&masked, &free].map(|request| alone(request, 40).remove(0));
        let mut world = World::at_depth(depth, &roomy(), 64);
        world.submit(masked);
        assert!(world.scheduler.hold(RequestKey(1), 0, mask(10)));
        world.submit(free);
        for _ in 0..6 + depth {
            world.step();
        }
        let tokens = |world: &World, key: u64| world.streams[&(RequestKey(key), 0)].tokens.len();
        assert_eq!(
            (tokens(&world, 1), tokens(&world, 2)),
            (0, 7),
            "depth {depth}: one waits, the other goes on"
        );
        let sequence = &world.scheduler.queues.running[0];
        assert_eq!(sequence.pause(world.scheduler.planned_steps + 1), Some(Pause::Held(mask(10))));
        assert!(!world.scheduler.lift(RequestKey(1), 0, mask(9)), "another position's mask lifts nothing");
        assert!(world.scheduler.lift(RequestKey(1), 0, mask(10)));
        world.step();
        // It waits for the next mask, too, until the other sequence has ended.
        world.scheduler.hold(RequestKey(1), 0, mask(11));
        while world.step() {}
        assert_eq!(tokens(&world, 1), 1, "depth {depth}: the token in flight came");
        assert_eq!(world.streams[&(RequestKey(2), 0)], expected[1]);
        assert!(!world.step(), "nothing is planned, and nothing breaks");
        assert!(!world.scheduler.is_idle());
        world.scheduler.lift(RequestKey(1), 0, mask(11));
        world.run();
        assert_eq!(world.streams[&(RequestKey(1), 0)], expected[0], "depth {depth}");
    }
}

#[test]
fn a_held_sample_can_be_aborted_and_a_held_head_blocks_no_other() {
    let mut world = World::new(&roomy(), 64);
    world.submit(request(1, vec![1; 8], SamplingParams::default()));
    world.scheduler.hold(RequestKey(1), 0, Hold::Loading);
    world.submit(request(2, vec![2; 8], SamplingParams::default()));
    while world.step() {}
    assert_eq!(world.streams[&(RequestKey(2), 0)].finish, Some(FinishReason::Length));
    let event = world.scheduler.abort(RequestKey(1), 0).expect("it is here");
    world.take(vec![event]);
    world.run();
    assert!(!world.scheduler.lift(RequestKey(1), 0, Hold::Loading), "it is gone");
}

#[test]
fn every_pause_has_its_reason() {
    let params = SamplingParams { temperature: 1.0, max_tokens: 9, ..SamplingParams::default() };
    let pause = |world: &World| world.scheduler.queues.running[0].pause(world.scheduler.planned_steps + 1);
    let mut world = World::at_depth(2, &roomy(), 64);
    let samples = (0..2).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    world.submit(NewRequest { samples, ..request(1, vec![1; 8], params.clone()) });
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Forking));

    let mut world = World::at_depth(2, &roomy(), 64);
    world.draft(&Answers::default(), 2);
    world.submit(request(1, vec![1; 8], params.clone()));
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Verifying));

    let mut world = World::at_depth(2, &roomy(), 64);
    world.submit(request(1, vec![1; 8], SamplingParams { max_tokens: 1, ..params.clone() }));
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Ending));

    // A history can end with one unknown token, not with two.
    let mut world = World::at_depth(3, &roomy(), 64);
    world.submit(request(1, vec![1; 8], SamplingParams { frequency_penalty: 0.5, ..params }));
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), None, "the next row's token is carried");
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Drawing));
}
