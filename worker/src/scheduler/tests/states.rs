//! Sequences with a state. The fake backend checks that the state before a row has exactly the tokens in the
//! sequence's blocks before it.

use super::scenarios::{Drafting, Scale, scenario_with};
use super::*;

/// From one slot to plenty, by seed.
fn states(&Scale { seed, blocks, seats, .. }: &Scale) -> KvBlocks {
    let rng = &mut Rng::new(!seed);
    let slots = rng.within(1..=2 * seats + 8);
    KvBlocks { states: Some(slots), ..blocks.into() }
}

#[test]
fn sequences_with_states_draw_the_tokens_of_those_without() {
    let (mut preemptions, mut resumed, mut accepted) = (0, 0, 0);
    for seed in 0..600 {
        for drafting in [Drafting::Off, Drafting::Given, Drafting::Guessed] {
            for depth in [1, 2, 4] {
                let run = || scenario_with(states, seed, depth, drafting);
                let Ok((world, _)) = std::panic::catch_unwind(run) else {
                    panic!("seed {seed}, depth {depth}, {drafting:?} failed, see above")
                };
                preemptions += world.scheduler.preemptions();
                resumed += world.hits.values().filter(|tokens| **tokens > 0).count();
                accepted += world.accepted;
            }
        }
    }
    assert!(preemptions > 1000 && resumed > 300 && accepted > 5_000, "{preemptions}, {resumed}, {accepted}");
}

struct Chats {
    world: World,
    last: u64,
}

impl Chats {
    /// `slots` slots beside blocks for thousands of tokens.
    fn new(slots: u32) -> Self {
        let config = SchedulerConfig { block_size: 4, max_model_len: Some(4000), ..roomy() };
        let blocks = KvBlocks { states: Some(slots), ..4000.into() };
        Self { world: World::new(&config, blocks), last: 0 }
    }

    /// Runs a prompt; returns the tokens found in the cache and those of the answer.
    fn ask(&mut self, prompt: &[TokenId], max_tokens: u32) -> (u32, Vec<TokenId>) {
        self.last += 1;
        let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
        self.world.submit(request(self.last, prompt.to_vec(), params));
        self.world.run();
        let key = RequestKey(self.last);
        (self.world.hits[&key], self.world.streams[&(key, 0)].tokens.clone())
    }
}

/// `len` tokens that differ by `seed`.
fn text(seed: u64, len: u32) -> Vec<TokenId> {
    let rng = &mut Rng::new(seed);
    (0..len).map(|_| rng.within(0..=VOCAB - 1)).collect()
}

#[test]
fn a_conversation_recomputes_less_than_two_blocks_a_turn() {
    let mut chats = Chats::new(16);
    let mut conversation = text(0, 1201);
    for turn in 1..=40 {
        let (hit, answer) = chats.ask(&conversation, 21);
        let known = conversation.len() as u32 - 31;
        assert!(turn == 1 || hit + 2 * 4 > known, "turn {turn}: {hit} of {known}");
        conversation.extend(answer);
        conversation.extend(text(turn, 30));
        conversation.truncate(3900);
    }
}

/// An agent: 40 turns of 300 new tokens on up to 12,000, and sub-agents that part from it and come back.
#[test]
fn an_agents_turns_recompute_at_most_a_twentieth_more_than_is_new() {
    let config = SchedulerConfig { block_size: 16, max_model_len: Some(16_000), ..roomy() };
    let blocks = KvBlocks { states: Some(80), ..4000.into() };
    let mut chats = Chats { world: World::new(&config, blocks), last: 0 };
    let (mut conversation, mut recomputed, mut new) = (text(0, 700), 0, 700);
    let mut known = 0;
    for turn in 1..=40 {
        let (hit, answer) = chats.ask(&conversation, 80);
        recomputed += conversation.len() as u32 - hit;
        new += if turn > 1 { conversation.len() as u32 - known } else { 0 };
        // The last token of an answer is drawn and not computed.
        known = (conversation.len() + answer.len()) as u32 - 1;
        if turn % 8 == 0 {
            let mut branch = [&conversation[..], &text(1000 + turn, 300)].concat();
            for own in [300, 221, 221] {
                let (hit, answer) = chats.ask(&branch, 80);
                recomputed += branch.len() as u32 - hit;
                new += own;
                branch.extend(answer);
                branch.extend(text(2000 + turn, 220));
            }
        }
        conversation.extend(answer);
        conversation.extend(text(turn, 220));
    }
    assert!(conversation.len() > 12_000 && recomputed >= new);
    assert!(recomputed * 20 <= new * 21, "{recomputed} tokens were computed, {new} were new");
}

#[test]
fn a_turn_that_drops_the_answer_resumes_at_the_prompt_end() {
    let mut chats = Chats::new(16);
    let prompt = text(1, 403);
    chats.ask(&prompt, 50);
    let next = [&prompt[..401], &text(2, 30)].concat();
    assert_eq!(chats.ask(&next, 1).0, 400);
}

#[test]
fn the_second_prompt_that_parts_leaves_a_state_for_the_third() {
    let mut chats = Chats::new(16);
    let shared = text(3, 200);
    let hits: Vec<u32> = (4..8).map(|n| chats.ask(&[&shared[..], &text(n, 60)].concat(), 1).0).collect();
    assert_eq!(hits, [0, 0, 200, 200]);
}

#[test]
fn a_prompt_resumes_also_if_there_are_only_as_many_slots_as_sequences() {
    let mut chats = Chats::new(roomy().max_num_seqs);
    let prompt = text(1, 403);
    assert_eq!([0, 1, 2].map(|_| chats.ask(&prompt, 5).0), [0, 400, 400]);
}

#[test]
fn prompts_that_nobody_repeats_leave_conversations_alone() {
    let mut chats = Chats::new(24);
    let shared = text(9, 300);
    chats.ask(&shared, 1);
    assert_eq!(chats.ask(&shared, 1).0, 296);
    for n in 0..200 {
        chats.ask(&text(100 + n, 40), 1);
    }
    assert_eq!(chats.ask(&shared, 1).0, 296);
}
