//! What a worker reports of its adapters.

/// What a worker's adapters are used for now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterUse {
    /// Adapters that requests can name.
    pub known: usize,
    /// Those in memory.
    pub in_memory: usize,
    /// Names of those that running requests have, in order. The name of an unloaded one is its identity.
    pub running: Vec<String>,
    /// Names of those that requests wait for.
    pub waiting: Vec<String>,
    /// Most different adapters in use at once.
    pub max_in_use: usize,
    /// Reads of an adapter from its files since the start.
    pub loads: u64,
}
