//! Limits of an exchange, and what a delta costs.

use prost::Message;
use skein_proto::worker::v1::GenerateDelta;

/// Credit of a call in bytes: how far a worker may send it ahead of its reader. It bounds what waits in the
/// exchange for a client that stops reading; what the server has written towards the client is beside it.
pub const CREDIT: u32 = 8 << 10;
/// What a delta costs beyond its encoded length, in bytes: about what it takes in memory beyond that. Fixed
/// by the protocol.
pub const DELTA_OVERHEAD: usize = 128;
/// A message takes no more frames once it has this many bytes, so that a long prompt or many
/// log-probabilities do not hold up the frames behind them for long.
pub const MESSAGE_BYTES: usize = 64 << 10;
/// Most calls at once in an exchange. An engine and a router admit far fewer.
pub const MAX_CALLS: usize = 1 << 16;
/// Most frames of a message to a worker: a router that keeps to [`MESSAGE_BYTES`] sends fewer.
pub const MAX_FRAMES: usize = 1 << 14;
/// Most metadata headers of a call that are read.
pub const MAX_HEADERS: usize = 64;
/// Longest prompt that goes into an exchange, in tokens: 512 KiB. Frames behind it wait for half a
/// millisecond at 10 Gbit/s, so a longer one gets a call of its own.
pub const MAX_PROMPT_TOKENS: usize = 128 << 10;

/// What a delta takes from the credit of its call.
#[must_use]
pub fn cost(delta: &GenerateDelta) -> u32 {
    u32::try_from(delta.encoded_len() + DELTA_OVERHEAD).unwrap_or(u32::MAX)
}
