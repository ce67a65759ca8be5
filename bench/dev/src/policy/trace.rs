//! Recorded requests: arrivals, lengths and shared prefixes.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

/// Tokens per recorded block.
const RECORDED_BLOCK: u32 = 512;

/// A line of a trace, in Mooncake's format.
#[derive(Debug, Clone, Deserialize)]
struct Line {
    /// Milliseconds since the start of the trace.
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    /// One id per 512 prompt tokens; equal ids mean equal prompts up to there.
    hash_ids: Vec<u64>,
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Arrival, in nanoseconds since the start.
    pub at: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of output tokens, at least one.
    pub output_tokens: u32,
    /// One hash per full block of the prompt, covering the block and all before it.
    pub blocks: Vec<u64>,
}

/// Fault in a trace.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TraceError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Fault in the line.
    pub reason: String,
}

/// Parses up to `most` lines. Lengths are divided by `shrink`, and prompts split into blocks of `block_size`.
pub fn parse(text: &str, most: usize, shrink: u32, block_size: u32) -> Result<Vec<Recorded>, TraceError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(most).enumerate();
    let parsed = lines.map(|(index, line)| {
        let error = |reason: String| TraceError { line: index + 1, reason };
        let line: Line = serde_json::from_str(line).map_err(|why| error(why.to_string()))?;
        recorded(&line, shrink, block_size).map_err(error)
    });
    parsed.collect()
}

/// Delays each request by up to `most`, drawn evenly, and puts them in order.
pub fn spread(trace: &mut [Recorded], most: Duration) {
    let mut rng = StdRng::seed_from_u64(9);
    for request in &mut *trace {
        request.at += rng.random_range(0..=most.as_nanos() as u64);
    }
    trace.sort_by_key(|request| request.at);
}

fn recorded(line: &Line, shrink: u32, block_size: u32) -> Result<Recorded, String> {
    let needed = line.input_length.div_ceil(RECORDED_BLOCK) as usize;
    if line.hash_ids.len() < needed {
        let got = line.hash_ids.len();
        return Err(format!("{} tokens need {needed} hash_ids, got {got}", line.input_length));
    }
    let prompt_tokens = (line.input_length / shrink).max(1);
    let block = |index: u32| {
        let token = u64::from(index) * u64::from(block_size) * u64::from(shrink);
        let whole = token / u64::from(RECORDED_BLOCK);
        let within = token % u64::from(RECORDED_BLOCK);
        mix(line.hash_ids[(whole as usize).min(line.hash_ids.len() - 1)], within)
    };
    Ok(Recorded {
        at: line.timestamp * 1_000_000,
        prompt_tokens,
        output_tokens: (line.output_length / shrink).max(1),
        blocks: (0..prompt_tokens / block_size).map(block).collect(),
    })
}

/// One round of splitmix64 over both values.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a.rotate_left(23) ^ b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"timestamp": 0, "input_length": 1500, "output_length": 16, "hash_ids": [1, 2, 3]}
{"timestamp": 27, "input_length": 1024, "output_length": 3, "hash_ids": [1, 4]}"#;

    #[test]
    fn prompts_share_the_blocks_that_they_shared_when_recorded() {
        let requests = parse(TWO, 10, 1, 16).expect("a trace");
        let [one, other] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!((one.blocks.len(), other.blocks.len(), other.at), (93, 64, 27_000_000));
        assert_eq!(one.blocks[..32], other.blocks[..32]);
        assert!(one.blocks[32..64].iter().zip(&other.blocks[32..]).all(|(one, other)| one != other));
        // An eighth of the length keeps the same shared fraction.
        let requests = parse(TWO, 10, 8, 16).expect("a trace");
        assert_eq!((requests[0].prompt_tokens, requests[1].output_tokens), (187, 1));
        assert_eq!(requests[0].blocks[..4], requests[1].blocks[..4]);
        assert_ne!(requests[0].blocks[4], requests[1].blocks[4]);
    }

    #[test]
    fn a_damaged_line_is_named() {
        let error = parse(&TWO.replace("[1, 4]", "[1]"), 10, 1, 16).expect_err("a hash is missing");
        assert_eq!(error.to_string(), "line 2: 1024 tokens need 2 hash_ids, got 1");
        assert_eq!(parse("{}", 10, 1, 16).expect_err("no fields").line, 1);
    }
}
