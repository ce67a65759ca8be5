//! A worker without sockets, threads or a clock of its own: for who owns all three, as a simulator does.

use super::load::LoadedBackend;
use super::serve::{check_settings, prepare};
use super::{WorkerError, WorkerService};
use crate::config::WorkerConfig;
use crate::engine::Engine;

/// The service as gRPC would serve it, and the engine behind it, which works when its [`Engine::turn`] is called.
/// `epoch` names this life of the worker; other lives must have others.
///
/// # Errors
/// Settings that cannot work.
pub fn detached(
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
