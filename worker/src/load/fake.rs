//! Loads the fake backend, which computes no model.

use skein_model::config::ModelConfig;

use super::kv_blocks::kv_blocks;
use super::loaded_backend::LoadedBackend;
use super::model_files::grammars;
use super::served_adapters::adapters;
use super::sizing::{self, KvTokenBytes, WindowRows};
use crate::backend::fake::{FakeBackend, FakeOptions};
use crate::config::WorkerConfig;
use crate::error::WorkerError;

/// Vocabulary and context length of the fake backend when it is served.
const FAKE_VOCAB_SIZE: u32 = 32_000;

const FAKE_MODEL_LEN: u32 = 8192;

/// Context length of the fake backend in measurements, enough for requests of any recorded trace.
const CLOCK_MODEL_LEN: u32 = 131_072;

/// Fingerprint of the fake backend in measurements, whose tokens differ from those of the checking one.
const CLOCK_FINGERPRINT: u64 = 1;

/// Cache bytes a token of a model with half a billion parameters, to size the cache realistically.
const FAKE_KV_BYTES_PER_TOKEN: u64 = 12 * 1024;

pub(super) fn load_fake(config: &WorkerConfig) -> Result<LoadedBackend, WorkerError> {
    if config.cpu.draft_model.is_some() {
        let what = "--device fake computes no model, so that a draft model of --speculate is of no use; leave it out";
        return Err(WorkerError::Unsuitable(what.into()));
    }
    let is_clock = config.fake.is_clock();
    let model_len = if is_clock { CLOCK_MODEL_LEN } else { FAKE_MODEL_LEN };
    // Ids beyond the model's vocabulary would have no text.
    let of_model = || ModelConfig::from_dir(&config.model).ok().map(|model| model.spec.vocab_size);
    let vocab_size = is_clock.then(of_model).flatten().unwrap_or(FAKE_VOCAB_SIZE);
    sizing::check_model_len(&config.scheduler, model_len)?;
    let kv_blocks = match config.fake.kv_blocks {
        Some(blocks) => blocks,
        None => {
            let bytes = KvTokenBytes { main: FAKE_KV_BYTES_PER_TOKEN, windowed: 0 };
            kv_blocks(config, 0, WindowRows { window: None, rows: 0 }, &[bytes], 0, model_len)?.blocks
        }
    };
    let options = FakeOptions {
        vocab_size,
        block_size: config.scheduler.block_size,
        kv_blocks,
        cost: config.fake.cost,
        reads_context: !is_clock,
        ..FakeOptions::default()
    };
    let loaded = LoadedBackend::fake(FakeBackend::new(options), vocab_size, model_len);
    Ok(LoadedBackend {
        adapters: adapters(config, None)?,
        grammars: grammars(&config.model, vocab_size)?,
        fingerprint: if is_clock { CLOCK_FINGERPRINT } else { loaded.fingerprint },
        ..loaded
    })
}
