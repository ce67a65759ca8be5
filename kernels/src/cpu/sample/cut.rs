//! Top-k and top-p: which tokens stay.

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
        // In id order or sorted: either way fixed by the logits alone.
        let total: f64 = order.iter().map(|token| f64::from(weights[*token as usize])).sum();
        let mut looked = FIRST_LOOK;
        loop {
            sort_best(order, looked);
            if let Some(count) =
                reaching(&order[..looked.min(order.len())], weights, total * f64::from(top_p))
            {
                order.truncate(count);
                break;
            }
            if looked >= order.len() {
                break; // rounding kept the sum from reaching its own total
            }
            looked *= 8;
        }
    }
    Kept::These(order)
}

/// How many tokens from the front weigh `goal` together; at least one.
fn reaching(order: &[u32], weights: &[f32], goal: f64) -> Option<usize> {
    let mut sum = 0.0;
    let place = order.iter().position(|token| {
        sum += f64::from(weights[*token as usize]);
        sum >= goal
    });
    place.map(|place| place + 1)
}
