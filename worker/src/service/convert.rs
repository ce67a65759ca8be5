//! Our values to protobuf's.

use std::sync::Arc;

use skein_proto::worker::v1 as wire;
use wire::worker_event::Event;

use super::ModelFacts;
use crate::engine::{Load, LogEntry, Placement, Snapshot};
use crate::kv_cache::{RunStored, RunTruncated};
use crate::sampling::TokenLogprobs;
use crate::scheduler::FinishReason;
use crate::streams::Delta;

pub(super) fn info(facts: &ModelFacts) -> wire::InfoResponse {
    wire::InfoResponse {
        epoch: facts.epoch,
        model: facts.model.clone(),
        max_model_len: facts.max_model_len,
        vocab_size: facts.vocab_size,
        block_size: facts.block_size,
        kv_blocks: facts.kv_blocks,
        max_num_seqs: facts.max_num_seqs,
        max_num_batched_tokens: facts.max_num_batched_tokens,
        resume_exact: facts.resume_exact,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: facts.device.name().to_owned(),
        model_fingerprint: facts.fingerprint,
    }
}

pub(super) fn delta(epoch: u64, delta: Delta) -> wire::GenerateDelta {
    wire::GenerateDelta {
        epoch,
        sample_index: delta.sample,
        from_position: delta.from_position,
        token_ids: delta.tokens,
        logprobs: delta.logprobs.into_iter().map(logprobs).collect(),
        finish: delta.finish.map(finish),
        cached_tokens: delta.cached_tokens,
        prompt_logprobs: delta.prompt_scores.into_iter().map(logprobs).collect(),
        from_prompt_position: delta.from_prompt_position,
        hand_back: delta.hand_back,
    }
}

fn finish(reason: FinishReason) -> wire::Finish {
    let (reason, stop_token_id) = match reason {
        FinishReason::Stop(token) => (wire::FinishReason::Stop, Some(token)),
        FinishReason::Length => (wire::FinishReason::Length, None),
        FinishReason::Abort => (wire::FinishReason::Abort, None),
    };
    wire::Finish { reason: reason.into(), stop_token_id }
}

fn logprobs(logprobs: TokenLogprobs) -> wire::TokenLogprobs {
    let TokenLogprobs { token, logprob, rank, top } = logprobs;
    let (top_token_ids, top_logprobs) = top.into_iter().unzip();
    wire::TokenLogprobs { token_id: token, logprob, rank, top_token_ids, top_logprobs }
}

pub(super) fn snapshot(snapshot: Snapshot) -> Event {
    Event::Snapshot(wire::CacheSnapshot {
        runs: snapshot.runs.into_iter().map(stored).collect(),
        stream_keys: snapshot.stream_keys.into_iter().map(|key| key.0.to_vec()).collect(),
    })
}

pub(super) fn entry(entry: Arc<LogEntry>) -> Event {
    match Arc::unwrap_or_clone(entry) {
        LogEntry::Cache(change) => Event::Cache(wire::CacheDelta {
            truncated: change.truncated.into_iter().map(truncated).collect(),
            stored: change.stored.into_iter().map(stored).collect(),
        }),
        LogEntry::Admitted(admitted) => {
            let Placement { router, sequence } = admitted.placement;
            Event::Admitted(wire::Admitted {
                placement: Some(wire::Placement { router_id: router, sequence }),
                depth: admitted.depth,
                hashes: admitted.hashes,
                stream_key: admitted.stream_key.map(|key| key.0.to_vec()).unwrap_or_default(),
            })
        }
    }
}

fn stored(run: RunStored) -> wire::RunStored {
    wire::RunStored { handle: run.handle, parent: run.parent, depth: run.depth, hashes: run.hashes }
}

fn truncated(run: RunTruncated) -> wire::RunTruncated {
    wire::RunTruncated { handle: run.handle, new_end: run.new_end }
}

/// Load as one router gets it; `drain` = (refuses new requests, wants to be rid of those that run).
pub(super) fn load(load: &Load, last_placement_sequence: u64, drain: (bool, bool)) -> Event {
    let (draining, giving_back) = drain;
    let scheduler = &load.scheduler;
    Event::Load(wire::Load {
        queued_uncached_tokens: scheduler.queued_uncached_tokens,
        waiting: scheduler.waiting,
        running: scheduler.running,
        free_blocks: scheduler.free_blocks,
        prefill_tokens_per_second: scheduler.prefill_tokens_per_second,
        decode_tokens_per_second: scheduler.decode_tokens_per_second,
        step: load.step,
        last_placement_sequence,
        draining,
        giving_back,
    })
}
