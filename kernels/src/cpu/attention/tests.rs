use super::super::kv_cache::{KvCache, KvShape, KvType};
use super::super::packed::to_e4m3;
use super::super::simd::{Isa, e4m3_in_256ths};
use super::query::CHUNK;
use super::*;

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 7919 % 1013) as f32 - 506.0) * 0.003_1).collect()
}

/// Heads, KV heads, head size, block size.
const SHAPES: [(usize, usize, usize, usize); 6] =
    [(4, 2, 16, 16), (7, 1, 64, 16), (3, 3, 24, 5), (4, 1, 10, 32), (18, 2, 32, 16), (2, 1, 80, 16)];

/// Window, softcap, whether there are sinks. A softcap of [`CHUNKED`] stands for windows that do not slide.
type Variant = (Option<u32>, Option<f32>, bool);

/// Each feature alone and all together. Windows start within a chunk, at a chunk's edge and at an odd
/// position.
const VARIANTS: [Variant; 9] = [
    (None, None, false),
    (Some(19), None, false),
    (Some(256), Some(0.7), false),
    (None, Some(2.5), true),
    (None, None, true),
    (Some(300), Some(0.7), true),
    (Some(19), Some(CHUNKED), false),
    (Some(256), Some(CHUNKED), false),
    (Some(300), Some(CHUNKED), true),
];
const CHUNKED: f32 = 3.0;

struct Case {
    kind: KvType,
    shape: (usize, usize, usize, usize),
    length: usize,
    variant: Variant,
    /// Dimensions of a key that are its value, in a latent cache.
    latent: Option<usize>,
    /// Positions after its own that a row sees; the whole sequence is one chunk then.
    ahead: u32,
    /// `[length, (heads + 2 * kv_heads) * head_dim]`
    qkv: Vec<f32>,
}

/// Choices that must not change the result.
#[derive(Debug, Clone)]
struct Way {
    isa: Isa,
    threads: usize,
    chunks: Vec<usize>,
    block_size: usize,
}

impl Case {
    fn new(kind: KvType, shape: (usize, usize, usize, usize), length: usize) -> Self {
        let (heads, kv_heads, head_dim, _) = shape;
        let qkv = values(length * (heads + 2 * kv_heads) * head_dim, length);
        Self { kind, shape, length, variant: VARIANTS[0], latent: None, ahead: 0, qkv }
    }

    fn with(self, variant: Variant) -> Self {
        Self { variant, ..self }
    }

    /// The same shape with every kind of cache: with values, and latent.
    fn kinds(kind: KvType, shape: (usize, usize, usize, usize), length: usize) -> [Self; 2] {
        [None, Some(shape.2 * 3 / 4)].map(|latent| Self { latent, ..Self::new(kind, shape, length) })
    }

    fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.shape.2)
    }

    /// One sink per head if the variant has any; some are above all scores.
    fn sinks(&self) -> Option<Vec<f32>> {
        let (.., sinks) = self.variant;
        sinks.then(|| (0..self.shape.0).map(|head| head as f32 * 1.7 - 2.0).collect())
    }

    /// A cache full of NaN, as a failed request may leave it.
    fn stale_cache(&self, cpu: &mut Cpu, block_size: usize, blocks: usize) -> KvCache {
        let (_, kv_heads, head_dim, _) = self.shape;
        let shape = KvShape {
            layers: 2,
            kv_heads,
            head_dim,
            latent: self.latent,
            block_size,
            blocks,
            kind: self.kind,
        };
        let mut cache = KvCache::new(shape).unwrap();
        let (width, slots) = (2 * kv_heads * head_dim, (0..(blocks * block_size) as u32).collect::<Vec<_>>());
        cache.write(cpu, 1, &vec![f32::NAN; slots.len() * width], width, 0, &slots);
        cache
    }

    /// Attends in the given chunks through a scattered block table. Each batch also has a chunk of another
    /// sequence.
    fn run(&self, way: &Way) -> Vec<f32> {
        let Way { isa, threads, chunks, block_size } = way;
        let (heads, kv_heads, head_dim, _) = self.shape;
        let stride = (heads + 2 * kv_heads) * head_dim;
        let per_sequence = self.length.div_ceil(*block_size);
        let blocks = 2 * per_sequence + 3;
        let tables: [Vec<u32>; 2] =
            [0, 1].map(|s| (0..per_sequence).map(|i| (blocks - 1 - 2 * i - s) as u32).collect());
        let (cpu, mut scratch) = (&mut Cpu::with_isa(*threads, *isa), Scratch::default());
        let mut cache = self.stale_cache(cpu, *block_size, blocks);
        let sinks = self.sinks();
        let (mut out, mut start) = (Vec::new(), 0usize);
        for chunk in chunks {
            // The other sequence runs the same rows two positions late, so that tiles and neighbours differ.
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
            let (window, softcap, _) = self.variant;
            let sinks = sinks.as_deref();
            let a = Attention {
                cache: &cache,
                layer: 1,
                q: &x,
                stride,
                heads,
                group: heads / kv_heads,
                skipped: 0,
                scale: 0.37,
                window,
                is_chunked: softcap == Some(CHUNKED),
                ahead: self.ahead,
                softcap,
                sinks,
            };
            let rows = [
                SequenceRows { rows: 0..*chunk, position: start, end: start + chunk, blocks: &tables[0] },
                SequenceRows {
                    rows: *chunk..2 * chunk,
                    position: late,
                    end: late + chunk,
                    blocks: &tables[1],
                },
            ];
            let width = heads * self.value_dim();
            let mut both = vec![f32::NAN; 2 * chunk * width];
            attend(cpu, &a, &rows, &mut both, &mut scratch);
            out.extend_from_slice(&both[..chunk * width]);
            start += chunk;
        }
        out
    }

    fn bits(&self, way: &Way) -> Vec<u32> {
        self.run(way).into_iter().map(f32::to_bits).collect()
    }

    /// A head rounded as attention multiplies it.
    fn rounded(&self, head: &[f32], is_query: bool) -> Vec<f64> {
        let highest = head.iter().fold(0f32, |highest, x| highest.max(x.abs()));
        let round = |x: f32| match self.kind {
            KvType::Bf16 => half::bf16::from_f32(x).to_f32(),
            KvType::F16 if !is_query => half::f16::from_f32(x).to_f32(),
            KvType::Fp8 if !is_query && highest > 0.0 => {
                e4m3_in_256ths(to_e4m3(x * (448.0 / highest))) * 256.0 * (highest / 448.0)
            }
            KvType::Int8 if !is_query => (x * (127.0 / highest)).round_ties_even() * (highest / 127.0),
            _ => x,
        };
        head.iter().map(|x| f64::from(round(*x))).collect()
    }

    /// Attention of `rows`, in f64, over the rounded numbers.
    fn exact(&self, rows: &[usize]) -> Vec<f64> {
        let (heads, kv_heads, head_dim, _) = self.shape;
        let all = heads + 2 * kv_heads;
        let head_of: Vec<Vec<f64>> = self
            .qkv
            .chunks(head_dim)
            .enumerate()
            .map(|(i, head)| self.rounded(head, i % all < heads))
            .collect();
        let mut out = Vec::new();
        for (row, head) in rows.iter().flat_map(|row| (0..heads).map(move |head| (*row, head))) {
            let key = heads + head * kv_heads / heads;
            let value = if self.latent.is_some() { key } else { key + kv_heads };
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (window, softcap, _) = self.variant;
            let start = window.map_or(0, |window| match softcap {
                Some(CHUNKED) => row - row % window as usize,
                _ => (row + 1).saturating_sub(window as usize),
            });
            let score = |p: usize| {
                let score = dot(&head_of[row * all + head], &head_of[p * all + key]) * f64::from(0.37f32);
                softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let end = self.length.min((row + 1).saturating_add(self.ahead as usize));
            let weights: Vec<f64> = (0..end).map(|p| if p < start { 0.0 } else { score(p).exp() }).collect();
            let sink = self.sinks().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let sum = weights.iter().sum::<f64>() + sink;
            let value = |p: usize, i: usize| head_of[p * all + value][i];
            out.extend(
                (0..self.value_dim()).map(|i| (0..end).map(|p| weights[p] / sum * value(p, i)).sum::<f64>()),
            );
        }
        out
    }

    fn check_against_exact(&self, rows: &[usize]) {
        // Weights are rounded to bfloat16, too: an error of 2^-9 each, for values up to 1.6.
        let tolerance = if self.kind == KvType::Bf16 { 4e-3 } else { 3e-5 };
        let way = Way { isa: Isa::best(), threads: 2, chunks: vec![self.length], block_size: self.shape.3 };
        let (got, width) = (self.run(&way), self.shape.0 * self.value_dim());
        for (index, exact) in self.exact(rows).iter().enumerate() {
            let got = f64::from(got[rows[index / width] * width + index % width]);
            let case = (self.kind, self.shape, self.variant, self.latent);
            assert!((got - exact).abs() < tolerance, "{case:?}: {got} for {exact}");
        }
    }
}

