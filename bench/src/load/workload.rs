//! The requests to send: sessions of one or more turns as token ids, reproducible by seed.

use std::path::Path;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

/// Output tokens to request if neither a flag nor the data set specifies them, as in vLLM.
pub const DEFAULT_OUTPUT_LEN: u32 = 128;
/// Lowest token id used: ids below are often control tokens.
const FIRST_TOKEN: u32 = 32;
/// Tokens per hash in a Mooncake trace.
const MOONCAKE_BLOCK_TOKENS: u64 = 512;
/// Largest trace file, in bytes, so that a wrong file is refused instead of loaded.
const MAX_TRACE_BYTES: u64 = 1 << 30;

/// Consecutive requests of one user.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Start time from a trace; `None` = from the arrival process.
    pub at: Option<Duration>,
    /// Turns in order; each is sent after the answer to the previous one.
    pub turns: Vec<Turn>,
}

/// One request. Its prompt is the session so far (prompts and answers) followed by these tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Tokens that the user adds.
    pub tokens: Vec<u32>,
    /// Number of output tokens to request.
    pub output_tokens: u32,
}

/// The kind of workload, with lengths in tokens.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the flags of `skein bench serve`, described there
pub enum Workload {
    Random { input_len: u32, output_len: u32, prefix_len: u32, range_ratio: f64 },
    SharedPrefix { prefix_len: u32, suffix_len: u32, num_prefixes: u32, output_len: u32 },
    MultiTurn { turns: u32, system_len: u32, input_len: u32, output_len: u32 },
    Mooncake { trace: Vec<TraceLine>, speedup: f64, max_input_len: Option<u64>, max_output_len: Option<u32> },
}

/// One line of a trace in Mooncake's published format.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TraceLine {
    /// Milliseconds since the start of the trace.
    pub timestamp: f64,
    /// Number of prompt tokens.
    pub input_length: u64,
    /// Number of output tokens.
    pub output_length: u64,
    /// One id for each block of 512 prompt tokens; equal ids mean equal blocks.
    pub hash_ids: Vec<u64>,
}

/// A trace that cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("cannot read the trace {path}: {reason}")]
    Unreadable {
        /// Path of the trace file.
        path: String,
        /// The I/O error or the exceeded limit.
        reason: String,
    },
    /// A line could not be parsed.
    #[error("line {line} of the trace is not {{timestamp, input_length, output_length, hash_ids}}: {reason}")]
    BadLine {
        /// Number of the line, from 1.
        line: usize,
        /// The parse error.
        reason: String,
    },
}

