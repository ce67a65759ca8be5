//! Flags that `-h` lists; `--help` lists all.

/// Names of the flags that most people set, of all commands.
const COMMON: &[&str] = &[
    "model",
    "served-model-name",
    "max-model-len",
    "tokenizer",
    "chat-template",
    "host",
    "port",
    "api-key",
    "batch-dir",
    "response-store",
    "workers",
    "worker-urls",
    "routers",
    "discovery",
    "tensor-parallel-size",
    "threads",
    "device",
    "plan",
    "max-num-seqs",
    "kv-cache-memory-bytes",
    "dtype",
    "quantization",
    "kv-cache-dtype",
    "speculate",
    "gpu-memory-utilization",
    "temperature",
    "max-tokens",
    "system",
    "config",
    "log-level",
    "otlp-endpoint",
];

/// Whether `-h` lists the flag `name`.
pub fn is_common(name: &str) -> bool {
    COMMON.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::table::FLAGS;

    #[test]
    fn each_common_flag_exists() {
        for name in COMMON {
            assert!(FLAGS.iter().any(|flag| flag.key.name == *name), "{name}");
        }
    }
}
