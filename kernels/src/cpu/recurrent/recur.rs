//! The recurrence over the rows of a stretch, for one tile of a head's matrix.
//!
//! For each row, with the matrix `S` `[key_dim, columns]`: `S` decays to `decay * S`, and the row adds the
//! outer product of its key and `d`; the output is `q^T S`. In a delta rule, `d = (v - k^T (decay * S)) *
//! beta`, so that the key now reads what is nearer to `v`; in a state space `d = v * beta`, and a part of `v`
//! is added to the output. Each column of a sum over the key's dimensions has four chains of multiply-adds
//! (dimension `i` in chain `i % 4`), joined as `(0 + 1) + (2 + 3)`. So no result depends on the tile's width
//! or on where a pass over the tile begins.

use std::marker::PhantomData;

use super::super::disjoint::DisjointMut;
use super::super::simd::{Kernel, LANES, Simd};
use super::rule::{Gates, Rule};
use super::shape::{CHAINS, TILE};

/// One tile of one stretch.
pub(super) struct Recur<'a, 'o, R> {
    pub(super) key_dim: usize,
    /// `[rows, key_width]` of the rule: queries and keys.
    pub(super) keys: &'a [f32],
    /// `[rows, columns]` from the tile's first column on.
    pub(super) values: &'a [f32],
    /// Columns of all tiles.
    pub(super) columns: usize,
    /// `[rows]`
    pub(super) gates: &'a [Gates],
    /// The state `[key_dim, TILE]` before the first row.
    pub(super) state: &'a mut [f32],
    /// Whether the state is zero, whatever `state` holds.
    pub(super) is_new: bool,
    /// As `state`, for drafts.
    pub(super) spare: &'a mut [f32],
    /// Rows after which `state` stays as it is.
    pub(super) kept: usize,
    /// Rows at the start without output.
    pub(super) replayed: usize,
    /// Factor of the values that are added to the outputs, unless the rule is a delta rule.
    pub(super) skip: f32,
    pub(super) out: Outputs<'a, 'o>,
    pub(super) rule: PhantomData<R>,
}

/// Where the outputs of a tile go.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a, 'o> {
    /// No other task takes these places.
    pub(super) all: &'a DisjointMut<'o, f32>,
    /// Place of the first output.
    pub(super) start: usize,
    /// From a row's output to the next one's.
    pub(super) stride: usize,
    /// Columns that are not padding, 1 to [`TILE`].
    pub(super) columns: usize,
}

impl<R: Rule> Kernel for Recur<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (rows, tile) = (self.gates.len(), self.key_dim * TILE);
        assert!(self.key_dim.is_multiple_of(CHAINS) && self.keys.len() == rows * R::key_width(self.key_dim));
        assert!(self.state.len() == tile && self.spare.len() == tile && self.kept <= rows);
        assert!(self.columns >= TILE && self.values.len() >= (rows - 1) * self.columns + TILE);
        if self.is_new {
            self.state.fill(0.0);
        }
        if S::ACCUMULATORS >= 24 {
            self.strip::<S, 2>(s, 0);
        } else {
            self.strip::<S, 1>(s, 0);
            if self.out.columns > LANES {
                self.strip::<S, 1>(s, LANES);
            }
        }
    }
}

/// The query and key of a row, and what belongs to the key.
#[derive(Clone, Copy)]
struct Key<'a> {
    query: &'a [f32],
    key: &'a [f32],
    /// Reads the state before it has decayed: the key, times its dimensions' decays if they have any.
    reader: &'a [f32],
    /// Of the key's dimensions, if they have any; otherwise anything.
    decays: &'a [f32],
}

impl<R: Rule> Recur<'_, '_, R> {
    #[inline(always)]
    fn key(&self, row: usize) -> Key<'_> {
        let width = R::key_width(self.key_dim);
        let part = |i: usize| &self.keys[row * width + i * self.key_dim..][..self.key_dim];
        let (reader, decays) = if R::DECAYS_BY_KEY { (2, 3) } else { (1, 1) };
        Key { query: part(0), key: part(1), reader: part(reader), decays: part(decays) }
    }

    /// All rows of `VECTORS` vectors of columns, from `column` of the tile on.
    #[inline(always)]
    fn strip<S: Simd, const VECTORS: usize>(&mut self, s: S, column: usize) {
        let rows = self.gates.len();
        let state = self.state[column..].as_mut_ptr();
        let spare = self.spare[column..].as_mut_ptr();
        let mut read = [s.zero(); VECTORS];
        if R::IS_DELTA {
            // SAFETY: the strip lies inside a tile of `key_dim` rows.
            read = unsafe { what_key_reads(s, state, self.key(0).reader) };
        }
        for row in 0..rows {
            let Gates { decay, beta } = self.gates[row];
            let value = self.values[row * self.columns + column..][..VECTORS * LANES].as_ptr();
            // SAFETY: the slice above has these vectors.
            let value: [S::V; VECTORS] = std::array::from_fn(|j| unsafe { s.load(value.add(j * LANES)) });
            let rest =
                |j: usize| if R::IS_DELTA { s.fma(read[j], s.splat(-decay), value[j]) } else { value[j] };
            let update = Update::<R, _, VECTORS> {
                from: if row <= self.kept { state } else { spare },
                to: if row < self.kept { state } else { spare },
                decay: s.splat(decay),
                added: std::array::from_fn(|j| s.mul(rest(j), s.splat(beta))),
                key: self.key(row),
                rule: PhantomData,
            };
            let next = (R::IS_DELTA && row + 1 < rows).then(|| self.key(row + 1).reader);
            let mut out;
            // SAFETY: both strips lie inside tiles of `key_dim` rows.
            unsafe {
                (out, read) = match next {
                    // Reading for the next row in the same pass needs twice the accumulators.
                    Some(next) if S::ACCUMULATORS >= 24 => update.run::<true>(s, next),
                    Some(next) => {
                        let (out, _) = update.run::<false>(s, next);
                        (out, what_key_reads(s, update.to, next))
                    }
                    None => update.run::<false>(s, update.key.key),
                };
            }
            if let Some(row) = row.checked_sub(self.replayed) {
                if !R::IS_DELTA {
                    out = std::array::from_fn(|j| s.fma(s.splat(self.skip), value[j], out[j]));
                }
                self.out.write(s, row, column, out);
            }
        }
    }
}

