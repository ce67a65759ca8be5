//! How much memory GPTQ takes for a layer, and how many passes over the calibration text keep it below a
//! bound: each pass measures the Hessians of some products, which are quantised before the next one. All
//! passes run the same layer over the same rows, so their number changes no bit.

use std::collections::{BTreeMap, BTreeSet};

use skein_model::on_cpu::capture::Reader;

use super::original::Target;

/// Size of a number in single precision.
const F32: u64 = size_of::<f32>() as u64;

/// What reads the same inputs, with the size of their Hessian in bytes.
fn hessians(targets: &[Target]) -> BTreeMap<Reader, u64> {
    targets.iter().map(|target| (target.reader, F32 * (target.cols as u64).pow(2))).collect()
}

/// Readers by pass, so that the Hessians of a pass take at most `budget` bytes. A larger one has a pass of
/// its own.
pub(super) fn of_layer(targets: &[Target], budget: u64) -> Vec<BTreeSet<Reader>> {
    let mut passes: Vec<(u64, BTreeSet<Reader>)> = Vec::new();
    for (reader, size) in hessians(targets) {
        match passes.last_mut() {
            Some((sum, pass)) if sum.saturating_add(size) <= budget => {
                *sum += size;
                pass.insert(reader);
            }
            _ => passes.push((size, BTreeSet::from([reader]))),
        }
    }
    passes.into_iter().map(|(_, pass)| pass).collect()
}

/// Peak memory of a layer in bytes, without pages of the model's files; its stored weights have `stored`
/// bytes each.
pub(super) fn peak(targets: &[Target], stored: u64, budget: u64) -> u64 {
    let count = |target: &Target| (target.rows * target.cols) as u64;
    let (weights, most) =
        targets.iter().map(count).fold((0, 0), |(sum, most), count| (sum + count, most.max(count)));
    let sizes = hessians(targets);
    let of_pass = |pass: &BTreeSet<Reader>| pass.iter().map(|reader| sizes[reader]).sum::<u64>();
    let measured = of_layer(targets, budget).iter().map(of_pass).max().unwrap_or_default();
    let largest = sizes.values().copied().max().unwrap_or_default();
    let codes = weights; // a byte each, until the layer is written
    let measuring = codes + stored * weights + measured;
    let rounding = codes + measured + 2 * largest + F32 * most;
    let as_quantised = codes + F32 * (weights + 2 * most);
    measuring.max(rounding).max(as_quantised)
}
