//! Right, wrong and mixed drafts: what they save, what they cost, and that they change no token.

use std::sync::Mutex;

use super::*;
use crate::draft::{Guesser, Speculate};

/// Complete sequences, for a proposer that knows the future.
#[derive(Debug, Clone, Default)]
pub struct Answers(Arc<Mutex<Vec<Vec<TokenId>>>>);

impl Answers {
    pub fn add(&self, prompt: &[TokenId], output: &[TokenId]) {
        self.0.lock().expect("no test fails here").push([prompt, output].concat());
    }

    /// Proposes in turn right tokens, garbage, and right tokens followed by garbage.
    fn in_turn(&self) -> Propose {
        let (answers, mut turn) = (self.0.clone(), 0);
        Box::new(move |tokens, most, draft| {
            turn += 1;
            let right = [most, 0, most / 2][turn % 3];
            let answers = answers.lock().expect("no test fails here");
            let answer =
                answers.iter().find(|answer| answer.len() > tokens.len() && answer.starts_with(tokens));
            draft.extend(answer.iter().flat_map(|answer| &answer[tokens.len()..]).take(right));
            // Wrong tokens of the vocabulary, which the verification must reject.
            draft.extend((draft.len()..most).map(|at| (at * 7 + turn) as TokenId % VOCAB));
        })
    }
}

impl World {
    /// Gives streams drafts of up to `most` tokens from now on.
    pub fn draft(&mut self, answers: &Answers, most: u32) {
        self.scheduler.set_drafts(Drafts::new(most, answers.in_turn()));
    }

    /// Makes drafts from now on.
    pub fn guess(&mut self, shares: bool) {
        let guesser = Guesser::new(Speculate::Auto, shares).expect("it is on");
        self.scheduler.set_drafts(Drafts::guessed(guesser));
    }
}

#[test]
fn a_right_draft_saves_steps_and_a_wrong_one_costs_rows() {
    let params = SamplingParams { temperature: 1.0, max_tokens: 33, ..SamplingParams::default() };
    let request = request(1, vec![3; 10], params);
    let expected = alone(&request, 64).remove(0);
    let run = |propose: Propose| {
        let mut world = World::at_depth(2, &roomy(), 64);
        world.scheduler.set_drafts(Drafts::new(3, propose));
        world.submit(request.clone());
        world.run();
        assert_eq!(world.streams[&(RequestKey(1), 0)], expected);
        (world.scheduler.committed_steps, world.rows)
    };
    let whole = [&request.prompt[..], &expected.tokens].concat();
    let right = move |tokens: &[TokenId], most: usize, draft: &mut Vec<TokenId>| {
        draft.extend(whole[tokens.len()..].iter().take(most));
    };
    assert_eq!(run(Box::new(right)), (1 + 8, 10 + 32), "one token by the prompt, four by each step after it");
    let wrong = |_: &[TokenId], most: usize, draft: &mut Vec<TokenId>| draft.resize(most, VOCAB - 1);
    let (steps, rows) = run(Box::new(wrong));
    let tried = expected.tokens.iter().filter(|&&token| token != VOCAB - 1).count() as u32;
    assert!(steps <= 33 && rows > 10 + 3 * (tried - 4), "{steps} steps, {rows} rows");
    let (steps, rows) = run(Box::new(|_, _, _| {}));
    assert_eq!((steps, rows), (33, 10 + 32), "an empty draft is plain decoding, one step at a time");
}

#[test]
fn blocks_of_a_wrong_draft_are_freed() {
    let mut world = World::new(&roomy(), 64);
    let propose = |_: &[TokenId], most: usize, draft: &mut Vec<TokenId>| draft.resize(most, VOCAB - 1);
    world.scheduler.set_drafts(Drafts::new(12, Box::new(propose)));
    let params = SamplingParams { max_tokens: 40, ..SamplingParams::default() };
    world.submit(request(1, vec![5; 9], params));
    world.step();
    for _ in 0..5 {
        world.launch(|_| Duration::from_millis(1));
        let (held, planned) = (world.scheduler.kv.counts().held, &world.scheduler.queues.running[0]);
        assert_eq!(held, (planned.len() + 12).div_ceil(4), "room for the draft");
        world.collect();
        let (held, known) = (world.scheduler.kv.counts().held, &world.scheduler.queues.running[0]);
        assert_eq!(held, known.len().div_ceil(4), "and none behind the right tokens");
    }
}

