//! Top-k and top-p: which tokens stay.
//!
//! Top-p adds weights as whole numbers of 2^-44. Such sums are exact, so they depend on no order, and a device that adds
//! them in any other way finds the same cut. A weight is rounded by at most 2^-45, where f32 itself is coarser than that
//! for all weights above 2^-21.

/// Tokens that stay.
pub(super) enum Kept<'a> {
    /// All that have a weight.
    All,
    /// These.
    These(&'a [u32]),
}

/// Tokens looked at first for top-p; few distributions need more.
const FIRST_LOOK: usize = 512;

/// Applies top-k, then top-p among what is left. Tokens are taken by descending logit, the lower id first among equals;
/// those with weight zero are out already. `order` is scratch.
pub(super) fn keep<'a>(
    logits: &[f32],
    weights: &[f32],
    top_k: u32,
    top_p: f32,
    order: &'a mut Vec<u32>,
) -> Kept<'a> {
    let top_k = if top_k == 0 { usize::MAX } else { top_k as usize };
    if top_k >= weights.len() && top_p >= 1.0 {
        return Kept::All;
    }
    order.clear();
    order.extend((0..weights.len() as u32).filter(|token| weights[*token as usize] > 0.0));
    // Brings the best `count` to the front, in order.
    let sort_best = |order: &mut Vec<u32>, count: usize| {
        let before = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if count < order.len() {
            order.select_nth_unstable_by(count, before);
        }
        let count = count.min(order.len());
        order[..count].sort_unstable_by(before);
    };
    if top_k < order.len() {
        sort_best(order, top_k);
        order.truncate(top_k);
    }
    if top_p < 1.0 {
        let total = order.iter().fold(0u64, |sum, token| sum.saturating_add(mass(weights[*token as usize])));
        let goal = total as f64 * f64::from(top_p);
        let mut looked = FIRST_LOOK;
        loop {
            sort_best(order, looked);
            if let Some(count) = reaching(&order[..looked.min(order.len())], weights, goal) {
                order.truncate(count);
                break;
            }
            if looked >= order.len() {
                break; // no token has a weight
            }
            looked *= 8;
        }
    }
    Kept::These(order)
}

/// How many tokens from the front weigh `goal` together; at least one.
fn reaching(order: &[u32], weights: &[f32], goal: f64) -> Option<usize> {
    let mut sum = 0u64;
    let place = order.iter().position(|token| {
        sum = sum.saturating_add(mass(weights[*token as usize]));
        sum as f64 >= goal
    });
    place.map(|place| place + 1)
}

/// A weight, at most 1, in units of 2^-44, ties to even; 2^19 tokens of weight 1 still fit their sum. The product is exact.
fn mass(weight: f32) -> u64 {
    (weight * 17_592_186_044_416.0).round_ties_even() as u64
}
