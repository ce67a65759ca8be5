//! A worker without sockets, threads or a clock of its own, for a caller that owns all three, such
//! as a simulator.

use super::WorkerService;
use super::serve::prepare;
use crate::config::WorkerConfig;
use crate::engine::Engine;
use crate::error::WorkerError;
use crate::load::{LoadedBackend, check_settings};

/// The gRPC service and its engine, which works whenever its [`Engine::turn`] is called. Give each restart of
/// a worker a new `epoch`.
///
/// # Errors
/// Settings that cannot work.
pub fn without_io(
    config: &WorkerConfig,
    loaded: LoadedBackend,
    epoch: u64,
) -> Result<(WorkerService, Engine), WorkerError> {
    check_settings(&config.scheduler)?;
    let (mut ready, engine) = prepare(config, loaded)?;
    ready.facts.info.epoch = epoch;
    let service = WorkerService::default();
    assert!(service.ready.set(ready).is_ok(), "a new service is not ready yet");
    Ok((service, engine))
}