#[test]
fn drafts_take_no_row_from_another_stream_and_not_all_from_prompts() {
    let config = SchedulerConfig { max_num_seqs: 6, max_num_batched_tokens: 8, ..roomy() };
    let mut world = World::new(&config, 64);
    let propose = |_: &[TokenId], most: usize, draft: &mut Vec<TokenId>| draft.resize(most, 1);
    world.scheduler.set_drafts(Drafts::new(9, Box::new(propose)));
    for key in 1..=6 {
        world.submit(request(key, vec![key as u32; 3], SamplingParams::default()));
    }
    while world.first_tokens.len() < 6 {
        world.step();
    }
    let lens =
        |world: &World| -> Vec<u32> { world.scheduler.queues.running.iter().map(|s| s.len()).collect() };
    let before = lens(&world);
    world.step();
    let after = lens(&world);
    assert_eq!(before.len(), 6, "all of them stream");
    assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?}, then {after:?}");
}

#[test]
fn the_cache_holds_what_drafts_got_right() {
    let params = SamplingParams { temperature: 1.0, max_tokens: 30, ..SamplingParams::default() };
    let first = request(1, (0..10).collect(), params);
    let expected = alone(&first, 64).remove(0);
    let answers = Answers::default();
    answers.add(&first.prompt, &expected.tokens);
    let mut world = World::at_depth(2, &roomy(), 64);
    world.draft(&answers, 5);
    world.submit(first.clone());
    world.run();
    // A second turn of the same conversation finds every full block of the first one.
    let longer = [&first.prompt[..], &expected.tokens, &[7, 8]].concat();
    world.submit(request(2, longer, SamplingParams::default()));
    world.run();
    assert_eq!(world.hits[&RequestKey(2)], (10 + 29) / 4 * 4, "all but the last token were computed");
    assert!(world.accepted > 5 && world.drafted > world.accepted);
}

#[test]
fn no_drafts_while_a_prompt_has_rows_to_compute() {
    let config = SchedulerConfig { max_num_batched_tokens: 16, ..roomy() };
    let mut world = World::with_habits(20..26, 1, &config, 256);
    world.guess(true);
    let params = SamplingParams { max_tokens: 200, ..SamplingParams::default() };
    world.submit(request(1, vec![21; 4], params.clone()));
    for _ in 0..40 {
        world.step();
    }
    let before = world.drafted;
    assert!(world.accepted > 20, "{} of {before}", world.accepted);
    world.submit(request(2, (0..100).map(|at| at % 19).collect(), params));
    while !world.first_tokens.contains(&RequestKey(2)) {
        world.step();
    }
    assert_eq!(world.drafted, before, "the prompt has all other rows");
    for _ in 0..10 {
        world.step();
    }
    assert!(world.drafted > before);
}

#[test]
fn drafts_leave_a_block_for_every_stream() {
    // Little more than three blocks for each of two streams: no draft may preempt one of them.
    let config = SchedulerConfig { enable_prefix_caching: false, ..roomy() };
    for kv_blocks in 6..12 {
        let mut world = World::with_habits(20..26, 1, &config, kv_blocks);
        world.guess(false);
        let params = SamplingParams { max_tokens: (kv_blocks * 4) / 2 - 4, ..SamplingParams::default() };
        for key in 1..=2 {
            world.submit(request(key, vec![21; 4], params.clone()));
        }
        world.run();
        assert_eq!(world.scheduler.preemptions(), 0, "{kv_blocks} blocks");
    }
}