impl Outputs<'_, '_> {
    /// Writes a row's vectors from `column` of the tile on.
    #[inline(always)]
    fn write<S: Simd, const VECTORS: usize>(&self, s: S, row: usize, column: usize, out: [S::V; VECTORS]) {
        for (j, out) in out.into_iter().enumerate() {
            let column = column + j * LANES;
            let count = LANES.min(self.columns.saturating_sub(column));
            let to = self.all.pointer(self.start + row * self.stride + column.min(self.columns), count);
            // SAFETY: these places are inside the slice and in no other task.
            unsafe { if count == LANES { s.store(out, to) } else { s.store_part(out, to, count) } }
        }
    }
}

/// `k^T S`.
///
/// # Safety
/// `from` is readable for `VECTORS` vectors in each of `key.len()` rows that are [`TILE`] apart.
#[inline(always)]
unsafe fn what_key_reads<S: Simd, const VECTORS: usize>(
    s: S,
    from: *const f32,
    key: &[f32],
) -> [S::V; VECTORS] {
    let mut sums = [[s.zero(); VECTORS]; CHAINS];
    for (group, key) in key.as_chunks::<CHAINS>().0.iter().enumerate() {
        for chain in 0..CHAINS {
            let from = from.wrapping_add((group * CHAINS + chain) * TILE);
            let key = s.splat(key[chain]);
            for (j, sum) in sums[chain].iter_mut().enumerate() {
                // SAFETY: guaranteed by the caller.
                let state = unsafe { s.load(from.wrapping_add(j * LANES)) };
                *sum = s.fma(key, state, *sum);
            }
        }
    }
    join(s, sums)
}

/// One row's change of a strip.
#[derive(Clone, Copy)]
struct Update<'a, R, V, const VECTORS: usize> {
    from: *const f32,
    to: *mut f32,
    decay: V,
    /// What is added, in the direction of the key.
    added: [V; VECTORS],
    key: Key<'a>,
    rule: PhantomData<R>,
}

impl<R: Rule, V: Copy, const VECTORS: usize> Update<'_, R, V, VECTORS> {
    /// Writes the state after this row. Returns the row's output and, with `NEXT`, what the next row's reader
    /// reads; otherwise zeros.
    ///
    /// # Safety
    /// `from` is readable, and `to` is writable, for `VECTORS` vectors in each row of the key's dimensions;
    /// rows are [`TILE`] apart. They are the same or do not overlap.
    #[inline(always)]
    unsafe fn run<const NEXT: bool>(
        &self,
        s: impl Simd<V = V>,
        next: &[f32],
    ) -> ([V; VECTORS], [V; VECTORS]) {
        let mut out = [[s.zero(); VECTORS]; CHAINS];
        let mut read = out;
        let keys = self.key.key.as_chunks::<CHAINS>().0;
        let groups = |of| -> &[[f32; CHAINS]] { &<[f32]>::as_chunks(of).0[..keys.len()] };
        let (queries, decays, nexts) = (groups(self.key.query), groups(self.key.decays), groups(next));
        for group in 0..keys.len() {
            for chain in 0..CHAINS {
                let at = (group * CHAINS + chain) * TILE;
                let (key, query) = (s.splat(keys[group][chain]), s.splat(queries[group][chain]));
                let decay = if R::DECAYS_BY_KEY { s.splat(decays[group][chain]) } else { self.decay };
                let next = s.splat(nexts[group][chain]);
                for j in 0..VECTORS {
                    let at = at + j * LANES;
                    // SAFETY: guaranteed by the caller.
                    let state = unsafe { s.load(self.from.wrapping_add(at)) };
                    let state = s.fma(key, self.added[j], s.mul(state, decay));
                    // SAFETY: guaranteed by the caller.
                    unsafe { s.store(state, self.to.wrapping_add(at)) };
                    out[chain][j] = s.fma(query, state, out[chain][j]);
                    if NEXT {
                        read[chain][j] = s.fma(next, state, read[chain][j]);
                    }
                }
            }
        }
        (join(s, out), join(s, read))
    }
}

/// Joins the chains of sums.
#[inline(always)]
fn join<S: Simd, const VECTORS: usize>(s: S, sums: [[S::V; VECTORS]; CHAINS]) -> [S::V; VECTORS] {
    std::array::from_fn(|j| s.add(s.add(sums[0][j], sums[1][j]), s.add(sums[2][j], sums[3][j])))
}
