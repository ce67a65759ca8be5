//! Sizes of recurrent layers, and where the parts of their projected rows lie.

use std::ops::Range;

/// Columns of a tile, the part of a head's matrix that one task keeps in its first-level cache.
pub(super) const TILE: usize = 32;
/// Chains of a sum over a key's dimensions: dimension `i` is in chain `i % CHAINS`.
pub(super) const CHAINS: usize = 4;
/// Most taps of a convolution.
pub(super) const MOST_TAPS: usize = 4;

/// How the rows of a layer change its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Gated delta rule: rows `[q | k | v | z | b | a]`.
    Delta,
    /// Gated delta rule with a decay for each dimension of a key: as `Delta`, with as many `a`.
    KeyedDelta,
    /// State space: rows `[z | x | B | C | dt]`, in the words of this room `[z | v | k | q | a]`.
    StateSpace,
    /// Only a window: products of rows `[B | C | x]`.
    Convolution,
}

/// Sizes of a recurrent layer of any kind, or of one rank's part of it. Made from the kind's own shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    pub(super) kind: Kind,
    /// Heads of queries and keys; none in a convolution.
    pub(super) key_heads: usize,
    /// Heads of values, each with a matrix `[key_dim, value_dim]`.
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) taps: usize,
}

impl From<&Self> for StateShape {
    fn from(shape: &Self) -> Self {
        *shape
    }
}

impl StateShape {
    /// Convolved values of a row: queries, keys and values.
    pub(super) fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// Values of all heads of a row.
    pub(super) fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Logits of a row's gates.
    pub(super) fn logits(&self) -> usize {
        match self.kind {
            Kind::Delta => 2 * self.value_heads,
            Kind::KeyedDelta => self.value_heads * (1 + self.key_dim),
            Kind::StateSpace => self.value_heads,
            Kind::Convolution => 0,
        }
    }

    /// Width of a projected row.
    pub fn width(&self) -> usize {
        match self.kind {
            Kind::Convolution => 3 * self.values(),
            _ => self.channels() + self.values() + self.logits(),
        }
    }

    /// Numbers of a row that a state keeps if the row is a draft: its channels and logits.
    pub(super) fn kept_width(&self) -> usize {
        self.channels() + self.logits()
    }

    /// First channel of a row.
    pub(super) fn first_channel(&self) -> usize {
        if self.kind == Kind::StateSpace { self.values() } else { 0 }
    }

    /// Where the gates of the outputs lie in a row.
    pub(super) fn output_gates(&self) -> Range<usize> {
        let start = if self.kind == Kind::StateSpace { 0 } else { self.channels() };
        start..start + self.values()
    }

    /// Channels of a head's query.
    pub(super) fn query(&self, key_head: usize) -> Range<usize> {
        self.keys(usize::from(self.kind == Kind::StateSpace), key_head)
    }

    /// Channels of a head's key.
    pub(super) fn key(&self, key_head: usize) -> Range<usize> {
        self.keys(usize::from(self.kind != Kind::StateSpace), key_head)
    }

    /// Channels of a head of the first or second group of key heads.
    fn keys(&self, group: usize, key_head: usize) -> Range<usize> {
        let first = if self.kind == Kind::StateSpace { self.values() } else { 0 };
        let start = first + (group * self.key_heads + key_head) * self.key_dim;
        start..start + self.key_dim
    }

    /// Channels of a head's value.
    pub(super) fn value(&self, head: usize) -> Range<usize> {
        let first = if self.kind == Kind::StateSpace { 0 } else { self.channels() - self.values() };
        let start = first + head * self.value_dim;
        start..start + self.value_dim
    }

    /// Value heads of a key head.
    pub(super) fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Tiles of a head's matrix.
    pub(super) fn tiles(&self) -> usize {
        self.value_dim.div_ceil(TILE)
    }

    /// Columns of a head's tiles.
    pub(super) fn columns(&self) -> usize {
        self.tiles() * TILE
    }

    /// Numbers in a tile, `[key_dim, TILE]`.
    pub(super) fn tile_len(&self) -> usize {
        self.key_dim * TILE
    }

    /// # Panics
    /// If the sizes are not those of a layer.
    pub(super) fn check(&self) {
        let Self { kind, key_heads, value_heads, key_dim, value_dim, taps } = *self;
        assert!((2..=MOST_TAPS).contains(&taps), "a convolution of 2 to {MOST_TAPS} taps, not {taps}");
        assert!(value_heads > 0 && value_dim > 0, "a layer has values");
        let fits = match kind {
            Kind::Convolution => return,
            Kind::KeyedDelta => key_heads == value_heads,
            Kind::Delta | Kind::StateSpace => key_heads > 0 && value_heads.is_multiple_of(key_heads),
        };
        assert!(fits, "each of {key_heads} key heads has its part of {value_heads} value heads");
        assert!(key_dim.is_multiple_of(CHAINS), "a key of {key_dim} has whole groups of {CHAINS}");
    }
}
