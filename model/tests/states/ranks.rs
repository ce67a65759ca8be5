//! Ranks and stages change no bit.

use std::time::Duration;

use skein_kernels::collective::{Alone, Threads};
use skein_kernels::cpu::packed::Format;
use skein_model::config::ModelConfig;
use skein_model::shard::Shard;

use crate::instance::{Chunk, EXACT, Instance, Numbers, bits, tokens};
use crate::random;

/// Longest wait for another rank.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A prompt in two chunks, then two tokens with drafts.
fn steps(model: &mut Instance) -> Vec<Vec<u32>> {
    let prompt = tokens(50, 5);
    let chunk = |position: usize, end: usize, drafts| {
        let tokens = &prompt[position..end];
        Chunk { sequence: 1, position, tokens, drafts, wanted: 0..tokens.len() }
    };
    let steps = [chunk(0, 23, 0), chunk(23, 40, 0), chunk(40, 44, 3), chunk(42, 45, 2), chunk(45, 46, 0)];
    steps.into_iter().flat_map(|chunk| bits(&model.run(&[chunk]))).collect()
}

#[test]
fn two_and_four_ranks_have_the_bits_of_one() {
    for (name, numbers) in random::MODELS.iter().flat_map(|name| {
        let rounded = Numbers { bf16: true, rounded: Some(Format::INT8) };
        [(*name, EXACT), (*name, Numbers { bf16: true, ..EXACT }), (*name, rounded)]
    }) {
        let directory = random::make(name);
        let expected = steps(&mut Instance::whole(directory.path(), 1, numbers));
        let spec = ModelConfig::from_dir(directory.path()).unwrap().spec;
        for count in [2, 4] {
            std::thread::scope(|scope| {
                let (directory, spec, expected) = (&directory, &spec, &expected);
                let threads = Threads::new(count, TIMEOUT).into_iter().enumerate();
                let ranks = threads.map(|(rank, ranks)| {
                    scope.spawn(move || {
                        let shard = Shard::new(spec, rank, count).unwrap();
                        let path = directory.path();
                        let mut model = Instance::part(path, shard, Box::new(ranks), 1, numbers);
                        let got = steps(&mut model);
                        assert!(got == *expected, "{name}, {numbers:?}, rank {rank} of {count}");
                    })
                });
                ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
            });
        }
    }
}

#[test]
fn stages_have_the_bits_of_one_also_without_attention() {
    for name in random::MODELS {
        let (directory, prompt) = (random::make(name), tokens(30, 7));
        let expected = bits(&Instance::whole(directory.path(), 1, EXACT).prompt(0, &prompt, 30));
        let spec = ModelConfig::from_dir(directory.path()).unwrap().spec;
        let stage = |stage| {
            let shard = Shard::whole(&spec).of_stage(&spec, stage, 4).unwrap();
            Instance::part(directory.path(), shard, Box::new(Alone), 1, EXACT)
        };
        let mut stages: Vec<Instance> = (0..4).map(stage).collect();
        let counts =
            stages.iter().map(|it| (it.model.spec().attention_layers(), it.model.spec().state_layers()));
        let expected_counts = match name.starts_with("nemotron") {
            true => [(0, 1), (0, 0), (1, 0), (0, 0)],
            false => [(0, 1), (1, 0), (0, 1), (0, 1)],
        };
        assert_eq!(counts.collect::<Vec<_>>(), expected_counts);
        let mut position = 0;
        for (tokens, wanted) in prompt.chunks(13).zip([0..13, 11..13, 3..4]) {
            let all = position..position + tokens.len();
            let expected = &expected[all][wanted.clone()];
            let count = wanted.len();
            let chunk = Chunk { sequence: 0, position, tokens, drafts: 0, wanted };
            let mut rows: Option<Vec<f32>> = None;
            for stage in &mut stages {
                stage.forward(std::slice::from_ref(&chunk), rows.as_deref());
                rows = Some(stage.rows(tokens.len()));
            }
            assert!(bits(&stages[3].logits(count)) == expected, "{name}, position {position}");
            position += tokens.len();
        }
    }
}

#[test]
fn heads_of_states_decide_how_many_ranks_there_can_be() {
    let directory = random::make("qwen3-5");
    let mut spec = ModelConfig::from_dir(directory.path()).unwrap().spec;
    spec.state = spec.state.map(|state| state.with_units(6));
    let error = Shard::new(&spec, 0, 4).unwrap_err().to_string();
    assert!(error.contains("4 ranks") && error.contains("6 key heads"), "{error}");
    let mut spec = ModelConfig::from_dir(random::make("granite-hybrid").path()).unwrap().spec;
    spec.state = spec.state.map(|state| state.with_units(1));
    let error = Shard::new(&spec, 0, 2).unwrap_err().to_string();
    assert!(error.contains("1 groups of heads") && error.contains("--pipeline-parallel-size"), "{error}");
    let tiled = ModelConfig::from_dir(&skein_golden::gguf("qwen3-5")).unwrap().spec;
    let error = Shard::new(&tiled, 1, 2).unwrap_err().to_string();
    assert!(
        error.contains("2 ranks") && error.contains("llama.cpp's order") && error.contains("--pipeline"),
        "{error}"
    );
}
