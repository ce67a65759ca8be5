//! One request as the outbox keeps it, and what it takes to join it.

use std::sync::Arc;
use std::time::Duration;

use skein_node::clock::Timestamp;
use skein_proto::sampling::SamplingParams;
use skein_proto::stream_key::StreamKey;
use xxhash_rust::xxh3::xxh3_64;

use super::position::{OutOfRange, SamplePosition};
use super::stream::{ReaderNumber, Stream};
use crate::TokenId;
use crate::kv_cache::CacheScope;
use crate::scheduler::NewRequest;

/// Longest time that a request continues, or its output stays readable, without a reader.
pub const MAX_LINGER: Duration = Duration::from_secs(300);

/// Most reader names kept per request, for releases. Above this, the oldest readers that have left are
/// forgotten.
const MAX_NAMED_READERS: usize = 64;

/// A request to read a stream that another reader started.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The reader's name; unique among current readers.
    pub id: String,
    /// Key of the stream.
    pub key: StreamKey,
    /// Samples to read, each with its first position; others are left out.
    pub samples: Vec<SamplePosition>,
    /// First prompt position to send a score for, if the request has scores.
    pub from_score: u32,
    /// How long the stream continues without readers.
    pub linger: Duration,
}

/// Why a stream cannot be attached to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The stream was never here or has expired.
    #[error("no such stream is kept here; resume with Generate and the delivered tokens")]
    NotFound,
    /// The stream does not hold these positions: they were dropped, were never computed here, or lie past its
    /// end.
    #[error("{0}; resume with Generate and the delivered tokens")]
    OutOfRange(#[from] OutOfRange),
    /// A current reader has this name.
    #[error("request_id {id:?} already has a reader at this worker; use another id or wait until it ends")]
    Duplicate {
        /// The reader's name.
        id: String,
    },
    /// Too many streams are open, because clients do not read theirs to the end.
    #[error("{open} streams are open, including finished ones not read to the end; the limit is {limit}")]
    TooManyStreams {
        /// Streams held by readers.
        open: u32,
        /// Most streams allowed.
        limit: u32,
    },
    /// The engine has ended.
    #[error("the engine has stopped; another worker can take the request")]
    Stopped,
}

/// The part of a request that decides its output. A request that has the same one may read
/// the running stream.
#[derive(Debug, Clone)]
pub(super) struct RequestIdentity {
    prompt_hash: u64,
    prompt_len: usize,
    params: Arc<SamplingParams>,
    scope: CacheScope,
}

impl RequestIdentity {
    pub fn of(request: &NewRequest) -> Self {
        Self {
            prompt_hash: hash_of(&request.prompt),
            prompt_len: request.prompt.len(),
            params: request.params.clone(),
            scope: request.scope.clone(),
        }
    }

    /// Whether `request` has the same output. Prompt scores do not count: once delivered they are
    /// not requested again.
    pub fn matches(&self, request: &NewRequest) -> bool {
        let output = |of: &SamplingParams| SamplingParams { prompt_logprobs: None, ..of.clone() };
        self.prompt_len == request.prompt.len()
            && self.scope == request.scope
            && output(&self.params) == output(&request.params)
            && self.prompt_hash == hash_of(&request.prompt)
    }

    /// Whether the stream has the prompt scores that `request` wants.
    pub fn scores_for(&self, request: &NewRequest) -> bool {
        let wanted = request.params.prompt_logprobs;
        wanted.is_none() || wanted == self.params.prompt_logprobs
    }
}

fn hash_of(tokens: &[TokenId]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// A request that runs or is kept, with its stream.
#[derive(Debug)]
pub(super) struct Run {
    pub stream: Arc<Stream>,
    /// Key by which other readers find it, and the identity they must match.
    pub key: Option<(StreamKey, RequestIdentity)>,
    /// The longest linger of its readers.
    pub linger: Duration,
    /// When it lost its last reader; `None` while it has one.
    pub orphaned: Option<Timestamp>,
    /// Names of its readers, oldest first. Includes readers that have left, because their release still
    /// counts.
    pub names: Vec<(String, ReaderNumber)>,
}

impl Run {
    /// Adds a reader. Returns the names that no longer lead to this request.
    pub fn named(&mut self, name: String, number: ReaderNumber) -> Vec<String> {
        self.names.push((name, number));
        let stream = &self.stream;
        let mut most_gone = self.names.len().saturating_sub(MAX_NAMED_READERS);
        let forgotten = self.names.extract_if(.., |(_, number)| {
            let forgets = most_gone > 0 && !stream.is_read_by(*number);
            most_gone -= usize::from(forgets);
            forgets
        });
        forgotten.map(|(name, _)| name).collect()
    }
}

/// Where a request starts to read: after its delivered tokens.
pub(super) fn positions(request: &NewRequest) -> Vec<SamplePosition> {
    let prompt_len = request.prompt.len();
    let at = |delivered: usize| (prompt_len + delivered) as u32;
    request
        .samples
        .iter()
        .map(|sample| SamplePosition { index: sample.index, from: at(sample.delivered.len()) })
        .collect()
}

/// First prompt score that a request wants; the prompt's length if it wants none.
pub(super) fn first_score(request: &NewRequest) -> u32 {
    if request.params.prompt_logprobs.is_some() { 0 } else { request.prompt.len() as u32 }
}
