//! The requests of clients: every kind of request, small enough that one worker holds several.

use std::sync::Arc;
use std::time::Duration;

use skein_proto::TokenId;
use skein_proto::sampling::SamplingParams;
use skein_router::request::{AdapterRef, TokenRequest};
use skein_worker::config::SchedulerConfig;

use crate::model::{LAST_STOP_TOKEN, MODEL, VOCAB_SIZE};
use crate::random::Random;
use crate::served::Ask;

/// Properties shared by the requests of one run.
#[derive(Debug, Clone)]
pub struct Flavour {
    /// Longest prompt in tokens.
    pub longest_prompt: u32,
    /// Most output tokens of a sample.
    pub longest_output: u32,
    /// Most samples of a request.
    pub most_samples: u32,
    /// Number of distinct prefixes of prompts.
    pub beginnings: u32,
    /// One client in this many cancels.
    pub cancels: u64,
    /// One client in this many reads slowly.
    pub slow_readers: u64,
    /// One request in this many has a deadline.
    pub deadlines: u64,
    /// One client in this many resumes its stream instead of reading it from the start.
    pub resumes: u64,
    /// Adapters that requests name; most of them name none.
    pub adapters: Vec<AdapterRef>,
}

impl Flavour {
    /// Properties that fit `limits` and workers with these adapters.
    pub fn new(random: &Random, limits: &SchedulerConfig, adapters: Vec<AdapterRef>) -> Self {
        let longest = limits.max_model_len.unwrap_or(64);
        Self {
            longest_prompt: random.small(2, longest * 3 / 4),
            longest_output: random.small(1, longest),
            most_samples: limits.max_num_seqs.min(random.small(1, 4)),
            beginnings: random.small(1, 4),
            cancels: random.pick(&[0, 3, 10]),
            slow_readers: random.pick(&[0, 4]),
            deadlines: random.pick(&[0, 0, 5]),
            resumes: random.pick(&[0, 1, 2]),
            adapters,
        }
    }
}

/// The plan of one client.
#[derive(Debug, Clone)]
pub struct Client {
    /// The request that it sends.
    pub ask: Ask,
    /// Its deadline from the first attempt, if it has one. Each attempt carries what is left.
    pub timeout: Option<Duration>,
    /// Time after which it cancels.
    pub cancels_after: Option<Duration>,
    /// Pause after each message.
    pub reads_every: Option<Duration>,
    /// Whether a retry says which tokens the client has.
    pub resumes: bool,
}

/// The client with this number.
pub fn client(random: &Random, flavour: &Flavour, number: u32) -> Client {
    let n = random.small(1, flavour.most_samples);
    let sampling = sampling(random, flavour);
    let stops = |_| random.once_in(6).then(|| random.small(1, sampling.max_tokens));
    let stop_after: Vec<Option<u32>> = (0..n).map(stops).collect();
    let prompt = prompt(random, flavour);
    let request = TokenRequest {
        n,
        // Some clients send related requests.
        call: u64::from(number % 3),
        cache_salt: if random.once_in(5) { "salt".into() } else { "".into() },
        priority: if random.once_in(4) { random.small(0, 4) as i32 - 2 } else { 0 },
        waits_for_worker: true,
        ..TokenRequest::new(format!("q{number}"), MODEL, prompt, sampling)
    };
    let mut client = Client {
        ask: Ask { request, stop_after, has: vec![0; n as usize] },
        timeout: random.once_in(flavour.deadlines).then(|| random.millis(50, 20_000)),
        cancels_after: random.once_in(flavour.cancels).then(|| random.millis(1, 5_000)),
        reads_every: random.once_in(flavour.slow_readers).then(|| random.millis(1, 1_000)),
        resumes: random.once_in(flavour.resumes),
    };
    if !flavour.adapters.is_empty() && random.once_in(2) {
        let nth = random.between(0, flavour.adapters.len() as u64 - 1) as usize;
        client.ask.request.adapter = Some(flavour.adapters[nth].clone());
    }
    client
}

fn prompt(random: &Random, flavour: &Flavour) -> Arc<[TokenId]> {
    let length = random.small(1, flavour.longest_prompt);
    let shared = random.small(0, length);
    let beginning = random.small(0, flavour.beginnings - 1);
    let token = |position| {
        if position < shared {
            (position * 7 + beginning * 13) % VOCAB_SIZE
        } else {
            random.small(0, VOCAB_SIZE - 1)
        }
    };
    (0..length).map(token).collect()
}

fn sampling(random: &Random, flavour: &Flavour) -> SamplingParams {
    let max_tokens = random.small(1, flavour.longest_output);
    let penalised = random.once_in(3);
    SamplingParams {
        temperature: if random.once_in(2) { 1.0 } else { 0.0 },
        repetition_penalty: if penalised { 1.1 } else { 1.0 },
        frequency_penalty: if penalised { 0.5 } else { 0.0 },
        seed: random.number(),
        logit_bias: if random.once_in(4) { vec![(3, 1.5)] } else { Vec::new() },
        max_tokens,
        min_tokens: if random.once_in(4) { random.small(0, max_tokens) } else { 0 },
        stop_token_ids: if random.once_in(3) { vec![5, 11, LAST_STOP_TOKEN] } else { Vec::new() },
        ignore_eos: random.once_in(2),
        logprobs: random.once_in(4).then(|| random.small(0, 3)),
        prompt_logprobs: random.once_in(6).then(|| random.small(0, 3)),
        ..SamplingParams::default()
    }
}
