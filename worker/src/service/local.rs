//! A worker's engine in this process, without a socket, for benchmarks.

use std::sync::Arc;

use skein_model::cost::StepCost;
use tokio::sync::oneshot;

use super::serve::{on_thread, prepare};
use crate::backend::BackendError;
use crate::backend::cuda::StepGaps;
use crate::config::{DeviceKind, WorkerConfig};
use crate::engine::EngineHandle;
use crate::error::WorkerError;
use crate::load::{check_settings, load};

/// A running engine and what its model and device are.
#[derive(Debug)]
pub struct LocalWorker {
    /// Handle for submitting requests.
    pub engine: EngineHandle,
    /// Size of the vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u32,
    /// Most sequences at once.
    pub max_num_seqs: u32,
    /// Device that computes.
    pub device: DeviceKind,
    /// Least cost of a step.
    pub cost: StepCost,
    /// Idle times of the device between steps, if they are measured.
    pub gaps: Option<Arc<StepGaps>>,
    ended: oneshot::Receiver<Result<(), BackendError>>,
}

impl LocalWorker {
    /// Loads the model of `config` and starts its engine. Blocks while loading.
    ///
    /// # Errors
    /// Settings that cannot work, or a model that cannot be served.
    pub fn start(config: &WorkerConfig, progress: impl FnMut(u64, u64)) -> Result<Self, WorkerError> {
        check_settings(&config.scheduler)?;
        let loaded = load(config, progress)?;
        let (cost, gaps, device) = (loaded.cost, loaded.gaps.clone(), loaded.device);
        let (ready, engine) = prepare(config, loaded)?;
        let ended = on_thread("engine", move || engine.run())?;
        let info = ready.facts.info;
        Ok(Self {
            engine: ready.engine,
            vocab_size: info.vocab_size,
            max_model_len: info.max_model_len,
            kv_tokens: info.kv_blocks.saturating_mul(info.block_size),
            max_num_seqs: info.max_num_seqs,
            device,
            cost,
            gaps,
            ended,
        })
    }

    /// Stops the engine and waits for it.
    ///
    /// # Errors
    /// The error that ended it earlier.
    pub async fn stop(self) -> Result<(), WorkerError> {
        self.engine.stop().await;
        Ok(self.ended.await.map_err(|_| WorkerError::Panicked("engine"))??)
    }
}
