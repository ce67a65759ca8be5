//! Compares decoding with and without drafts, alternately in one run, for texts of different kinds.
//!
//! `benches/speculation/texts.py > texts.jsonl`, then
//! `cargo bench -p skein-bench --bench speculation -- texts.jsonl [--shape NAME] [--weights bf16|int8|int4]
//! [--threads N] [--rounds N] [--streams N,N] [--kinds NAME,NAME] [--draft SHAPE]`.
//!
//! The model has a real shape and random weights, and computes every row, logit and draw of a step. Then each
//! drawn token is replaced by the next token of a given text. So times are those of the kernels, and drafts
//! are right as often as they predict that text. The kinds `dial P` are random tokens, a fraction P of which
//! repeats the prompt. With `--draft`, a draft model of that shape runs before steps, and its tokens for the
//! kinds `draft model P` are right with probability P.

mod scripted;
mod texts;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_bench::models::{Dtype, ModelShape, RandomWeights, SHAPES, make_model};
use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::packed::Format;
use skein_node::clock::{self, Timestamp};
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cpu::{CpuBackend, CpuOptions, NumberTypes};
use skein_worker::config::SchedulerConfig;
use skein_worker::draft::{Guesser, Speculate};
use skein_worker::draft_model::DraftModel;
use skein_worker::engine::{Engine, EngineHandle, Submission};
use skein_worker::kv_cache::CacheScope;
use skein_worker::scheduler::{Drafts, NewRequest, Scheduler};

use scripted::{Counts, Guessing, Scripted, Shared};
use texts::{Text, texts};

const BLOCK_SIZE: u32 = 16;
const MAX_MODEL_LEN: u32 = 2048;

struct Options {
    texts: String,
    shape: String,
    weights: String,
    threads: usize,
    rounds: usize,
    streams: Vec<usize>,
    kinds: Vec<String>,
    draft: Option<String>,
}

fn options() -> Options {
    let mut options = Options {
        texts: String::new(),
        shape: "qwen2.5-0.5b".into(),
        weights: "bf16".into(),
        threads: 0,
        rounds: 2,
        streams: vec![1, 4, 16],
        kinds: Vec::new(),
        draft: None,
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        let list = |value: String| -> Vec<String> { value.split(',').map(str::to_owned).collect() };
        match word.as_str() {
            "--shape" => options.shape = value(),
            "--weights" => options.weights = value(),
            "--threads" => options.threads = value().parse().expect("a number of threads"),
            "--rounds" => options.rounds = value().parse().expect("a number of rounds"),
            "--streams" => {
                let parse = |word: &String| word.parse().expect("a number of streams");
                options.streams = list(value()).iter().map(parse).collect();
            }
            "--draft" => options.draft = Some(value()),
            "--kinds" => options.kinds = list(value()),
            path => options.texts = path.to_owned(),
        }
    }
    options
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let options = options();
    if options.texts.is_empty() {
        println!("name a file of texts; benches/speculation/texts.py writes one");
        return;
    }
    let tokenizer = skein_golden::shipped();
    let texts = texts(&options.texts, &tokenizer.join("tokenizer.json"));
    let counts = Arc::new(Counts::default());
    let draft = options.draft.as_ref().map(|shape| {
        let backend = Guessing::new(backend(&options, shape, &tokenizer), &texts, counts.clone());
        let vocab = (known(shape).vocab_size as u32, known(&options.shape).vocab_size as u32);
        DraftModel::start(Box::new(backend), BLOCK_SIZE, vocab, false).expect("it runs")
    });
    let backend: Shared = Arc::new(std::sync::Mutex::new(backend(&options, &options.shape, &tokenizer)));
    let guesser = || Guesser::new(Speculate::Auto, false).expect("it is on");
    let guesser = if draft.is_some() { guesser().with_model() } else { guesser() };
    let plain = Side::start(&backend, &texts, (None, None), Arc::default());
    let drafting = Side::start(&backend, &texts, (Some(guesser), draft), counts);
    println!(
        "{}, {}, {}, texts of {} tokens after {} on average",
        options.shape,
        options.draft.as_ref().map_or("no draft model".into(), |draft| format!("draft model {draft}")),
        options.weights,
        mean(&texts, |text| text.answer.len()),
        mean(&texts, |text| text.prompt.len())
    );
    println!(
        "| kind | streams | off tok/s | on tok/s | on / off | drafted a step and stream | right | tokens a step and stream | rows of the draft model | its share of the time |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for streams in &options.streams {
        for kind in kinds(&texts, &options.kinds) {
            compare(&options, (&plain, &drafting), &texts, &kind, *streams).await;
        }
    }
    plain.stop().await;
    drafting.stop().await;
}

fn mean(texts: &[Text], of: impl Fn(&Text) -> usize) -> usize {
    texts.iter().map(of).sum::<usize>() / texts.len().max(1)
}

fn kinds(texts: &[Text], chosen: &[String]) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for text in texts {
        if !kinds.contains(&text.kind) && (chosen.is_empty() || chosen.contains(&text.kind)) {
            kinds.push(text.kind.clone());
        }
    }
    kinds
}

fn known(shape: &str) -> &'static ModelShape {
    SHAPES.iter().find(|known| known.name == shape).unwrap_or_else(|| panic!("there is no shape {shape}"))
}

