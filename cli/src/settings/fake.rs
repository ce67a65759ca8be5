//! Settings of `--device fake`: its clock, its cache, and the number of fake workers in a process.

use std::time::Duration;

use skein_node::config::{Settings, count, duration};
use skein_worker::backend::fake::StepCost;
use skein_worker::config::{BackendKind, FakeConfig};

/// Upper bound of each component of a step's time.
const A_MINUTE: Duration = Duration::from_secs(60);
/// Most fake workers in one process; each needs a thread and a port.
const MAX_WORKERS: u64 = 4096;
/// Most blocks of a fake cache; its slots take 16 bytes per token.
const MAX_BLOCKS: u64 = 1 << 22;

/// Settings of fake workers.
#[derive(Debug, Clone, Copy)]
pub struct FakeSettings {
    /// Clock and cache of each worker.
    pub config: FakeConfig,
    /// Number of workers in this process.
    pub workers: u16,
}

impl FakeSettings {
    /// Reads the settings; problems are recorded in `settings`, and so are flags that `device` ignores.
    pub fn read(settings: &mut Settings, device: BackendKind) -> Self {
        let mut time = |name| settings.value(name, duration(Duration::ZERO..=A_MINUTE));
        let (fixed, per_row) = (time("fake-step-time"), time("fake-token-time"));
        let per_thousand = time("fake-context-time");
        let kv_blocks = settings.value("fake-kv-blocks", count(1..=MAX_BLOCKS)).map(|blocks| blocks as u32);
        let workers = settings.value("fake-workers", count(1..=MAX_WORKERS)).unwrap_or(1);
        let is_set = [fixed, per_row, per_thousand].iter().any(Option::is_some) || kv_blocks.is_some();
        if (is_set || workers > 1) && device != BackendKind::Fake {
            settings.problem("flags that start with --fake need --device fake".to_owned());
        }
        let cost = StepCost {
            fixed: fixed.unwrap_or_default(),
            per_row: per_row.unwrap_or_default(),
            per_context_token: per_thousand.unwrap_or_default() / 1000,
        };
        Self { config: FakeConfig { cost, kv_blocks }, workers: workers as u16 }
    }
}
