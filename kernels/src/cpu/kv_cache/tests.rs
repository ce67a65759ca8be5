use super::*;
use crate::cpu::simd::{Isa, e4m3_in_256ths};

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 7919 % 1013) as f32 - 506.0) * 0.003_1).collect()
}

fn shape(kind: KvType, head_dim: usize, block_size: usize) -> KvShape {
    KvShape { layers: 2, kv_heads: 2, head_dim, latent: None, block_size, blocks: 6, kind }
}

/// Reads a slot's key and value back, widened.
fn read(cache: &KvCache, layer: usize, slot: usize, head: usize) -> [Vec<f32>; 2] {
    let (layout, tile, lane) = (cache.layout(), cache.tile(layer, slot / TILE, head), slot % TILE);
    let word = |at: usize| u32::from_ne_bytes(tile[at..at + 4].try_into().unwrap());
    let half = |at: usize| u16::from_ne_bytes(tile[at..at + 2].try_into().unwrap());
    let number = |at: usize, scale: usize| match layout.kind {
        KvType::F32 => f32::from_bits(word(at)),
        KvType::Bf16 => half::bf16::from_bits(half(at)).to_f32(),
        KvType::F16 => half::f16::from_bits(half(at)).to_f32(),
        KvType::Int8 => f32::from(tile[at] as i8) * f32::from_bits(word(layout.scales() + 4 * scale)),
        KvType::Fp8 => e4m3_in_256ths(tile[at]) * f32::from_bits(word(layout.scales() + 4 * scale)),
    };
    let dims = 0..cache.shape().head_dim;
    let (key, value) = (layout.key_places(lane), layout.value_places(lane));
    let key = dims.clone().map(|i| number(key.of(i), lane)).collect();
    [key, dims.map(|i| number(value.of(i), TILE + lane)).collect()]
}

fn tolerance(kind: KvType) -> f32 {
    match kind {
        KvType::F32 => 0.0,
        KvType::Bf16 => 1.0 / 256.0,
        KvType::F16 => 1.0 / 2048.0,
        KvType::Int8 => 0.501 / 127.0,
        KvType::Fp8 => 1.001 / 16.0,
    }
}

#[test]
fn slots_read_back_rounded_and_equal_on_every_instruction_set() {
    for (kind, head_dim, block_size) in KvType::ALL
        .into_iter()
        .flat_map(|kind| [(kind, 10, 16), (kind, 64, 16), (kind, 24, 5), (kind, 16, 32)])
    {
        let (width, shape) = (2 * head_dim, shape(kind, head_dim, block_size));
        let (rows, stride, key) = (21, 4 * head_dim + 3, 3);
        let x = values(rows * stride, head_dim);
        let slots: Vec<u32> = (0..rows as u32).map(|row| row * 8 % 29).collect();
        let mut first = None;
        for isa in Isa::available() {
            let mut cache = KvCache::new(shape).unwrap();
            cache.write(&mut Cpu::with_isa(3, isa), 1, &x, stride, key, &slots);
            for (row, slot) in slots.iter().enumerate() {
                for head in 0..2 {
                    let from = row * stride + key + head * head_dim;
                    let expected = [&x[from..][..head_dim], &x[from + width..][..head_dim]];
                    for (got, expected) in read(&cache, 1, *slot as usize, head).iter().zip(expected) {
                        let highest = expected.iter().fold(0f32, |highest, x| highest.max(x.abs()));
                        for (got, expected) in got.iter().zip(expected) {
                            let off = (got - expected).abs();
                            assert!(off <= tolerance(kind) * highest, "{kind:?}: {got} for {expected}");
                        }
                    }
                }
            }
            assert!(read(&cache, 0, slots[0] as usize, 0)[0].iter().all(|value| *value == 0.0));
            assert!(*first.get_or_insert_with(|| cache.memory.to_vec()) == *cache.memory, "{}", isa.name());
        }
    }
}

#[test]
fn a_copied_block_reads_the_same_and_its_neighbours_are_left_alone() {
    for (kind, block_size) in KvType::ALL.into_iter().flat_map(|kind| [16, 32, 5, 1].map(|size| (kind, size)))
    {
        let mut cache = KvCache::new(shape(kind, 10, block_size)).unwrap();
        let slots: Vec<u32> = (0..6 * block_size as u32).collect();
        for layer in 0..2 {
            cache.write(&mut Cpu::new(1), layer, &values(slots.len() * 40, 3 + layer), 40, 0, &slots);
        }
        let all = |cache: &KvCache| -> Vec<_> {
            let places = slots.iter().flat_map(|slot| [(0, 0), (0, 1), (1, 0), (1, 1)].map(|p| (*slot, p)));
            places.map(|(slot, (layer, head))| read(cache, layer, slot as usize, head)).collect()
        };
        let mut expected = all(&cache);
        cache.copy_block(1, 4);
        expected.copy_within_clone(4 * block_size, 16 * block_size);
        assert!(all(&cache) == expected, "{kind:?}, blocks of {block_size}");
    }
}

trait CopyWithin {
    /// Copies `self[count..2 * count]` to `to`.
    fn copy_within_clone(&mut self, count: usize, to: usize);
}

impl<T: Clone> CopyWithin for Vec<T> {
    fn copy_within_clone(&mut self, count: usize, to: usize) {
        let copied = self[count..2 * count].to_vec();
        self[to..to + count].clone_from_slice(&copied);
    }
}

#[test]
fn a_blocks_bytes_are_those_of_its_tiles() {
    for kind in KvType::ALL {
        for (head_dim, block_size) in [(64, 16), (80, 32), (10, 16)] {
            let shape = shape(kind, head_dim, block_size);
            let cache = KvCache::new(shape).unwrap();
            assert_eq!(shape.block_bytes().unwrap() * 6, cache.memory.len() as u64);
            let slot = 2 * kind.head_bytes(head_dim) * shape.kv_heads * shape.layers;
            assert_eq!(shape.block_bytes().unwrap(), (slot * block_size) as u64);
        }
    }
    assert_eq!(KvType::ALL.map(|kind| kind.head_bytes(64)), [256, 128, 128, 68, 68]);
    assert_eq!(KvShape { layers: usize::MAX, ..shape(KvType::F32, 64, 16) }.block_bytes(), None);
    assert!(KvCache::new(KvShape { blocks: usize::MAX, ..shape(KvType::F32, 64, 16) }).is_err());
}
