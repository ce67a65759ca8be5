//! Chooses how many draft tokens a step verifies: the number that maximises the expected tokens per second of
//! all streams together. Every additional row slows all of them down, so with many streams nothing is
//! verified.

use super::row_cost::RowCost;

/// Least expected speedup over plain decoding. Above 1, because probabilities and times are estimates.
const MARGIN: f64 = 1.04;
/// Longest expected time of a step with drafts, so that streams and new prompts do not wait for guesses: this
/// many seconds, or on a slow machine this many times a plain step.
const LONGEST_STEP: f64 = 0.25;
const MOST_PLAIN_STEPS: f64 = 3.0;

/// A draft token that could be verified.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    /// Index of the stream.
    pub stream: usize,
    /// Probability that this token and all earlier ones of its draft are right.
    pub chance: f32,
}

/// Chooses at most `most` of `offers` for a step of `streams` streams, and writes the number chosen for each
/// stream to `taken`. Within a stream, offers must come by descending probability; this function sorts them
/// across streams.
pub(super) fn choose(cost: &RowCost, streams: u32, offers: &mut [Offer], most: u32, taken: &mut [u32]) {
    taken.fill(0);
    let Some(plain) = cost.seconds(streams) else { return };
    // A stable sort keeps equal offers of a stream in order.
    offers.sort_by(|a, b| b.chance.total_cmp(&a.chance));
    let (mut tokens, mut best) = (f64::from(streams), (0, MARGIN * f64::from(streams) / plain));
    for (at, offer) in offers.iter().take(most as usize).enumerate() {
        tokens += f64::from(offer.chance);
        let rows = streams + 1 + at as u32;
        let seconds = cost.seconds(rows).unwrap_or(f64::INFINITY);
        if seconds > LONGEST_STEP.max(MOST_PLAIN_STEPS * plain) {
            break;
        }
        if tokens / seconds > best.1 {
            best = (at + 1, tokens / seconds);
        }
    }
    offers[..best.0].iter().for_each(|offer| taken[offer.stream] += 1);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A device on which a step takes 20 ms for every eight rows or part of them.
    fn tiled() -> RowCost {
        let mut cost = RowCost::default();
        for _ in 0..40 {
            for rows in [1u32, 4, 8, 12, 16, 24, 32, 48, 64] {
                cost.observe(rows, Duration::from_millis(20) * rows.div_ceil(8));
            }
        }
        cost
    }

    fn chosen(chances: &[f32], lengths: &[u32]) -> Vec<u32> {
        let mut offers = Vec::new();
        for (stream, (chance, len)) in chances.iter().zip(lengths).enumerate() {
            offers.extend((1..=*len as i32).map(|nth| Offer { stream, chance: chance.powi(nth) }));
        }
        let mut taken = vec![9; chances.len()];
        choose(&tiled(), chances.len() as u32, &mut offers, 64, &mut taken);
        taken
    }

    #[test]
    fn as_many_are_taken_as_pay() {
        assert_eq!(chosen(&[0.7], &[31]), [7], "a tile full");
        assert_eq!(chosen(&[0.99], &[31]), [7], "a second tile takes as long as it gives tokens");
        assert_eq!(chosen(&[0.0], &[31]), [0]);
        assert_eq!(chosen(&[0.9, 0.1], &[10, 10]), [6, 0], "where the chances are");
        assert_eq!(chosen(&[0.4; 8], &[8; 8]), [0; 8], "eight streams fill the tile");
        assert_eq!(chosen(&[0.9], &[3]), [3], "all there is");
    }

    #[test]
    fn where_rows_are_cheap_more_are_taken() {
        let mut cost = RowCost::default();
        for rows in [1u32, 4, 8, 12, 16, 24, 32, 48, 64].repeat(40) {
            cost.observe(rows, Duration::from_micros(60_000 + 500 * u64::from(rows)));
        }
        let mut offers: Vec<Offer> = (0..4)
            .flat_map(|stream| (1..=31).map(move |nth| Offer { stream, chance: 0.9f32.powi(nth) }))
            .collect();
        let mut taken = [0; 4];
        choose(&cost, 4, &mut offers, 64, &mut taken);
        assert!(taken.iter().all(|taken| (10..=16).contains(taken)), "{taken:?}");
    }

    #[test]
    fn nothing_is_taken_before_a_measurement_or_beyond_the_limit() {
        let mut offers = [Offer { stream: 0, chance: 0.99 }; 5];
        let mut taken = [3];
        choose(&RowCost::default(), 1, &mut offers, 64, &mut taken);
        assert_eq!(taken, [0]);
        choose(&tiled(), 1, &mut offers, 2, &mut taken);
        assert_eq!(taken, [2]);
    }
}
