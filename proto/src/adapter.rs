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

/// A change of adapters at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterRecord {
    /// Name for clients; empty if the adapter serves only requests that had begun.
    pub name: String,
    /// What has changed.
    pub change: AdapterChange,
}

/// What is the case since a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterChange {
    /// The name is that of an adapter.
    Loaded {
        /// Its directory on the workers' machines.
        path: String,
        /// Hash of its files.
        id: AdapterId,
        /// See [`AdapterRecord::order`]; 0 without a name.
        stamp: u64,
    },
    /// The name is of no adapter.
    Unloaded {
        /// See [`AdapterRecord::order`].
        stamp: u64,
    },
}

impl AdapterRecord {
    /// Of two changes of a name, the greater one counts, on every worker and router. Stamps rise with time;
    /// the rest only decides if two routers gave the same one.
    pub fn order(&self) -> (u64, bool, u64) {
        match self.change {
            AdapterChange::Loaded { id, stamp, .. } => (stamp, false, id.0),
            AdapterChange::Unloaded { stamp } => (stamp, true, 0),
        }
    }
}

impl From<AdapterRecord> for wire::AdapterRecord {
    fn from(AdapterRecord { name, change }: AdapterRecord) -> Self {
        match change {
            AdapterChange::Loaded { path, id, stamp } => {
                Self { name, path, id: id.0, stamp, is_unloaded: false }
            }
            AdapterChange::Unloaded { stamp } => Self { name, stamp, is_unloaded: true, ..Self::default() },
        }
    }
}

impl From<wire::AdapterRecords> for Vec<AdapterRecord> {
    fn from(list: wire::AdapterRecords) -> Self {
        let known = |wire::AdapterRecord { name, path, id, stamp, is_unloaded }: wire::AdapterRecord| {
            let change = if is_unloaded {
                AdapterChange::Unloaded { stamp }
            } else {
                AdapterChange::Loaded { path, id: AdapterId::from_wire(id)?, stamp }
            };
            Some(AdapterRecord { name, change })
        };
        list.records.into_iter().filter_map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_changes_the_same_one_counts_everywhere() {
        let loaded = |id, stamp| AdapterChange::Loaded { path: "/a".into(), id: AdapterId(id), stamp };
        let order = |change| AdapterRecord { name: "a".into(), change }.order();
        let rising = [
            loaded(9, 1),
            AdapterChange::Unloaded { stamp: 2 },
            loaded(1, 3),
            loaded(2, 3),
            AdapterChange::Unloaded { stamp: 3 },
        ];
        assert!(rising.is_sorted_by(|one, other| order(one.clone()) < order(other.clone())));
    }
}
