use super::super::kv_cache::{KvShape, KvType};
use super::super::simd::Isa;
use super::*;

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 7919 % 1013) as f32 - 506.0) * 0.003_1).collect()
}

/// Heads, KV heads, head size, block size.
const SHAPES: [(usize, usize, usize, usize); 5] =
    [(4, 2, 16, 16), (7, 1, 64, 16), (3, 3, 24, 5), (4, 1, 10, 32), (18, 2, 32, 16)];

struct Case {
    shape: (usize, usize, usize, usize),
    length: usize,
    /// `[length, (heads + 2 * kv_heads) * head_dim]`
    qkv: Vec<f32>,
}

impl Case {
    fn new(shape: (usize, usize, usize, usize), length: usize) -> Self {
        let (heads, kv_heads, head_dim, _) = shape;
        Self { shape, length, qkv: values(length * (heads + 2 * kv_heads) * head_dim, length) }
    }

    /// Attends in the given chunks through a scattered block table, each chunk beside another sequence's.
    fn run(&self, isa: Isa, threads: usize, chunks: &[usize], block_size: usize) -> Vec<f32> {
        let (heads, kv_heads, head_dim, _) = self.shape;
        let stride = (heads + 2 * kv_heads) * head_dim;
        let per_sequence = self.length.div_ceil(block_size);
        let blocks = 2 * per_sequence + 3;
        let mut cache =
            KvCache::new(KvShape { layers: 2, kv_heads, head_dim, block_size, blocks, kind: KvType::F32 })
                .unwrap();
        let tables: [Vec<u32>; 2] =
            [0, 1].map(|s| (0..per_sequence).map(|i| (blocks - 1 - 2 * i - s) as u32).collect());
        let (cpu, mut scratch) = (&mut Cpu::with_isa(threads, isa), Scratch::default());
        let (mut out, mut start) = (Vec::new(), 0usize);
        for chunk in chunks {
            // The other sequence runs the same rows two positions late, so tiles and neighbours differ.
            let late = start.saturating_sub(2);
            let (mut x, mut slots) = (Vec::new(), Vec::new());
            for (table, from) in [(&tables[0], start), (&tables[1], late)] {
                for position in from..from + chunk {
                    x.extend_from_slice(&self.qkv[position * stride..][..stride]);
                    slots.push(
                        (table[position / block_size] as usize * block_size + position % block_size) as u32,
                    );
                }
            }
            cache.write(cpu, 1, &x, stride, heads * head_dim, &slots);
            let a = Attention { cache: &cache, layer: 1, q: &x, stride, heads, scale: 0.37 };
            let rows = [
                Rows { rows: 0..*chunk, position: start, blocks: &tables[0] },
                Rows { rows: *chunk..2 * chunk, position: late, blocks: &tables[1] },
            ];
            let mut both = vec![f32::NAN; 2 * chunk * heads * head_dim];
            attend(cpu, &a, &rows, &mut both, &mut scratch);
            out.extend_from_slice(&both[..chunk * heads * head_dim]);
            start += chunk;
        }
        out
    }

    fn exact(&self) -> Vec<f64> {
        let (heads, kv_heads, head_dim, _) = self.shape;
        let stride = (heads + 2 * kv_heads) * head_dim;
        let at = |position: usize, head: usize, i: usize| {
            f64::from(self.qkv[position * stride + head * head_dim + i])
        };
        let mut out = Vec::new();
        for (row, head) in (0..self.length).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let (key, value) = (heads + head * kv_heads / heads, heads + kv_heads + head * kv_heads / heads);
            let score =
                |p: usize| (0..head_dim).map(|i| at(row, head, i) * at(p, key, i)).sum::<f64>() * 0.37;
            let weights: Vec<f64> = (0..=row).map(|p| score(p).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend(
                (0..head_dim).map(|i| (0..=row).map(|p| weights[p] / sum * at(p, value, i)).sum::<f64>()),
            );
        }
        out
    }
}

#[test]
fn it_agrees_with_f64() {
    for shape in SHAPES {
        let case = Case::new(shape, 45);
        let got = case.run(Isa::best(), 2, &[45], shape.3);
        for (got, exact) in got.iter().zip(case.exact()) {
            assert!((f64::from(*got) - exact).abs() < 2e-5, "{shape:?}: {got} for {exact}");
        }
    }
}

#[test]
fn chunks_neighbours_threads_block_sizes_and_instruction_sets_change_no_bit() {
    for shape in SHAPES {
        let case = Case::new(shape, 45);
        let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let expected = bits(case.run(Isa::best(), 1, &[45], shape.3));
        for isa in Isa::available() {
            for (threads, chunks) in
                [(1, vec![1; 45]), (2, vec![45]), (3, vec![17, 1, 20, 7]), (2, vec![16, 29])]
            {
                for block_size in [shape.3, 16, 7, 1] {
                    let got = bits(case.run(isa, threads, &chunks, block_size));
                    assert!(got == expected, "{shape:?} {} {threads} {chunks:?} {block_size}", isa.name());
                }
            }
        }
    }
}

#[test]
fn a_copied_block_reads_the_same() {
    let shape = KvShape { layers: 2, kv_heads: 2, head_dim: 4, block_size: 2, blocks: 3, kind: KvType::F32 };
    let mut cache = KvCache::new(shape).unwrap();
    let x = values(32, 3);
    for layer in 0..2 {
        cache.write(&mut Cpu::new(1), layer, &x, 16, 0, &[2, 3]);
    }
    cache.copy_block(1, 2);
    for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (keys, values) = cache.keys_values(layer, 1, head);
        assert_eq!((keys, values), cache.keys_values(layer, 2, head));
        assert_eq!((keys[0], keys[1]), (x[head * 4], x[16 + head * 4]), "dimension 0 of both slots");
        assert_eq!(values[4..8], x[16 + 8 + head * 4..][..4], "the second slot's value");
    }
}
