//! A worker's engine in this process, without a socket: what benchmarks run.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::WorkerError;
use super::load::load;
use super::serve::{check_settings, on_thread, prepare};
use crate::backend::BackendError;
use crate::backend::cuda::StepGaps;
use crate::config::{DeviceKind, WorkerConfig};
use crate::engine::EngineHandle;
use crate::model::cost::StepCost;

/// An engine that runs until it is stopped.
#[derive(Debug)]
pub struct LocalWorker {
    /// Takes requests.
    pub engine: EngineHandle,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Longest sequence.
    pub max_model_len: u32,
    /// What it computes with.
    pub device: DeviceKind,
    /// What a step costs at least.
    pub cost: StepCost,
    /// Idle times of the device between steps, where they are taken.
    pub gaps: Option<Arc<StepGaps>>,
    ended: oneshot::Receiver<Result<(), BackendError>>,
}

impl LocalWorker {
    /// Loads what `config` names and starts its engine. Blocks for as long as loading takes.
    ///
    /// # Errors
    /// Settings that cannot work, a model that cannot be served.
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
            device,
            cost,
            gaps,
            ended,
        })
    }

    /// Ends the engine and waits for it.
    ///
    /// # Errors
    /// What ended it before.
    pub async fn stop(self) -> Result<(), WorkerError> {
        self.engine.stop().await;
        Ok(self.ended.await.map_err(|_| WorkerError::Panicked("engine"))??)
    }
}