#[test]
fn it_agrees_with_f64() {
    for (kind, shape) in KvType::ALL.into_iter().flat_map(|kind| SHAPES.map(|shape| (kind, shape))) {
        for variant in VARIANTS {
            for case in Case::kinds(kind, shape, 45) {
                case.with(variant).check_against_exact(&(0..45).collect::<Vec<_>>());
            }
            let rows = [0, 17, 255, 256, 257, 299, 300, 511, 512, 555, 699];
            for case in Case::kinds(kind, shape, 700) {
                case.with(variant).check_against_exact(&rows);
            }
        }
    }
}

#[test]
fn rows_that_see_what_follows_them_agree_with_f64_and_nothing_else_changes_a_bit() {
    let shapes = [(KvType::F32, SHAPES[0]), (KvType::F32, SHAPES[2]), (KvType::Bf16, SHAPES[1])];
    for (kind, shape) in shapes {
        for (length, window, ahead) in [
            (45, None, u32::MAX),
            (45, Some(7), 6),
            (700, None, u32::MAX),
            (700, Some(65), 64),
            (700, Some(300), 299),
        ] {
            let case = Case { ahead, ..Case::new(kind, shape, length).with((window, None, false)) };
            case.check_against_exact(&(0..length).step_by(length / 40).collect::<Vec<_>>());
            let way = |isa, threads, block_size| Way { isa, threads, chunks: vec![length], block_size };
            let expected = case.bits(&way(Isa::best(), 1, shape.3));
            for isa in Isa::available() {
                for (threads, block_size) in [(1, 16), (2, 32), (3, 7)] {
                    let way = way(isa, threads, block_size);
                    assert!(case.bits(&way) == expected, "{kind:?} {shape:?} {window:?} {way:?}");
                }
            }
        }
    }
}

#[test]
fn chunks_neighbours_threads_block_sizes_and_instruction_sets_change_no_bit() {
    for (kind, shape) in KvType::ALL.into_iter().flat_map(|kind| SHAPES.map(|shape| (kind, shape))) {
        let variants = [VARIANTS[0], VARIANTS[1], VARIANTS[3], VARIANTS[6]].into_iter();
        for (variant, case) in variants.flat_map(|it| Case::kinds(kind, shape, 45).map(|case| (it, case))) {
            let case = case.with(variant);
            let way = |isa, threads, chunks: &[usize], block_size| Way {
                isa,
                threads,
                chunks: chunks.to_vec(),
                block_size,
            };
            let expected = case.bits(&way(Isa::best(), 1, &[45], shape.3));
            for isa in Isa::available() {
                for (threads, chunks) in
                    [(1, vec![1; 45]), (2, vec![45]), (3, vec![17, 1, 20, 7]), (2, vec![16, 29])]
                {
                    for block_size in [shape.3, 16, 7, 1] {
                        let way = way(isa, threads, &chunks, block_size);
                        assert!(case.bits(&way) == expected, "{kind:?} {shape:?} {variant:?} {way:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_assignment_of_a_long_contexts_chunks_to_threads_changes_no_bit() {
    let length = 2 * CHUNK + 70;
    for (kind, shape) in
        KvType::ALL.into_iter().flat_map(|kind| [(7, 1, 32, 16), (6, 2, 16, 16)].map(|s| (kind, s)))
    {
        for (variant, case) in
            VARIANTS.into_iter().flat_map(|it| Case::kinds(kind, shape, length).map(|case| (it, case)))
        {
            // A latent cache goes the same way through windows and caps.
            if case.latent.is_some() && variant != VARIANTS[0] {
                continue;
            }
            let case = case.with(variant);
            let whole = Way { isa: Isa::best(), threads: 1, chunks: vec![length], block_size: 16 };
            let expected = case.bits(&whole);
            for isa in Isa::available() {
                for (threads, chunks, block_size) in [
                    (2, vec![CHUNK - 1, 2, length - CHUNK - 1], 16),
                    (4, vec![length - 5, 1, 1, 1, 2], 32),
                    (3, vec![CHUNK + 1, length - CHUNK - 2, 1], 48),
                    (4, vec![500, length - 501, 1], 5),
                ] {
                    let way = Way { isa, threads, chunks, block_size };
                    assert!(case.bits(&way) == expected, "{kind:?} {shape:?} {variant:?} {way:?}");
                }
            }
        }
    }
}
