//! What every Skein process needs: configuration, clock, discovery, logging, supervision, shutdown. It
//! contains no models and no policies.

pub mod certificates;
pub mod clock;
pub mod config;
pub mod discovery;
pub mod hangup;
mod log_queue;
pub mod metrics;
pub mod python_json;
pub mod random;
pub mod shutdown;
pub mod signal;
pub mod supervisor;
pub mod task;
pub mod telemetry;
pub mod trace;
