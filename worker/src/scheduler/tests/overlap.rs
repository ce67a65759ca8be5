//! Steps planned while the one before is in flight.

use super::*;

#[test]
fn only_an_unforeseen_end_costs_a_row() {
    let cost = |depth: usize, params: &SamplingParams| {
        let mut world = World::at_depth(depth, &roomy(), 64);
        world.submit(request(1, vec![3; 10], params.clone()));
        world.run();
        (world.rows, world.dropped, world.streams.remove(&(RequestKey(1), 0)).expect("it ran"))
    };
    let params = SamplingParams { max_tokens: 12, ..SamplingParams::default() };
    for depth in [1, 2] {
        let (rows, dropped, stream) = cost(depth, &params);
        assert_eq!((rows, dropped, stream.tokens.len()), (10 + 11, 0, 12), "max_tokens is foreseen");
    }
    let (.., stream) = cost(1, &params);
    let at = (1..12).find(|&at| !stream.tokens[..at].contains(&stream.tokens[at])).expect("a new token");
    let params = SamplingParams { stop_token_ids: vec![stream.tokens[at]], ..params };
    for (depth, late) in [(1, 0), (2, 1)] {
        let (rows, dropped, stopped) = cost(depth, &params);
        assert_eq!(stopped.tokens, stream.tokens[..at], "the late token is not seen");
        assert_eq!((rows, dropped), (10 + at as u32 + late, late as usize), "a stop token is not foreseen");
    }
}

#[test]
fn a_stream_keeps_a_step_in_flight() {
    let mut world = World::at_depth(2, &roomy(), 64);
    world.submit(request(1, vec![3; 10], SamplingParams { max_tokens: 30, ..SamplingParams::default() }));
    for _ in 0..30 {
        assert!(world.step());
        assert_eq!(
            world.in_flight.len(),
            1,
            "the device has its next step before the last one is accounted for"
        );
    }
    assert_eq!(world.carried, 29, "every row but the prompt's");
    world.run();
    assert!(world.carried == 29 && world.streams[&(RequestKey(1), 0)].tokens.len() == 30);
}

#[test]
fn a_sample_aborted_while_its_first_token_is_drawn_leaves_the_others_alone() {
    for (n, aborted) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
        let params = SamplingParams { temperature: 1.0, max_tokens: 9, ..SamplingParams::default() };
        let samples = (0..n).map(|index| NewSample { index, delivered: Vec::new() }).collect();
        let request = NewRequest { samples, ..request(1, (0..10).collect(), params) };
        let mut world = World::at_depth(2, &roomy(), 64);
        world.submit(request.clone());
        world.step();
        assert_eq!(world.in_flight.len(), 1, "{n} tokens are being drawn");
        let event = world.scheduler.abort(RequestKey(1), aborted).expect("it runs");
        world.take(vec![event]);
        world.check_blocks();
        world.run();
        for (sample, expected) in (0..n).zip(alone(&request, 40)) {
            let got = &world.streams[&(RequestKey(1), sample)];
            if sample == aborted {
                assert_eq!((got.tokens.len(), got.finish), (0, Some(FinishReason::Abort)));
            } else {
                assert_eq!(*got, expected, "sample {sample} of {n} without {aborted}");
            }
        }
    }
}

#[test]
fn a_cancelled_request_frees_its_blocks_while_they_are_written() {
    let mut world = World::at_depth(2, &SchedulerConfig { max_model_len: Some(40), ..roomy() }, 10);
    let params = SamplingParams { temperature: 1.0, max_tokens: 10, ..SamplingParams::default() };
    let second = request(2, vec![2; 30], params.clone());
    let expected = alone(&second, 40).remove(0);
    world.submit(request(1, vec![1; 30], params));
    world.step();
    world.scheduler.cancel(RequestKey(1));
    world.cancelled.push(RequestKey(1));
    assert_eq!(world.scheduler.kv.counts().free, 10, "at once");
    // The same blocks, in a step launched while the first one is in flight.
    world.submit(second);
    world.run();
    assert_eq!(world.streams[&(RequestKey(2), 0)], expected);
}
