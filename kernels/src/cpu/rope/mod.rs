//! Rotary position embeddings (Su et al. 2021). The halves of a head are rotated, as in Hugging Face
//! checkpoints.

mod frequencies;

pub use frequencies::{RopeScaling, Rotation};

use super::disjoint::DisjointMut;
use super::kv_cache::{KvCache, TILE};
use super::rows::RowsMut;
use super::simd::{Kernel, Simd};
use super::{Cpu, for_each_row, for_each_row_of, for_each_run};

/// Rows per task if there are many: one tile of slots.
const ROWS_PER_TASK: usize = TILE;

/// Writes the cosines and sines of each row's position, `[rows, head_dim / 2]` each.
pub fn angles(cpu: &mut Cpu, rotation: &Rotation, positions: &[u32], cos: &mut [f32], sin: &mut [f32]) {
    let Rotation { frequencies, amplitude } = rotation;
    let half = frequencies.len();
    assert!(
        cos.len() == positions.len() * half && sin.len() == cos.len(),
        "cos and sin are [rows, head_dim / 2]"
    );
    let (cos, sin) = (DisjointMut::new(cos), DisjointMut::new(sin));
    for_each_row(cpu, positions.len(), |row| {
        // SAFETY: each row is in one task.
        let (cos, sin) = unsafe { (cos.part(row * half, half), sin.part(row * half, half)) };
        for i in 0..half {
            (cos[i], sin[i]) = (1.0, 0.0);
            if frequencies[i] != 0.0 {
                let angle = positions[row] as f32 * frequencies[i];
                (cos[i], sin[i]) = (libm::cosf(angle) * amplitude, libm::sinf(angle) * amplitude);
            }
        }
    });
}

/// Rotates the first `heads` heads of each row of `x` `[rows, stride]` in place.
///
/// # Panics
/// If the shapes disagree.
pub fn rotate(cpu: &mut Cpu, x: &mut [f32], stride: usize, heads: usize, cos: &[f32], sin: &[f32]) {
    let rows = x.len() / stride;
    let half = cos.len() / rows.max(1);
    assert!(x.len() == rows * stride && heads * 2 * half <= stride, "the heads lie inside a row");
    let (isa, x) = (cpu.isa, DisjointMut::new(x));
    for_each_row(cpu, rows, |row| {
        // SAFETY: each row is in one task.
        let x = unsafe { x.part(row * stride, heads * 2 * half) };
        isa.run(Rotate { x, cos: &cos[row * half..][..half], sin: &sin[row * half..][..half] });
    });
}

/// How [`scale_by_position`] grows with positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// Positions from one change to the next.
    pub every: u32,
    /// Added to a position.
    pub shift: u32,
    /// Factor of the logarithm.
    pub scale: f32,
}

/// Multiplies the first `width` values of each row of `x` by `1 + scale * ln(1 + n)`, where
/// `n` is `(position + shift) / every`, rounded down.
///
/// # Panics
/// If the shapes disagree.
pub fn scale_by_position(cpu: &mut Cpu, x: RowsMut<'_>, width: usize, positions: &[u32], by: Temperature) {
    let RowsMut { values: x, stride } = x;
    let Temperature { every, shift, scale } = by;
    assert!(x.len() == positions.len() * stride && width <= stride, "x is [rows, stride]");
    let x = DisjointMut::new(x);
    for_each_row_of(cpu, positions.len(), width, |row, _| {
        let periods = ((positions[row] as f32 + shift as f32) / every as f32).floor();
        let factor = libm::log1pf(periods) * scale + 1.0;
        // SAFETY: each row is in one task.
        unsafe { x.part(row * stride, width) }.iter_mut().for_each(|x| *x *= factor);
    });
}

/// The query, key and value heads of a batch, and the slots for its keys and values.
pub struct Projected<'a> {
    /// `[rows, (heads + 2 * kv_heads) * head_dim]`: queries, keys, values. Rows may be longer.
    pub qkv: &'a mut [f32],
    /// Number of query heads.
    pub heads: usize,
    /// Cosines `[rows, head_dim / 2]`, see [`angles`].
    pub cos: &'a [f32],
    /// Sines, as `cos`.
    pub sin: &'a [f32],
    /// `[rows]` cache slots, all different.
    pub slots: &'a [u32],
}

