//! One request as the outbox keeps it, and who may read along.

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

/// Longest that a request goes on, or its output stays readable, without a reader.
pub const MAX_LINGER: Duration = Duration::from_secs(300);

/// Readers of one request that can be released by name; the first ones are forgotten.
const MAX_NAMED_READERS: usize = 64;

/// A reader that wants a stream which another one began.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The reader's name; unique among those that read.
    pub id: String,
    /// Which stream.
    pub key: StreamKey,
    /// From where each sample is wanted; the others are not.
    pub samples: Vec<SamplePosition>,
    /// First prompt position whose score is wanted, if they were asked for at all.
    pub from_score: u32,
    /// How long the stream may go on without readers.
    pub linger: Duration,
}

/// Why a stream cannot be read along.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Never, or no longer.
    #[error("no such stream is kept here; Generate with the delivered tokens goes on from there")]
    NotFound,
    /// Not from there.
    #[error("{0}; Generate with the delivered tokens goes on from there")]
    OutOfRange(#[from] OutOfRange),
    /// That name reads already.
    #[error("request_id {id:?} is reading here; use another id or wait for its end")]
    Duplicate {
        /// The name.
        id: String,
    },
    /// Clients do not read their streams.
    #[error("{open} streams are open, finished ones not read to their end included; the limit is {limit}")]
    TooManyStreams {
        /// Streams held by readers.
        open: u32,
        /// Most at once.
        limit: u32,
    },
    /// The engine has ended.
    #[error("the engine has stopped; another worker can take the request")]
    Stopped,
}

/// What a request must have in common with one that runs, to read it instead of being computed.
#[derive(Debug, Clone)]
pub(super) struct Question {
    prompt_hash: u64,
    prompt_len: usize,
    params: Arc<SamplingParams>,
    scope: CacheScope,
}

impl Question {
    pub fn of(request: &NewRequest) -> Self {
        Self {
            prompt_hash: hash_of(&request.prompt),
            prompt_len: request.prompt.len(),
            params: request.params.clone(),
            scope: request.scope.clone(),
        }
    }

    /// Whether `request` has the same answer. Prompt scores aside: once delivered they are not asked for again.
    pub fn is_of(&self, request: &NewRequest) -> bool {
        let output = |of: &SamplingParams| SamplingParams { prompt_logprobs: None, ..of.clone() };
        self.prompt_len == request.prompt.len()
            && self.scope == request.scope
            && output(&self.params) == output(&request.params)
            && self.prompt_hash == hash_of(&request.prompt)
    }

    /// Whether the run scores the prompt as `request` wants.
    pub fn scores_for(&self, request: &NewRequest) -> bool {
        let wanted = request.params.prompt_logprobs;
        wanted.is_none() || wanted == self.params.prompt_logprobs
    }
}

fn hash_of(tokens: &[TokenId]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Run {
    pub stream: Arc<Stream>,
    /// Under which others find it, and what they must ask.
    pub key: Option<(StreamKey, Question)>,
    /// The longest of its readers.
    pub linger: Duration,
    /// Since when nobody reads it.
    pub orphaned: Option<Timestamp>,
    /// Of those that read it, the gone ones included: a late word of theirs still counts. Oldest first.
    pub names: Vec<(String, ReaderNumber)>,
}

impl Run {
    /// Another reader; names those that cannot be told from now on.
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

/// Where a request begins to read: after what was delivered.
pub(super) fn positions(request: &NewRequest) -> Vec<SamplePosition> {
    let prompt_len = request.prompt.len();
    let at = |delivered: usize| (prompt_len + delivered) as u32;
    request
        .samples
        .iter()
        .map(|sample| SamplePosition { index: sample.index, from: at(sample.delivered.len()) })
        .collect()
}

/// The first prompt score a request wants; none when it did not ask for any.
pub(super) fn first_score(request: &NewRequest) -> u32 {
    if request.params.prompt_logprobs.is_some() { 0 } else { request.prompt.len() as u32 }
}