/// Reads a trace, at most `limit` lines.
///
/// # Errors
/// If the file cannot be read or a line is not a request.
pub fn read_trace(path: &Path, limit: usize) -> Result<Vec<TraceLine>, TraceError> {
    let unreadable = |reason: String| TraceError::Unreadable { path: path.display().to_string(), reason };
    let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if size > MAX_TRACE_BYTES {
        return Err(unreadable(format!("{size} bytes is over {MAX_TRACE_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    parse_trace(&text, limit)
}

fn parse_trace(text: &str, limit: usize) -> Result<Vec<TraceLine>, TraceError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(limit);
    lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .map_err(|error| TraceError::BadLine { line: index + 1, reason: error.to_string() })
        })
        .collect()
}

impl Workload {
    /// The sessions of a run with about `requests` requests and token ids below `vocab_size`.
    pub fn sessions(&self, requests: usize, vocab_size: u32, seed: u64) -> Vec<Session> {
        let mut tokens = Tokens { rng: StdRng::seed_from_u64(seed), seed, vocab_size };
        match self {
            Self::Random { input_len, output_len, prefix_len, range_ratio } => {
                let prefix = tokens.fresh(*prefix_len);
                let mut one = || {
                    let (input, output) =
                        (tokens.around(*input_len, *range_ratio), tokens.around(*output_len, *range_ratio));
                    single([prefix.clone(), tokens.fresh(input)].concat(), output)
                };
                (0..requests).map(|_| one()).collect()
            }
            Self::SharedPrefix { prefix_len, suffix_len, num_prefixes, output_len } => {
                let prefixes: Vec<_> =
                    (0..(*num_prefixes).max(1)).map(|_| tokens.fresh(*prefix_len)).collect();
                let mut one = |index: usize| {
                    let prefix = prefixes[index % prefixes.len()].clone();
                    single([prefix, tokens.fresh(*suffix_len)].concat(), *output_len)
                };
                (0..requests).map(&mut one).collect()
            }
            Self::MultiTurn { turns, system_len, input_len, output_len } => {
                let system = tokens.fresh(*system_len);
                let turns = (*turns).max(1) as usize;
                let mut one = |_| {
                    let mut session = Session { at: None, turns: Vec::with_capacity(turns) };
                    for turn in 0..turns {
                        let fresh = tokens.fresh(*input_len);
                        let tokens = if turn == 0 { [system.clone(), fresh].concat() } else { fresh };
                        session.turns.push(Turn { tokens, output_tokens: *output_len });
                    }
                    session
                };
                (0..requests.div_ceil(turns)).map(&mut one).collect()
            }
            Self::Mooncake { trace, speedup, max_input_len, max_output_len } => {
                let scale = Scale::of(trace, *max_input_len);
                let first = trace.first().map_or(0.0, |line| line.timestamp);
                let one = |line: &TraceLine| {
                    let at = Duration::from_secs_f64(((line.timestamp - first) / 1000.0 / speedup).max(0.0));
                    let output = u32::try_from(line.output_length).unwrap_or(u32::MAX).max(1);
                    let output = max_output_len.map_or(output, |most| output.min(most));
                    Session { at: Some(at), ..single(scale.prompt(line, &tokens), output) }
                };
                trace.iter().take(requests).map(one).collect()
            }
        }
    }
}

fn single(tokens: Vec<u32>, output_tokens: u32) -> Session {
    Session { at: None, turns: vec![Turn { tokens, output_tokens }] }
}

/// Generator of token ids.
struct Tokens {
    rng: StdRng,
    seed: u64,
    vocab_size: u32,
}

impl Tokens {
    fn fresh(&mut self, count: u32) -> Vec<u32> {
        let range = FIRST_TOKEN..self.vocab_size.max(FIRST_TOKEN + 1);
        (0..count).map(|_| self.rng.random_range(range.clone())).collect()
    }

    /// A length within `ratio` of `length`, at least 1.
    fn around(&mut self, length: u32, ratio: f64) -> u32 {
        let spread = (f64::from(length) * ratio).floor() as u32;
        self.rng.random_range(length.saturating_sub(spread)..=length.saturating_add(spread)).max(1)
    }

    /// Tokens of the block `hash_id`; always the same.
    fn block(&self, hash_id: u64, count: u64) -> Vec<u32> {
        let mut rng = StdRng::seed_from_u64(self.seed ^ hash_id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let range = FIRST_TOKEN..self.vocab_size.max(FIRST_TOKEN + 1);
        (0..count).map(|_| rng.random_range(range.clone())).collect()
    }
}

/// Scales a whole trace by one factor, so that its longest prompt fits and shared prefixes remain shared.
struct Scale {
    factor: f64,
    block_tokens: u64,
}

impl Scale {
    fn of(trace: &[TraceLine], max_input_len: Option<u64>) -> Self {
        let longest = trace.iter().map(|line| line.input_length).max().unwrap_or(1).max(1);
        let most = max_input_len.unwrap_or(longest).max(1);
        let factor = (most as f64 / longest as f64).min(1.0);
        let block_tokens = ((MOONCAKE_BLOCK_TOKENS as f64 * factor).round() as u64).max(1);
        Self { factor, block_tokens }
    }

    fn prompt(&self, line: &TraceLine, tokens: &Tokens) -> Vec<u32> {
        let length = ((line.input_length as f64 * self.factor) as usize).max(1);
        let mut prompt = Vec::with_capacity(length);
        for hash_id in &line.hash_ids {
            prompt.extend(tokens.block(*hash_id, self.block_tokens));
        }
        // Rounding can leave the blocks slightly short; the rest is unique to this request.
        let missing = (length as u64).saturating_sub(prompt.len() as u64);
        prompt.extend(tokens.block(line.timestamp.to_bits() ^ line.input_length, missing));
        prompt.truncate(length);
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(sessions: &[Session]) -> Vec<usize> {
        sessions.iter().flat_map(|session| session.turns.iter().map(|turn| turn.tokens.len())).collect()
    }

    fn shared(left: &[u32], right: &[u32]) -> usize {
        left.iter().zip(right).take_while(|(left, right)| left == right).count()
    }

    #[test]
    fn every_workload_repeats_for_its_seed_and_stays_in_the_vocabulary() {
        let workloads = [
            Workload::Random { input_len: 40, output_len: 8, prefix_len: 4, range_ratio: 0.5 },
            Workload::SharedPrefix { prefix_len: 32, suffix_len: 8, num_prefixes: 3, output_len: 4 },
            Workload::MultiTurn { turns: 3, system_len: 16, input_len: 8, output_len: 4 },
        ];
        for workload in workloads {
            let sessions = workload.sessions(12, 100, 5);
            assert_eq!(sessions, workload.sessions(12, 100, 5), "{workload:?}");
            assert_ne!(sessions, workload.sessions(12, 100, 6), "{workload:?}");
            assert_eq!(lengths(&sessions).len(), 12, "{workload:?}");
            let mut tokens =
                sessions.iter().flat_map(|session| session.turns.iter().flat_map(|turn| &turn.tokens));
            assert!(tokens.all(|token| (FIRST_TOKEN..100).contains(token)), "{workload:?}");
        }
    }

    #[test]
    fn prefixes_are_shared_by_turns() {
        let workload =
            Workload::SharedPrefix { prefix_len: 32, suffix_len: 8, num_prefixes: 2, output_len: 4 };
        let sessions = workload.sessions(4, 4000, 1);
        let prompt = |index: usize| &sessions[index].turns[0].tokens[..];
        assert_eq!(shared(prompt(0), prompt(2)), 32);
        assert_eq!(shared(prompt(0), prompt(1)), 0);
    }

    #[test]
    fn a_trace_keeps_its_times_lengths_and_shared_blocks() {
        let text = "{\"timestamp\": 1000, \"input_length\": 1100, \"output_length\": 9, \"hash_ids\": [1, 2, 3]}\n\n\
                    {\"timestamp\": 3000, \"input_length\": 1500, \"output_length\": 90, \"hash_ids\": [1, 2, 4]}\n";
        let trace = parse_trace(text, 10).expect("two lines");
        let check = |max_input_len, expected: [usize; 2], common: usize| {
            let workload = Workload::Mooncake {
                trace: trace.clone(),
                speedup: 2.0,
                max_input_len,
                max_output_len: Some(20),
            };
            let sessions = workload.sessions(10, 4000, 0);
            assert_eq!(lengths(&sessions), expected);
            assert_eq!(shared(&sessions[0].turns[0].tokens, &sessions[1].turns[0].tokens), common);
            assert_eq!(sessions[1].at, Some(Duration::from_secs(1)));
            assert_eq!(sessions[1].turns[0].output_tokens, 20);
        };
        check(None, [1100, 1500], 1024);
        check(Some(375), [275, 375], 256);
        let error = parse_trace("{\"timestamp\": 1}", 10).expect_err("fields are missing").to_string();
        assert!(error.contains("line 1") && error.contains("input_length"), "{error}");
    }
}
