//! Bounds on several models together.

use std::time::Duration;

use skein_node::config::{Settings, bytes, duration};

use crate::exit::{Failure, USAGE};

/// Of the machine's or container's memory, what models may take unless `--models-memory` says it.
const SHARE_PERCENT: u64 = 90;
/// Upper bound of `--model-load-timeout`.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Settings of several models together.
#[derive(Debug)]
pub struct Limits {
    memory: Option<u64>,
    /// How long a model may take to load.
    pub load_timeout: Duration,
}

impl Limits {
    /// Reads the settings; problems are recorded in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let load_timeout = settings.value("model-load-timeout", duration(Duration::from_secs(1)..=DAY));
        Self {
            memory: settings.value("models-memory", bytes(1 << 20..=1 << 50)),
            load_timeout: load_timeout.unwrap_or(Duration::from_secs(300)),
        }
    }

    /// Bytes that the models may take.
    ///
    /// # Errors
    /// If nothing says how many.
    pub fn budget(&self) -> Result<u64, Failure> {
        if let Some(bytes) = self.memory {
            return Ok(bytes);
        }
        let memory = skein_sys::memory_limit::of_this_process();
        let memory = memory.ok_or_else(|| {
            Failure::new(USAGE, "the system does not say how much memory it has: give --models-memory")
        })?;
        Ok(memory.limit / 100 * SHARE_PERCENT)
    }
}
