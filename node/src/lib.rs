//! Being a Skein process: configuration, clock, discovery, logging, supervision, shutdown. It knows no models and no policies.

pub mod clock;
pub mod config;
pub mod discovery;
pub mod random;
pub mod shutdown;
pub mod signal;
pub mod supervisor;
pub mod task;
pub mod telemetry;
