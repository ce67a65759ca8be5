//! Cases of [`skein_kernels::cuda::ops::block_copy`].

use super::Scale;
use super::case::Bench;
use skein_kernels::cuda::ops::block_copy::{BlockCopies, BlockCopy, BlockPlanes};
use skein_kernels::cuda::{CudaError, DeviceSlice, PinnedBuffer};

/// (planes, blocks, bytes per block, pairs, capacity for pairs)
type CopyShape = (usize, usize, usize, usize, usize);

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[CopyShape] = match bench.scale {
        Scale::Small => &[(4, 13, 48, 5, 8), (2, 70, 1024, 33, 33), (3, 6, 5008, 0, 4)],
        Scale::Full => &[(4, 13, 48, 5, 8), (16, 300, 32_768, 130, 256), (3, 6, 5008, 0, 4)],
    };
    for &shape in shapes {
        within_a_cache(bench, shape)?;
        to_the_host_and_back(bench, shape)?;
    }
    Ok(())
}

/// `pairs` pairs of distinct blocks, followed by pairs that must be ignored.
fn pairs(bench: &mut Bench, (_, blocks, _, pairs, capacity): CopyShape) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..blocks as u32).collect();
    for i in (1..ids.len()).rev() {
        ids.swap(i, bench.below(i as u32 + 1) as usize);
    }
    ids.truncate(2 * pairs);
    if pairs > 2 {
        ids[1] = blocks as u32; // a block that does not exist
    }
    ids.resize(2 * capacity, 0);
    ids
}

/// The expected contents of `to`.
fn copied(from: &[u8], to: &mut [u8], pairs: &[u32], (planes, blocks, bytes, count, _): CopyShape) {
    let plane = from.len() / planes;
    for pair in pairs[..2 * count].chunks(2) {
        let (source, target) = (pair[0] as usize, pair[1] as usize);
        for start in (0..planes).map(|p| p * plane).filter(|_| source < blocks && target < blocks) {
            to[start + target * bytes..][..bytes].copy_from_slice(&from[start + source * bytes..][..bytes]);
        }
    }
}

fn within_a_cache(bench: &mut Bench, shape: CopyShape) -> Result<(), CudaError> {
    let name = format!("block_copy {shape:?}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (planes, blocks, block_bytes, count, _) = shape;
    let plane_bytes = blocks * block_bytes + 32;
    let mut cache = bench.bytes(planes * plane_bytes);
    let pairs = pairs(bench, shape);
    let on_device = bench.upload(&cache)?;
    let (ids, count) = (bench.upload(&pairs)?, bench.upload(&[count as u32])?);
    let side = BlockPlanes { memory: *on_device, plane_bytes, blocks };
    let copies = BlockCopies { from: side, to: side, planes, block_bytes, pairs: *ids, count: *count };
    BlockCopy::new(&bench.kernels)?.launch(&bench.stream, copies)?;
    let before = cache.clone();
    copied(&before, &mut cache, &pairs, shape);
    let got = on_device.read(&bench.stream)?;
    bench.compare_exact(&name, &got, &cache);
    Ok(())
}

fn to_the_host_and_back(bench: &mut Bench, shape: CopyShape) -> Result<(), CudaError> {
    let name = format!("block_copy to the host and back {shape:?}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (planes, blocks, block_bytes, count, _) = shape;
    let plane_bytes = blocks * block_bytes;
    let cache = bench.bytes(planes * plane_bytes);
    let pairs = pairs(bench, shape);
    let back: Vec<u32> = pairs.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    let (read, written) = (bench.upload(&cache)?, bench.output::<u8>(cache.len())?);
    let pinned = PinnedBuffer::<u8>::new(bench.kernels.device(), cache.len())?;
    let host = DeviceSlice::<u8>::from_raw(pinned.as_ptr() as u64, pinned.len());
    let (ids, back_ids) = (bench.upload(&pairs)?, bench.upload(&back)?);
    let count = bench.upload(&[count as u32])?;
    let side = |memory| BlockPlanes { memory, plane_bytes, blocks };
    let copy = BlockCopy::new(&bench.kernels)?;
    let out =
        BlockCopies { from: side(*read), to: side(host), planes, block_bytes, pairs: *ids, count: *count };
    copy.launch(&bench.stream, out)?;
    let home = BlockCopies { from: side(host), to: side(*written), pairs: *back_ids, ..out };
    copy.launch(&bench.stream, home)?;
    let (mut swapped, mut reference) = (vec![0; cache.len()], vec![0xff; cache.len()]);
    copied(&cache, &mut swapped, &pairs, shape);
    copied(&swapped, &mut reference, &back, shape);
    let got = written.read(&bench.stream)?;
    bench.compare_exact(&name, &got, &reference);
    bench.compare_exact(&format!("{name}, on the host"), &pinned[..], &swapped);
    Ok(())
}
