//! What a worker says of itself, as plain values: what it serves, and the entries of its log.

use skein_proto::block_hash::BlockHash;

use super::ledger::Load;
use super::prefix_index::{CacheChange, Run};
use crate::request::StreamKey;

/// What a worker serves, constant within an epoch.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // as in skein.worker.v1.InfoResponse
pub struct WorkerInfo {
    pub epoch: u64,
    pub model: String,
    pub max_model_len: u32,
    pub vocab_size: u32,
    pub block_size: u32,
    pub kv_blocks: u32,
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    pub resume_exact: bool,
    pub version: String,
    pub backend: String,
    pub fingerprint: u64,
}

/// One entry of a worker's log.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchEvent {
    /// Life of the worker that it belongs to.
    pub epoch: u64,
    /// Its number; a [`WatchBody::Load`] carries the number of the next entry.
    pub sequence: u64,
    /// What happened.
    pub body: WatchBody,
}

/// What happened at a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchBody {
    /// All it has.
    Snapshot {
        /// What it caches.
        runs: Vec<Run>,
        /// The streams that run or are kept there, oldest first.
        stream_keys: Vec<StreamKey>,
    },
    /// A change of what it caches.
    Cache(CacheChange),
    /// How busy it is.
    Load(Load),
    /// It took a request: these blocks are about to be cached.
    Admitted {
        /// Whose placement it was.
        router_id: u64,
        /// That router's number for it.
        sequence: u64,
        /// Blocks of its prompt that were not cached.
        hashes: Vec<BlockHash>,
        /// The stream's name, if it has one.
        stream_key: Option<StreamKey>,
    },
    /// Something that a newer worker says and we do not know; it has a number like all else.
    Unknown,
}
