//! Cases of [`skein_kernels::cuda::ops::experts`].

mod choice;
mod join;
mod products;
mod router;

use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::experts::Pairs;

use super::case::Bench;

/// Expert of a pair in a padding row.
const NO_EXPERT: u32 = u32::MAX;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    router::run(bench)?;
    choice::run(bench)?;
    products::run(bench)?;
    join::run(bench)
}

/// A random choice in which the first expert is popular. The last row is padding, if there are several.
fn draw_choice(bench: &mut Bench, pairs: Pairs) -> Vec<u32> {
    let expert = |bench: &mut Bench| match bench.below(3) {
        0 => 0,
        _ => bench.below(pairs.experts as u32),
    };
    let mut chosen: Vec<u32> = (0..pairs.count()).map(|_| expert(bench)).collect();
    if pairs.rows > 1 {
        chosen[(pairs.rows - 1) * pairs.per_token..].fill(NO_EXPERT);
    }
    chosen
}

/// Pairs by expert, and the words of the list of tiles.
fn sorted(chosen: &[u32], experts: usize, tile_rows: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut all, mut tiles) = (Vec::new(), vec![0, 0, 0, 0]);
    for expert in 0..experts as u32 {
        let first = all.len();
        all.extend((0..chosen.len() as u32).filter(|pair| chosen[*pair as usize] == expert));
        for start in (first..all.len()).step_by(tile_rows) {
            let rows = tile_rows.min(all.len() - start);
            tiles.extend([expert, start as u32, rows as u32, 0]);
            tiles[0] += 1;
        }
    }
    (all, tiles)
}
