//! A worker's event log, as routers follow it.

use crate::adapter::{AdapterInfo, AdapterRecord};
use crate::block_hash::BlockHash;
use crate::load::LoadReport;
use crate::placement::Placement;
use crate::runs::{CacheChange, Gaps, RunStored};
use crate::stream_key::StreamKey;
use crate::totals::Total;
use crate::worker::v1 as wire;
use wire::worker_event::Event;

/// One event in a worker's log.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchEvent {
    /// Epoch of the worker whose log this is.
    pub epoch: u64,
    /// Number of the event; a [`WatchBody::Load`], [`WatchBody::Adapters`] or [`WatchBody::Snapshot`] carries
    /// the number of the next event.
    pub sequence: u64,
    /// Cache change, load report, admission or snapshot.
    pub body: WatchBody,
}

/// The kinds of events in a worker's log.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchBody {
    /// Replaces everything known about the worker's cache.
    Snapshot(Snapshot),
    /// Blocks were evicted or cached.
    Cache(CacheChange),
    /// Queue length, free blocks and speed; in some reports also the worker's counters.
    Load(LoadReport, Vec<Total>),
    /// The worker accepted a request.
    Admitted(Admitted),
    /// All adapters of the worker, and all changes of them at run time; `None` = those last sent.
    Adapters(Vec<AdapterInfo>, Option<Vec<AdapterRecord>>),
    /// An event of a newer worker that we cannot decode. It has a sequence number too.
    Unknown,
}

/// A worker's cached runs and its readable streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Parents before their children.
    pub runs: Vec<RunStored>,
    /// Blocks without the keys or the state of some layers.
    pub gaps: Gaps,
    /// Streams that can be read from this worker, oldest first.
    pub stream_keys: Vec<StreamKey>,
}

/// The worker accepted a request and is about to cache its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The dispatch that brought the request.
    pub placement: Placement,
    /// Number of leading prompt blocks that were cached when it arrived.
    pub depth: u32,
    /// Hashes of the full prompt blocks that were not.
    pub hashes: Vec<BlockHash>,
    /// Key under which others may read its output; `None` if nobody may.
    pub stream_key: Option<StreamKey>,
}

impl From<WatchEvent> for wire::WorkerEvent {
    fn from(WatchEvent { epoch, sequence, body }: WatchEvent) -> Self {
        let event = match body {
            WatchBody::Snapshot(snapshot) => Some(Event::Snapshot(snapshot.into())),
            WatchBody::Cache(change) => Some(Event::Cache(change.into())),
            WatchBody::Load(report, totals) => {
                let totals = totals.into_iter().map(Into::into).collect();
                Some(Event::Load(wire::Load { totals, ..report.into() }))
            }
            WatchBody::Admitted(admitted) => Some(Event::Admitted(admitted.into())),
            WatchBody::Adapters(adapters, records) => {
                let adapters = adapters.into_iter().map(Into::into).collect();
                let records = records.map(|records| wire::AdapterRecords {
                    records: records.into_iter().map(Into::into).collect(),
                });
                Some(Event::Adapters(wire::AdapterList { adapters, records }))
            }
            WatchBody::Unknown => None,
        };
        Self { epoch, sequence, event }
    }
}

impl From<wire::WorkerEvent> for WatchEvent {
    fn from(event: wire::WorkerEvent) -> Self {
        let wire::WorkerEvent { epoch, sequence, event } = event;
        let body = match event {
            Some(Event::Snapshot(snapshot)) => WatchBody::Snapshot(snapshot.into()),
            Some(Event::Cache(change)) => WatchBody::Cache(change.into()),
            Some(Event::Load(mut report)) => {
                let totals = std::mem::take(&mut report.totals).into_iter().map(Into::into).collect();
                WatchBody::Load(report.into(), totals)
            }
            Some(Event::Admitted(admitted)) => WatchBody::Admitted(admitted.into()),
            Some(Event::Adapters(mut list)) => {
                let records = list.records.take().map(Into::into);
                WatchBody::Adapters(list.into(), records)
            }
            None => WatchBody::Unknown,
        };
        Self { epoch, sequence, body }
    }
}

impl From<Snapshot> for wire::CacheSnapshot {
    fn from(Snapshot { runs, gaps, stream_keys }: Snapshot) -> Self {
        Self {
            gaps: gaps.hashes,
            window_blocks: gaps.window_blocks,
            gaps_are_ends: gaps.are_ends,
            runs: runs.into_iter().map(Into::into).collect(),
            stream_keys: stream_keys.into_iter().map(StreamKey::to_wire).collect(),
        }
    }
}

impl From<wire::CacheSnapshot> for Snapshot {
    fn from(snapshot: wire::CacheSnapshot) -> Self {
        Self {
            runs: snapshot.runs.into_iter().map(Into::into).collect(),
            gaps: Gaps {
                window_blocks: snapshot.window_blocks,
                hashes: snapshot.gaps,
                are_ends: snapshot.gaps_are_ends,
            },
            stream_keys: snapshot.stream_keys.iter().filter_map(|key| StreamKey::from_wire(key)).collect(),
        }
    }
}

impl From<Admitted> for wire::Admitted {
    fn from(Admitted { placement, depth, hashes, stream_key }: Admitted) -> Self {
        let stream_key = stream_key.map(StreamKey::to_wire).unwrap_or_default();
        Self { placement: Some(placement.into()), depth, hashes, stream_key }
    }
}

impl From<wire::Admitted> for Admitted {
    fn from(admitted: wire::Admitted) -> Self {
        Self {
            placement: admitted.placement.unwrap_or_default().into(),
            depth: admitted.depth,
            hashes: admitted.hashes,
            stream_key: StreamKey::from_wire(&admitted.stream_key),
        }
    }
}
