//! The choice of experts against the CPU's, to the bit, and the sorted pairs.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::experts::{Choices, Groups, Routing, Score};
use skein_kernels::cuda::ops::experts::{Pairs, Route, RouteRows, Sort, SortPairs, SortedPairs, Tile};
use skein_kernels::cuda::ops::kv::NO_SLOT;
use skein_kernels::cuda::{CudaError, DeviceSlice};

use super::{NO_EXPERT, draw_choice, sorted};
use crate::cases::Scale;
use crate::cases::case::Bench;

pub fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let rows = if bench.scale == Scale::Small { 21 } else { 5000 };
    let sigmoid = |per_token, renormalises| Routing {
        score: Score::Sigmoid,
        scale: 2.5,
        ..Routing::softmax(per_token, renormalises)
    };
    let groups = |count, kept, by_best| Some(Groups { count, kept, by_best });
    let cases = [
        (Routing::softmax(2, true), 8, false),
        (Routing::softmax(8, false), 64, false),
        (Routing { scale: 16.0, groups: groups(8, 3, 1), ..Routing::softmax(6, false) }, 160, false),
        (sigmoid(1, false), 16, false),
        (Routing { groups: groups(8, 4, 2), ..sigmoid(8, true) }, 256, true),
        (Routing { groups: groups(1, 1, 2), ..sigmoid(4, true) }, 37, true),
        (sigmoid(32, true), 512, true),
        (Routing::softmax(1, true), 1, false),
    ];
    for (routing, experts, has_correction) in cases {
        route(bench, Pairs { rows, per_token: routing.per_token, experts }, routing, has_correction)?;
    }
    let shapes: &[Pairs] = match bench.scale {
        Scale::Small => &[
            Pairs { rows: 1, per_token: 2, experts: 8 },
            Pairs { rows: 37, per_token: 3, experts: 5 },
            Pairs { rows: 5, per_token: 4, experts: 300 },
            Pairs { rows: 301, per_token: 8, experts: 9 },
        ],
        Scale::Full => &[
            Pairs { rows: 64, per_token: 8, experts: 128 },
            Pairs { rows: 8192, per_token: 8, experts: 256 },
            Pairs { rows: 4095, per_token: 2, experts: 8 },
        ],
    };
    shapes.iter().try_for_each(|pairs| sort(bench, *pairs))
}

fn route(bench: &mut Bench, pairs: Pairs, routing: Routing, has_correction: bool) -> Result<(), CudaError> {
    let Pairs { rows, per_token, experts } = pairs;
    let Routing { score, groups, renormalises, .. } = routing;
    let groups = groups.map_or(0, |groups| groups.count);
    let name = format!(
        "route {per_token} of {experts} experts in {groups} groups, {score:?} over all {}, correction {has_correction}",
        !renormalises
    );
    if !bench.wants(&name) {
        return Ok(());
    }
    let stride = experts + 1;
    // Rounded, so that many are equal; some are infinite.
    let mut logits: Vec<f32> =
        bench.normal(rows * stride).into_iter().map(|logit| (logit * 8.0).round() / 4.0).collect();
    logits[0] = f32::NEG_INFINITY;
    let correction: Vec<f32> =
        bench.normal(experts).into_iter().map(|value| (value * 8.0).round() / 64.0).collect();
    let mut slots: Vec<u32> = (0..rows as u32).collect();
    slots[rows - 2] = NO_SLOT;
    let (on_device, corrections, slots_on_device) =
        (bench.upload(&logits)?, bench.upload(&correction)?, bench.upload(&slots)?);
    let (chosen, weights) = (bench.output::<u32>(pairs.count())?, bench.output::<f32>(pairs.count())?);
    let launch = RouteRows {
        chosen: *chosen,
        weights: *weights,
        logits: *on_device,
        stride,
        correction: if has_correction { *corrections } else { DeviceSlice::NONE },
        slots: *slots_on_device,
        pairs,
        routing,
    };
    Route::new(&bench.kernels)?.launch(&bench.stream, launch)?;

    let of_experts: Vec<f32> = logits.chunks(stride).flat_map(|row| &row[..experts]).copied().collect();
    let mut choices = Choices::default();
    let correction = has_correction.then_some(&correction[..]);
    choices.route(&mut Cpu::new(1), &of_experts, experts, routing, correction);
    let (mut expected, mut expected_weights) = (Vec::new(), Vec::new());
    for (row, slot) in slots.iter().enumerate() {
        if *slot == NO_SLOT {
            expected.extend(vec![NO_EXPERT; per_token]);
            expected_weights.extend(vec![0.0; per_token]);
            continue;
        }
        let (experts, weights) = choices.of_row(row);
        expected.extend(experts);
        expected_weights.extend(weights);
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    bench.compare_exact(&name, &chosen.read(&bench.stream)?, &expected);
    let got = bits(&weights.read(&bench.stream)?);
    bench.compare_exact(&format!("{name}, weights"), &got, &bits(&expected_weights));
    Ok(())
}

fn sort(bench: &mut Bench, pairs: Pairs) -> Result<(), CudaError> {
    for tile_rows in [Tile::FEWEST_ROWS, 64] {
        let name = format!("sort_pairs {pairs:?} in tiles of {tile_rows}");
        if !bench.wants(&name) {
            continue;
        }
        let chosen = draw_choice(bench, pairs);
        let on_device = bench.upload(&chosen)?;
        let order = bench.output::<u32>(pairs.count())?;
        let tiles = bench.output::<u32>(SortedPairs::tile_words(pairs, tile_rows))?;
        // Pairs with other ranks' experts are left out.
        let first = if tile_rows == 64 { pairs.experts / 3 } else { 0 };
        let own = Pairs { experts: pairs.experts - first - pairs.experts / 4, ..pairs };
        let to = SortedPairs { sorted: *order, tiles: *tiles, pairs: own, tile: Tile::Few, tile_rows };
        Sort::new(&bench.kernels)?.launch(&bench.stream, SortPairs { to, chosen: *on_device, first })?;
        let chosen: Vec<u32> = chosen.iter().map(|expert| expert.wrapping_sub(first as u32)).collect();
        let (expected, expected_tiles) = sorted(&chosen, own.experts, tile_rows);
        let got = order.read(&bench.stream)?;
        bench.compare_exact(&name, &got[..expected.len()], &expected);
        let got = tiles.read(&bench.stream)?;
        bench.compare_exact(&format!("{name}, tiles"), &got[..expected_tiles.len()], &expected_tiles);
    }
    Ok(())
}
