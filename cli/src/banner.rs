//! The banner of `skein serve`, printed once it serves: model, capacity, address, and a command to try it.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::model::Facts;

/// Contents of the banner.
#[derive(Debug, Clone)]
pub struct Banner {
    /// The served name.
    pub model: String,
    /// Size and type of the model.
    pub facts: Facts,
    /// Number of worker processes.
    pub workers: usize,
    /// Compute threads of each worker.
    pub threads: usize,
    /// The backend: "cpu", "cuda" or "fake".
    pub backend: String,
    /// Capacity of one worker; `None` if not known yet.
    pub capacity: Option<Capacity>,
    /// Address of the API.
    pub listen: SocketAddr,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Whether the API requires a key.
    pub has_key: bool,
    /// Seconds from the start of the process until a worker was ready.
    pub seconds: f64,
}

/// Capacity of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// KV blocks of the worker.
    pub kv_blocks: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Longest sequence, tokens.
    pub max_model_len: u32,
}

impl Banner {
    /// The banner as text, at most 12 lines.
    pub fn text(&self) -> String {
        let Facts { family, parameters, dtype, bytes } = &self.facts;
        let mut out = String::new();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "\n  skein {} is ready ({:.1} s)\n", env!("CARGO_PKG_VERSION"), self.seconds);
        let size = format!("{} parameters, {family}, {dtype}, {}", short(*parameters), bytes_text(*bytes));
        let _ = writeln!(out, "  model    {}: {size}", self.model);
        let threads = if self.threads == 1 { "1 thread".into() } else { format!("{} threads", self.threads) };
        let _ = match self.backend.as_str() {
            "cuda" => writeln!(out, "  workers  {} on the GPU", self.workers),
            _ => writeln!(out, "  workers  {} on the CPU, {threads} each", self.workers),
        };
        if let Some(capacity) = self.capacity {
            let _ = writeln!(out, "  KV       {}", capacity.text(self.workers));
        }
        let auth = if self.has_key { "key required" } else { "no key" };
        let _ = writeln!(
            out,
            "  API      {0}://{1}/v1 (gRPC on the same port; {auth})\n  Page     {0}://{1}/ui\n",
            self.scheme, self.listen
        );
        let key = if self.has_key { " -H 'authorization: Bearer KEY'" } else { "" };
        let _ = writeln!(
            out,
            "  curl -N {}://{}/v1/completions{key} -H 'content-type: application/json' \\\n    \
             -d '{{\"prompt\": \"def main\", \"max_tokens\": 64, \"stream\": true}}'\n",
            self.scheme, self.listen
        );
        out
    }
}

impl Capacity {
    fn text(&self, workers: usize) -> String {
        let tokens = u64::from(self.kv_blocks) * u64::from(self.block_size);
        let sequences = workers as u64 * (tokens / u64::from(self.max_model_len.max(1)));
        let room = match workers {
            1 => format!("{} tokens", short(tokens)),
            _ => format!("{} tokens ({} a worker)", short(workers as u64 * tokens), short(tokens)),
        };
        format!("{room}: {sequences} sequences of {} tokens", self.max_model_len)
    }
}

/// 6955000 as `7.0M`.
fn short(count: u64) -> String {
    let scaled = |unit: f64| count as f64 / unit;
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1}k", scaled(1e3)),
        1_000_000..1_000_000_000 => format!("{:.1}M", scaled(1e6)),
        _ => format!("{:.2}B", scaled(1e9)),
    }
}

fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_on_twelve_lines_and_says_what_counts() {
        let banner = Banner {
            model: "skein-7m".into(),
            facts: Facts {
                family: "llama".into(),
                parameters: 6_954_752,
                dtype: "bf16".into(),
                bytes: 13_909_504,
            },
            workers: 2,
            threads: 1,
            backend: "cpu".into(),
            capacity: Some(Capacity { kv_blocks: 4096, block_size: 16, max_model_len: 1024 }),
            listen: ([127, 0, 0, 1], 8000).into(),
            scheme: "http",
            has_key: false,
            seconds: 0.42,
        };
        let text = banner.text();
        assert!(text.lines().count() <= 12, "{text}");
        for expected in [
            "is ready (0.4 s)",
            "model    skein-7m: 7.0M parameters, llama, bf16, 13 MiB",
            "workers  2 on the CPU, 1 thread each",
            "KV       131.1k tokens (65.5k a worker): 128 sequences of 1024 tokens",
            "API      http://127.0.0.1:8000/v1 (gRPC on the same port; no key)",
            "curl -N http://127.0.0.1:8000/v1/completions -H",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let one = Banner { workers: 1, ..banner.clone() }.text();
        assert!(one.contains("KV       65.5k tokens: 64 sequences of 1024 tokens"), "{one}");
        let with_key = Banner { has_key: true, ..banner }.text();
        assert!(with_key.contains("key required") && with_key.contains("Bearer KEY"));
    }
}