/// Rotates queries and keys in place and writes keys and values to the cache, in one pass over the rows.
///
/// # Panics
/// If the shapes disagree or a slot is outside the cache.
pub fn rotate_and_write(cpu: &mut Cpu, cache: &mut KvCache, layer: usize, projected: Projected<'_>) {
    let Projected { qkv, heads, cos, sin, slots } = projected;
    let (kv_heads, head_dim) = (cache.shape().kv_heads, cache.shape().head_dim);
    let (half, width) = (head_dim / 2, (heads + 2 * kv_heads) * head_dim);
    let stride = qkv.len() / slots.len().max(1);
    assert!(
        qkv.len() == slots.len() * stride && (stride >= width || slots.is_empty()),
        "qkv is [slots, (heads + 2 * kv_heads) * head_dim]"
    );
    assert!(
        cos.len() == slots.len() * half && sin.len() == cos.len(),
        "cos and sin are [rows, head_dim / 2]"
    );
    let (isa, rows, threads) = (cpu.isa, slots.len(), cpu.threads.count());
    let (slots_of, qkv) = (cache.slots(layer), DisjointMut::new(qkv));
    let work = |row: usize, _| {
        // SAFETY: each row is in one task.
        let x = unsafe { qkv.part(row * stride, stride) };
        let rotated = &mut x[..(heads + kv_heads) * head_dim];
        isa.run(Rotate { x: rotated, cos: &cos[row * half..][..half], sin: &sin[row * half..][..half] });
        // SAFETY: slots are distinct, and each row is in one task.
        isa.run(unsafe { slots_of.write(slots[row], &x[heads * head_dim..width]) });
    };
    // Consecutive slots, as in prefill, share cache lines: threads should not write adjacent ones.
    if rows >= 4 * ROWS_PER_TASK * threads {
        for_each_run(cpu, rows, ROWS_PER_TASK, work);
    } else {
        for_each_row_of(cpu, rows, width, work);
    }
}

/// Rotates all heads of a row.
pub(super) struct Rotate<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let half = self.cos.len();
        for head in self.x.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(self.cos).zip(self.sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kv_cache::{KvShape, KvType};
    use super::super::simd::Isa;
    use super::*;

    #[test]
    fn a_rotation_keeps_lengths_and_depends_on_distance_only() {
        let cpu = &mut Cpu::new(1);
        let rotation = Rotation::plain(8, 10_000.0);
        let rotated = |cpu: &mut Cpu, x: [f32; 8], position: u32| {
            let (mut x, mut cos, mut sin) = (x, [0.0; 4], [0.0; 4]);
            angles(cpu, &rotation, &[position], &mut cos, &mut sin);
            rotate(cpu, &mut x, 8, 1, &cos, &sin);
            x
        };
        let dot = |a: [f32; 8], b: [f32; 8]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (q, k) = ([0.3, -1.2, 0.7, 2.0, 0.1, 0.9, -0.4, 1.1], [1.0, 0.2, -0.6, 0.8, 1.3, -0.9, 0.5, 0.4]);
        assert_eq!(rotated(cpu, q, 0), q);
        for position in [1, 17, 1000] {
            let (near, far) = (rotated(cpu, q, position + 3), rotated(cpu, k, position));
            assert!((dot(near, far) - dot(rotated(cpu, q, 3), k)).abs() < 1e-3);
            assert!((dot(near, near) - dot(q, q)).abs() < 1e-4);
        }
    }

    #[test]
    fn only_rotated_pairs_have_the_amplitude() {
        let rotation = Rotation { frequencies: vec![0.5, 0.0], amplitude: 2.0 };
        let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
        angles(&mut Cpu::new(1), &rotation, &[0, 3], &mut cos, &mut sin);
        assert_eq!(
            (cos, sin),
            ([2.0, 1.0, 2.0 * libm::cosf(1.5), 1.0], [0.0, 0.0, 2.0 * libm::sinf(1.5), 0.0])
        );
    }

    #[test]
    fn rotating_and_writing_at_once_is_rotating_and_then_writing() {
        let shape = KvShape {
            layers: 2,
            kv_heads: 2,
            head_dim: 20,
            latent: None,
            block_size: 16,
            blocks: 3,
            kind: KvType::F16,
        };
        let (rows, heads, stride) = (19, 3, 7 * 20);
        let x: Vec<f32> = (0..rows * stride).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.07).collect();
        let slots: Vec<u32> = (0..rows as u32).map(|row| row * 5 % 48).collect();
        let (mut cos, mut sin) = (vec![0.0; rows * 10], vec![0.0; rows * 10]);
        let rotation = Rotation::plain(20, 10_000.0);
        angles(&mut Cpu::new(1), &rotation, &slots, &mut cos, &mut sin);
        let mut expected = x.clone();
        rotate(&mut Cpu::new(1), &mut expected, stride, heads + 2, &cos, &sin);
        let mut written = KvCache::new(shape).unwrap();
        written.write(&mut Cpu::new(1), 1, &expected, stride, heads * 20, &slots);
        for isa in Isa::available() {
            let (mut qkv, mut cache) = (x.clone(), KvCache::new(shape).unwrap());
            let projected = Projected { qkv: &mut qkv, heads, cos: &cos, sin: &sin, slots: &slots };
            rotate_and_write(&mut Cpu::with_isa(2, isa), &mut cache, 1, projected);
            assert_eq!(qkv, expected, "{}", isa.name());
            for (tile, head) in (0..3).flat_map(|tile| [(tile, 0), (tile, 1)]) {
                assert_eq!(cache.tile(1, tile, head), written.tile(1, tile, head), "{}", isa.name());
            }
        }
    }
}
