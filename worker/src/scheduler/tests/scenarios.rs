//! Random scenarios: requests, aborts, cancels, resumes, drafts and too few blocks, all at once.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drafting {
    Off,
    /// Right, wrong and mixed drafts, always verified.
    Given,
    /// Drafts of the guesser, with a model that repeats itself.
    Guessed,
}

/// One random scenario in a small pool, with up to `depth` steps in flight. Returns the world at its end and
/// the streams that nothing cut short.
fn random_scenario(
    seed: u64,
    depth: usize,
    drafting: Drafting,
) -> (World, HashMap<(RequestKey, u32), Stream>) {
    scenario_with(|scale| scale.blocks.into(), seed, depth, drafting)
}

/// Sizes of a scenario.
pub(super) struct Scale {
    pub seed: u64,
    pub blocks: u32,
    pub block_size: u32,
    /// Tokens of the longest sequence.
    pub longest: u32,
    /// Configured limit of running samples.
    pub seats: u32,
}

/// [`random_scenario`] with the cache that `cache` chooses.
pub(super) fn scenario_with(
    cache: impl Fn(&Scale) -> KvBlocks,
    seed: u64,
    depth: usize,
    drafting: Drafting,
) -> (World, HashMap<(RequestKey, u32), Stream>) {
    let rng = &mut Rng::new(seed);
    let kv_blocks = rng.within(4..=24);
    let block_size = rng.within(1..=5);
    let longest = rng.within(2..=(kv_blocks * block_size).min(40));
    let config = SchedulerConfig {
        block_size,
        max_model_len: Some(longest),
        max_num_seqs: rng.within(1..=6),
        max_num_batched_tokens: rng.within(1..=24),
        max_num_queued_reqs: 1000,
        enable_prefix_caching: rng.chance(80),
        ..SchedulerConfig::default()
    };
    let habits = if drafting == Drafting::Guessed { 20..26 } else { 0..0 };
    let scale = Scale { seed, blocks: kv_blocks, block_size, longest, seats: config.max_num_seqs };
    let kv_blocks = cache(&scale);
    let mut world = World::with_habits(habits.clone(), depth, &config, kv_blocks);
    let answers = Answers::default();
    match drafting {
        Drafting::Off => {}
        Drafting::Given => world.draft(&answers, rng.within(1..=6)),
        Drafting::Guessed => world.guess(config.enable_prefix_caching),
    }
    let mut expected = HashMap::new();
    let mut skipped = HashMap::new();
    let mut aborted = Vec::new();
    for key in 1..=u64::from(rng.within(1..=14)) {
        let mut request = random_request(rng, key, longest);
        let n = rng.within(1..=3.min(world.scheduler.max_num_seqs()));
        request.samples = (0..n).map(|index| NewSample { index, delivered: Vec::new() }).collect();
        for (index, stream) in alone_with_habits(habits.clone(), &request, longest).into_iter().enumerate() {
            if rng.chance(30) && !stream.tokens.is_empty() {
                let had = rng.within(1..=stream.tokens.len() as u32) as usize;
                request.samples[index].delivered = stream.tokens[..had].to_vec();
                skipped.insert((request.key, index as u32), had);
            }
            answers.add(&request.prompt, &stream.tokens);
            expected.insert((request.key, index as u32), stream);
        }
        world.submit(request);
        for _ in 0..rng.within(0..=6) {
            world.step();
        }
        if rng.chance(10) {
            let victim = RequestKey(u64::from(rng.within(1..=key as u32)));
            world.scheduler.cancel(victim);
            world.cancelled.push(victim);
            world.check_blocks();
        }
        if rng.chance(15) {
            let victim = (RequestKey(u64::from(rng.within(1..=key as u32))), rng.within(0..=2));
            if let Some(event) = world.scheduler.abort(victim.0, victim.1) {
                aborted.push(victim);
                world.take(vec![event]);
            }
            world.check_blocks();
        }
    }
    world.run();
    let mut whole_streams = HashMap::new();
    for (id, stream) in &world.streams {
        let whole = &expected[id];
        let from = skipped.get(id).copied().unwrap_or(0);
        let cut_short = aborted.contains(id) || (world.cancelled.contains(&id.0) && stream.finish.is_none());
        if cut_short {
            assert!(whole.tokens[from..].starts_with(&stream.tokens), "seed {seed}: {id:?} is a prefix");
        } else {
            assert_eq!(stream.finish, whole.finish, "seed {seed}: {id:?} ends alike");
            assert_eq!(stream.tokens, whole.tokens[from..], "seed {seed}: {id:?} from {from}");
            assert_eq!(stream.logprobs, whole.logprobs[from..], "seed {seed}: {id:?} logprobs");
            assert_eq!(stream.stop_logprobs, whole.stop_logprobs, "seed {seed}: {id:?} stop token");
            let wanted = stream.logprobs.iter().any(Option::is_some);
            if let Some(FinishReason::Stop(Some(token))) = stream.finish.filter(|_| wanted) {
                assert_eq!(
                    stream.stop_logprobs.as_ref().map(|stop| stop.token),
                    Some(token),
                    "seed {seed}: {id:?}"
                );
            }
            whole_streams.insert(*id, stream.clone());
        }
    }
    (world, whole_streams)
}

#[test]
fn any_mix_gives_the_tokens_of_each_request_alone() {
    let (mut carried, mut dropped) = (0, 0);
    for seed in 0..600 {
        let outcomes =
            std::panic::catch_unwind(|| [1, 2, 4].map(|depth| random_scenario(seed, depth, Drafting::Off)));
        let Ok([(alternating, one_by_one), (overlapped, two_deep), (_, four_deep)]) = outcomes else {
            panic!("seed {seed} failed, see above")
        };
        for (id, stream) in &one_by_one {
            for other in [&two_deep, &four_deep] {
                assert!(
                    other.get(id).is_none_or(|other| other == stream),
                    "seed {seed}: {id:?} at all depths"
                );
            }
        }
        assert_eq!((alternating.carried, alternating.dropped), (0, 0), "seed {seed}: nothing is unknown");
        carried += overlapped.carried;
        dropped += overlapped.dropped;
    }
    assert!(carried > 10_000 && dropped > 100, "the overlap was tried: {carried} carried, {dropped} dropped");
}

#[test]
fn drafts_change_no_token() {
    check_drafts(Drafting::Given, 5_000, 5_000);
}

#[test]
fn guesses_change_no_token() {
    check_drafts(Drafting::Guessed, 5_000, 1_000);
}

fn check_drafts(drafting: Drafting, least_right: usize, least_wrong: usize) {
    let (mut accepted, mut drafted) = (0, 0);
    for seed in 0..600 {
        let outcomes =
            std::panic::catch_unwind(|| [1, 2, 3].map(|depth| random_scenario(seed, depth, drafting)));
        let Ok(outcomes) = outcomes else { panic!("seed {seed} failed, see above") };
        for (world, _) in outcomes {
            let carries = drafting == Drafting::Guessed;
            assert!(carries || world.carried == 0, "seed {seed}: a draft follows a known token");
            accepted += world.accepted;
            drafted += world.drafted;
        }
    }
    assert!(accepted > least_right, "drafts were right: {accepted} of {drafted}");
    assert!(drafted - accepted > least_wrong, "drafts were wrong: {accepted} of {drafted}");
}