/// A model of random weights, loaded.
fn backend(options: &Options, shape: &str, tokenizer: &Path) -> CpuBackend {
    let directory = std::env::temp_dir().join(format!("skein-speculation-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("the temporary directory can be written");
    let random = RandomWeights { dtype: Dtype::Bf16, seed: 1, has_outliers: false };
    make_model(known(shape), random, tokenizer, &directory, |_| {}).expect("the model can be written");
    let weights = match options.weights.as_str() {
        "int8" => Some(Format::INT8_GROUP),
        "int4" => Some(Format::INT4),
        _ => None,
    };
    let options = CpuOptions {
        threads: options.threads,
        kv_blocks: 17 * MAX_MODEL_LEN / BLOCK_SIZE,
        window_blocks: None,
        state_slots: 16,
        block_size: BLOCK_SIZE,
        max_rows: 512,
        numbers: NumberTypes { bf16: true, kv: KvType::Bf16, weights },
    };
    let backend = CpuBackend::load(&directory, options, &mut |_, _| {}).expect("the model can be served");
    std::fs::remove_dir_all(&directory).expect("it is ours");
    backend
}

/// An engine over the shared backend; the two take turns.
struct Side {
    engine: EngineHandle,
    counts: Arc<Counts>,
    thread: std::thread::JoinHandle<()>,
}

impl Side {
    fn start(
        backend: &Shared,
        texts: &[Text],
        (guesser, model): (Option<Guesser>, Option<DraftModel>),
        counts: Arc<Counts>,
    ) -> Self {
        let config = SchedulerConfig {
            block_size: BLOCK_SIZE,
            // The engines share the backend and overwrite each other's blocks.
            enable_prefix_caching: false,
            ..SchedulerConfig::default()
        };
        let scripted = Scripted::new(backend.clone(), texts, counts.clone());
        let mut scheduler = Scheduler::new(&config, 17 * MAX_MODEL_LEN / BLOCK_SIZE, MAX_MODEL_LEN);
        guesser.into_iter().for_each(|guesser| scheduler.set_drafts(Drafts::guessed(guesser)));
        let (mut engine, handle) = Engine::new(scheduler, Box::new(scripted), 64);
        model.into_iter().for_each(|model| engine.draft_with(model));
        let thread = std::thread::spawn(move || engine.run().expect("the backend runs"));
        Self { engine: handle, counts, thread }
    }

    async fn stop(self) {
        self.engine.stop().await;
        self.thread.join().expect("it does not panic");
    }

    /// Generates the texts; returns the tokens after the last first token, and the time they took.
    async fn run(&self, texts: &[&Text]) -> (usize, Duration) {
        let mut streams = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let submission = Submission::alone(format!("{at}"), request(text));
            streams.push(self.engine.submit(submission).await.expect("it is taken"));
        }
        let read = streams.into_iter().map(|mut stream| {
            tokio::task::spawn(async move {
                let mut arrived = Vec::new();
                while let Some(deltas) = stream.next().await {
                    let tokens: usize =
                        deltas.expect("no fault").iter().map(|delta| delta.tokens.len()).sum();
                    arrived.push((clock::now(), tokens));
                }
                arrived
            })
        });
        let mut all = Vec::new();
        for task in read.collect::<Vec<_>>() {
            all.push(task.await.expect("it does not panic"));
        }
        let first =
            |arrived: &Vec<(Timestamp, usize)>| arrived.iter().find(|(_, tokens)| *tokens > 0).map(|it| it.0);
        let from = all.iter().filter_map(first).max().expect("there are tokens");
        let until = all.iter().flatten().map(|it| it.0).max().expect("there are tokens");
        let tokens = all.iter().flatten().filter(|(at, _)| *at > from).map(|(_, tokens)| tokens).sum();
        (tokens, until.since(from))
    }
}

fn request(text: &Text) -> NewRequest {
    // The seed identifies the text.
    let params = SamplingParams {
        max_tokens: text.answer.len() as u32,
        temperature: 0.8,
        top_p: 0.95,
        seed: text.number,
        ..SamplingParams::default()
    };
    NewRequest::of_one_sample(text.prompt.clone(), params, CacheScope::new("bench", ""))
}

async fn compare(options: &Options, sides: (&Side, &Side), texts: &[Text], kind: &str, streams: usize) {
    let of_kind: Vec<&Text> = texts.iter().filter(|text| text.kind == kind).collect();
    let (mut tokens, mut seconds) = ([0; 2], [0.0; 2]);
    sides.1.counts.reset();
    for round in 0..options.rounds {
        let chosen: Vec<&Text> =
            (0..streams).map(|at| of_kind[(round * streams + at) % of_kind.len()]).collect();
        // The two take turns to go first.
        for nth in 0..2 {
            let which = (nth + round) % 2;
            let side = if which == 0 { sides.0 } else { sides.1 };
            let (written, took) = side.run(&chosen).await;
            tokens[which] += written;
            seconds[which] += took.as_secs_f64();
        }
    }
    let [off, on] = [0, 1].map(|side| tokens[side] as f64 / seconds[side]);
    let (draws, drafted, right) = sides.1.counts.take();
    let (rows, took) = sides.1.counts.of_draft_model();
    println!(
        "| {kind} | {streams} | {off:.1} | {on:.1} | {:.2} | {:.2} | {:.0}% | {:.2} | {rows} | {:.0}% |",
        on / off,
        drafted as f64 / draws as f64,
        100.0 * right as f64 / (drafted as f64).max(1.0),
        1.0 + right as f64 / draws as f64,
        100.0 * took.as_secs_f64() / seconds[1],
    );
}
