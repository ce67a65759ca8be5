//! Checks, before anything is loaded, whether a model fits into the memory of this machine or its limit.
//! Pure.

use skein_sys::memory_limit::Memory;

use crate::error::WorkerError;

/// Memory of a worker besides weights and KV cache, in bytes: code, stacks, activations and logits of a step.
pub(super) const WORKER_BYTES: u64 = 48 << 20;

/// Memory requirements of one of several workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needs {
    /// Size of the weights; all workers on a machine map the same files.
    pub weight_bytes: u64,
    /// Requested size of the KV cache.
    pub kv_bytes: Option<u64>,
    /// Smallest usable KV cache.
    pub least_kv_bytes: u64,
    /// Number of workers that share the memory.
    pub workers: u64,
    /// Memory planned for the version of the model that runs beside.
    pub beside: u64,
}

impl Needs {
    /// Refuses a configuration that can never fit. Compares with the limit, not with the memory free at the
    /// moment, so that a worker restarting beside others gets the same result.
    pub fn check(&self, memory: &Memory) -> Result<(), WorkerError> {
        let Self { weight_bytes, kv_bytes, workers, beside, .. } = *self;
        let fixed = self.fixed().saturating_add(beside);
        let left = memory.limit.saturating_sub(fixed) / workers.max(1);
        let wanted = kv_bytes.unwrap_or(self.least_kv_bytes);
        if fixed.saturating_add(wanted.saturating_mul(workers)) <= memory.limit {
            return Ok(());
        }
        let of = format!("{} has {}", memory.of, size(memory.limit));
        let running = match beside {
            0 => String::new(),
            beside => format!("the running version's plan takes {}, ", size(beside)),
        };
        let taken = format!(
            "{running}weights take {}, {workers} worker(s) {} each",
            size(weight_bytes),
            size(WORKER_BYTES)
        );
        Err(WorkerError::Unsuitable(match kv_bytes {
            Some(asked) => format!(
                "--kv-cache-memory-bytes {} for each of {workers} worker(s) does not fit: {of}, {taken}, so at most {} \
                 is left for the KV cache of each; lower it",
                size(asked),
                size(left)
            ),
            None => format!(
                "the model does not fit: {of}, {taken}, and the KV cache of each at least {}; raise the limit, start fewer \
                 --workers, or take --quantization int8 or int4",
                size(self.least_kv_bytes)
            ),
        }))
    }

    /// Memory left for the KV cache of one worker once all weights are loaded, in bytes.
    pub fn left(&self, memory: &Memory) -> u64 {
        // Memory that the running version has planned and not yet touched still counts as available.
        let available = memory.available.min(memory.limit.saturating_sub(self.beside));
        available.saturating_sub(self.fixed()) / self.workers.max(1)
    }

    /// Memory that does not depend on the size of the KV cache.
    fn fixed(&self) -> u64 {
        self.weight_bytes.saturating_add(self.workers.saturating_mul(WORKER_BYTES))
    }
}

/// Formats bytes in their largest unit.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = UNITS.iter().find(|(_, bits)| bytes >= 1 << bits);
    unit.map_or_else(
        || if bytes == 0 { "0".into() } else { format!("{bytes} bytes") },
        |(name, bits)| {
            let value = bytes as f64 / (1_u64 << bits) as f64;
            if value.fract() == 0.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
        },
    )
}

#[cfg(test)]
mod tests {
    use skein_sys::memory_limit::Limit;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(available: u64, limit: u64) -> Memory {
        Memory { available, limit, of: Limit::Group("/sys/fs/cgroup/pod".into()) }
    }

    fn needs(weight_bytes: u64, kv_bytes: Option<u64>, workers: u64) -> Needs {
        Needs { weight_bytes, kv_bytes, least_kv_bytes: 1 << 20, workers, beside: 0 }
    }

    #[test]
    fn a_limit_too_small_is_refused_with_numbers() {
        let check = |needs: Needs, limit: u64, expected: &[&str]| {
            let said = needs.check(&memory(limit, limit)).err().map(|error| error.to_string());
            assert_eq!(said.is_some(), !expected.is_empty(), "{said:?}");
            let said = said.unwrap_or_default();
            expected.iter().for_each(|expected| assert!(said.contains(expected), "{said}"));
        };
        check(needs(GIB, None, 2), 2 * GIB, &[]);
        let group = "the control group /sys/fs/cgroup/pod has 1 GiB";
        check(needs(GIB, None, 2), GIB, &["the model does not fit", group, "weights take 1 GiB"]);
        check(needs(0, Some(500 << 40), 2), GIB, &["500 TiB for each of 2", group, "at most 464 MiB"]);
        check(needs(GIB, Some(GIB / 2), 2), 3 * GIB, &[]);
        check(needs(u64::MAX, Some(u64::MAX), 2), GIB, &["does not fit"]);
        let beside = |beside| Needs { beside, ..needs(GIB, None, 2) };
        check(beside(GIB), 3 * GIB, &[]);
        check(
            beside(2 * GIB),
            3 * GIB,
            &["does not fit", "the running version's plan takes 2 GiB, weights take 1"],
        );
    }

    #[test]
    fn the_cache_is_planned_within_what_the_weights_leave() {
        assert_eq!(needs(GIB, None, 2).left(&memory(3 * GIB, 4 * GIB)), GIB - WORKER_BYTES);
        assert_eq!(needs(GIB, None, 2).left(&memory(GIB, 4 * GIB)), 0);
        let beside = Needs { beside: GIB, ..needs(GIB, None, 2) };
        assert_eq!(beside.left(&memory(4 * GIB, 4 * GIB)), GIB - WORKER_BYTES);
    }

    #[test]
    fn sizes_are_read_at_a_glance() {
        for (bytes, expected) in [
            (7, "7 bytes"),
            (500 << 40, "500 TiB"),
            (1 << 50, "1 PiB"),
            (3 << 29, "1.5 GiB"),
            (13 << 20, "13 MiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}
