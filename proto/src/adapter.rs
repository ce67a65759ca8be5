//! Adapters that workers serve beside the model.

use crate::worker::v1 as wire;

/// Hash of an adapter's files, never 0. Equal on all workers that have the same adapter, under any name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u64);

impl AdapterId {
    /// From its wire form, in which 0 is none.
    pub fn from_wire(id: u64) -> Option<Self> {
        (id != 0).then_some(Self(id))
    }
}

/// The adapter's part of a [block hash](crate::block_hash::root); empty for the model alone.
pub fn text_of(adapter: Option<AdapterId>) -> String {
    adapter.map_or(String::new(), |AdapterId(id)| format!("{id:016x}"))
}

/// An adapter of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Name for clients; empty if it was unloaded and serves only requests that had begun.
    pub name: String,
    /// Hash of its files.
    pub id: AdapterId,
    /// Whether it is in memory, so that a request need not wait for it.
    pub is_resident: bool,
}

impl From<AdapterInfo> for wire::Adapter {
    fn from(AdapterInfo { name, id, is_resident }: AdapterInfo) -> Self {
        Self { name, id: id.0, is_resident }
    }
}

impl From<wire::AdapterList> for Vec<AdapterInfo> {
    fn from(list: wire::AdapterList) -> Self {
        let known = |wire::Adapter { name, id, is_resident }: wire::Adapter| {
            Some(AdapterInfo { name, id: AdapterId::from_wire(id)?, is_resident })
        };
        list.adapters.into_iter().filter_map(known).collect()
    }
}
