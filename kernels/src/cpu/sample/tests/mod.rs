mod naive;

use super::*;

const COLD: Controls = Controls::GREEDY;
const WARM: Controls = Controls { temperature: 1.0, ..COLD };
const PLAIN: Sampling<'static> = Sampling {
    controls: WARM,
    logit_bias: &[],
    allowed: &[],
    bad_words: &[],
    forbidden: &[],
    history: &[],
    prompt_len: 0,
    seed: 42,
    sample_index: 0,
    position: 7,
};
const GREEDY: Sampling<'static> = with(COLD);

const fn with(controls: Controls) -> Sampling<'static> {
    Sampling { controls, ..PLAIN }
}

fn check(logits: &[f32], sampling: Sampling<'_>, expected: u32) {
    for isa in Isa::available() {
        assert_eq!(
            draw(isa, logits, &sampling, &mut Scratch::default()),
            expected,
            "{sampling:?} on {}",
            isa.name()
        );
    }
}

#[test]
fn greedy_takes_the_best_token_and_the_lower_id_among_equals() {
    check(&[1.0, 3.0, 2.0, 3.0], GREEDY, 1);
    check(&[f32::NEG_INFINITY, -5.0], GREEDY, 1);
    let mut many = vec![0.5; 100];
    many[77] = 0.6;
    check(&many, GREEDY, 77);
}

#[test]
fn bias_and_forbidden_tokens_come_before_the_choice() {
    check(&[1.0, 3.0, 2.0], Sampling { logit_bias: &[(0, 100.0), (9, 5.0)], ..GREEDY }, 0);
    check(&[1.0, 3.0, 2.0], Sampling { logit_bias: &[(1, -100.0)], ..GREEDY }, 2);
    check(&[1.0, 3.0, 2.0], Sampling { logit_bias: &[(1, f32::NEG_INFINITY)], ..PLAIN }, 2);
    check(&[1.0, 3.0, 2.0], Sampling { forbidden: &[1, 2, 77], ..PLAIN }, 0);
    check(&[1.0, 3.0, 2.0], Sampling { forbidden: &[0, 1, 2], ..PLAIN }, 1);
    check(&[1.0, 3.0, 2.0], Sampling { logit_bias: &[(2, 100.0)], forbidden: &[2], ..GREEDY }, 1);
}

#[test]
fn only_allowed_tokens_are_drawn_unless_none_of_them_can_be() {
    let (logits, none) = ([1.0, 3.0, 2.0, 0.0], f32::NEG_INFINITY);
    let of = |allowed| Sampling { allowed, ..GREEDY };
    check(&logits, of(&[0, 3]), 0);
    check(&logits, Sampling { allowed: &[3], ..PLAIN }, 3);
    check(&logits, Sampling { logit_bias: &[(1, 100.0), (3, 5.0)], ..of(&[0, 3]) }, 3);
    // All allowed tokens are forbidden, so one of them is drawn anyway.
    check(&logits, Sampling { forbidden: &[0, 3], ..of(&[0, 3]) }, 0);
    // The mask has removed every allowed token.
    check(&[none, 3.0, 2.0, none], of(&[0, 3, 99]), 1);
}

#[test]
fn the_end_of_a_bad_word_is_not_drawn_after_its_beginning() {
    let (logits, words) = ([1.0, 3.0, 2.0, 0.0], [vec![1], vec![3, 2], vec![2, 3, 0]]);
    let after = |history, prompt_len| Sampling { bad_words: &words, history, prompt_len, ..GREEDY };
    check(&logits, after(&[], 7), 2);
    check(&logits, after(&[3, 3], 1), 0);
    check(&logits, after(&[3, 3], 2), 2); // the prompt does not count
    check(&logits, Sampling { allowed: &[0, 3], ..after(&[2, 3], 0) }, 3);
    check(&logits, Sampling { allowed: &[0], ..after(&[2, 3], 0) }, 0); // nothing else can be drawn
}

#[test]
fn penalties_follow_ctrl_and_openai() {
    let history = &[1, 1, 2, 2, 2, 99];
    // Repetition counts prompt and output: positive logits are divided, negative ones multiplied.
    let seen = |prompt_len, controls| Sampling { history, prompt_len, ..with(controls) };
    check(&[1.9, 3.0, -1.0], seen(2, Controls { repetition_penalty: 2.0, ..COLD }), 0);
    check(&[-1.5, -1.0, -4.0], seen(2, Controls { repetition_penalty: 1.6, ..COLD }), 0);
    // Frequency and presence penalties only count the output: token 1 is prompt.
    check(&[0.0, 3.0, 3.2], seen(2, Controls { presence_penalty: 0.3, ..COLD }), 1);
    check(&[0.0, 3.0, 3.2], seen(2, Controls { frequency_penalty: 0.05, ..COLD }), 2);
    check(&[0.0, 3.0, 3.2], seen(2, Controls { frequency_penalty: 0.07, ..COLD }), 1);
    check(&[0.0, 3.0, 3.2], seen(5, Controls { frequency_penalty: 2.0, ..COLD }), 2);
    let mut scratch = Scratch::default();
    let sampling = seen(2, Controls { presence_penalty: 9.0, ..COLD });
    assert_eq!(draw(Isa::best(), &[0.0, 3.0, 3.2], &sampling, &mut scratch), 1);
    assert!(scratch.counts.iter().all(|count| *count == 0), "counts are zero again for the next draw");
}

#[test]
fn extreme_parameters_still_draw_the_best_token() {
    let logits = &[0.5, 2.0, 1.0];
    for temperature in [1e-6, 1e-30, f32::MIN_POSITIVE / 8.0] {
        check(logits, with(Controls { temperature, ..WARM }), 1);
    }
    check(logits, with(Controls { top_k: 1, ..WARM }), 1);
    check(logits, with(Controls { top_p: 1e-9, ..WARM }), 1);
    check(logits, with(Controls { top_p: 0.0, ..WARM }), 1);
    check(logits, with(Controls { min_p: 1.0, ..WARM }), 1);
    check(&[1.0, 1.0], with(Controls { top_k: 1, ..WARM }), 0);
    check(logits, Sampling { history: &[0, 1], ..with(Controls { repetition_penalty: 1e-38, ..WARM }) }, 1);
}

#[test]
fn unusable_logits_are_detected() {
    assert!(is_usable(Isa::best(), &[1.0, f32::NEG_INFINITY]));
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(!is_usable(Isa::best(), &[1.0, bad, 2.0]));
    }
    assert!(!is_usable(Isa::best(), &[f32::NEG_INFINITY; 3]) && !is_usable(Isa::best(), &[]));
}

/// Draws often and compares with the expected distribution by Pearson's chi-square. Its mean is the degrees
/// of freedom and its variance twice that; ten standard deviations are far beyond chance, and seeds are fixed
/// anyway.
fn check_distribution(logits: &[f32], sampling: Sampling<'_>, expected: &[f64]) {
    const DRAWS: u32 = 40_000;
    let (mut counts, mut scratch) = (vec![0u32; logits.len()], Scratch::default());
    for i in 0..DRAWS {
        // Vary everything that the random stream depends on.
        let keyed = Sampling { seed: u64::from(i % 7) << 33, sample_index: i % 5, position: i, ..sampling };
        counts[draw(Isa::best(), logits, &keyed, &mut scratch) as usize] += 1;
    }
    let total: f64 = expected.iter().sum();
    let mut chi_square = 0.0;
    for (count, weight) in counts.iter().zip(expected) {
        let mean = f64::from(DRAWS) * weight / total;
        if mean == 0.0 {
            assert_eq!(*count, 0, "a token that was cut is never drawn: {counts:?}");
        } else {
            chi_square += (f64::from(*count) - mean).powi(2) / mean;
        }
    }
    let freedom = expected.iter().filter(|weight| **weight > 0.0).count() as f64 - 1.0;
    assert!(
        chi_square <= freedom + 10.0 * (2.0 * freedom).sqrt(),
        "chi² {chi_square}: {counts:?} for {expected:?}"
    );
}

#[test]
fn draws_follow_the_softmax_of_the_kept_tokens() {
    let logits = [0.0f32, 1.0, -1.0, 2.0, 0.5, 1.5, -3.0];
    let weights = |temperature: f64| logits.map(|logit| (f64::from(logit) / temperature).exp());
    let kept = |keep: &[usize], t: f64| {
        let mut w = weights(t);
        (0..7).filter(|i| !keep.contains(i)).for_each(|i| w[i] = 0.0);
        w
    };
    check_distribution(&logits, PLAIN, &weights(1.0));
    check_distribution(&logits, with(Controls { temperature: 0.7, ..WARM }), &weights(0.7));
    check_distribution(
        &logits,
        with(Controls { temperature: 2.0, top_k: 3, ..WARM }),
        &kept(&[3, 5, 1], 2.0),
    );
    check_distribution(&logits, with(Controls { top_k: 100, ..WARM }), &weights(1.0));
    // e^2 / total is 0.42; with e^1.5 0.67; with e^1 0.83.
    check_distribution(&logits, with(Controls { top_p: 0.6, ..WARM }), &kept(&[3, 5], 1.0));
    check_distribution(&logits, with(Controls { top_p: 0.8, ..WARM }), &kept(&[3, 5, 1], 1.0));
    // Among the three best, e^2 has 0.51: top-p counts only the tokens that top-k kept.
    check_distribution(&logits, with(Controls { top_p: 0.5, top_k: 3, ..WARM }), &kept(&[3], 1.0));
    // Sums are exact, so a goal that is met exactly takes no further token.
    let even = |keep: usize| (0..7).map(|i| if i < keep { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
    check_distribution(&[0.5; 7], with(Controls { top_p: 3.0 / 7.0 - 1e-6, ..WARM }), &even(3));
    check_distribution(&[0.5; 7], with(Controls { top_p: 3.0 / 7.0 + 1e-6, ..WARM }), &even(4));
    check_distribution(&[0.1; 8], with(Controls { top_p: 0.5, ..WARM }), &[1., 1., 1., 1., 0., 0., 0., 0.]);
    // e^(1 - 2) = 0.37, e^(0.5 - 2) = 0.22.
    check_distribution(&logits, with(Controls { min_p: 0.3, ..WARM }), &kept(&[3, 5, 1], 1.0));
}

/// Logits of one of seven kinds, from a linear congruential generator.
fn random_logits(kind: u32, vocab: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    let value = |_| {
        let u = uniform();
        match kind % 7 {
            0 => u * 2.0 - 1.0,           // flat
            1 => 3.0 / (u + 0.01) - 20.0, // peaked
            2 => (u * 8.0).floor() - 4.0, // many equals, a zero among them
            3 => {
                if u < 0.5 {
                    f32::NEG_INFINITY
                } else {
                    u * 9.0
                }
            } // many impossible
            4 => {
                if u < 0.5 {
                    -0.0
                } else {
                    0.0
                }
            } // two zeros
            5 => (u * 40.0).floor() * 0.7 - 30.0, // equals over a wide range
            _ => 0.25,                    // all equal
        }
    };
    (0..vocab).map(value).collect()
}

#[test]
fn draws_equal_those_of_sorting_everything() {
    let mut scratch = Scratch::default();
    let (mut drawn, mut different) = (0, std::collections::BTreeSet::new());
    for (at, vocab) in [1, 3, 63, 64, 65, 500, 1024, 5000, 40_000].into_iter().cycle().take(90).enumerate() {
        let mut logits = random_logits(at as u32, vocab, at as u32);
        logits[vocab / 2] = logits[vocab / 2].max(-1.0); // one is finite
        for (i, (top_k, top_p, min_p)) in [
            (0, 1.0, 0.0),
            (0, 1.0, 0.3),
            (0, 0.9, 0.0),
            (0, 0.3, 0.05),
            (0, 1e-9, 0.0),
            (50, 1.0, 0.0),
            (50, 0.9, 0.0),
            (2, 0.5, 0.2),
            (700, 0.99, 0.01),
            (3000, 0.7, 0.0),
        ]
        .into_iter()
        .enumerate()
        {
            let temperature = [1.0, 0.1, 4.0, 1e-30][(at + i) % 4];
            let history: Vec<u32> = (0..at as u32 % 9).collect();
            let penalty = if i % 3 == 0 { 1.3 } else { 1.0 };
            let bias = [(at as u32 * 5, f32::NEG_INFINITY), (at as u32 * 7, 1.5)];
            let sampling = Sampling {
                controls: Controls { temperature, top_k, top_p, min_p, repetition_penalty: penalty, ..WARM },
                history: if penalty == 1.0 { &[] } else { &history },
                logit_bias: if i % 4 == 1 { &bias } else { &[] },
                seed: (at * 17 + i) as u64,
                position: at as u32,
                ..PLAIN
            };
            let expected = naive::draw(&logits, &sampling);
            for isa in Isa::available() {
                let got = draw(isa, &logits, &sampling, &mut scratch);
                assert_eq!(got, expected, "{vocab} tokens, {sampling:?} on {}", isa.name());
            }
            drawn += 1;
            different.insert(expected);
        }
    }
    assert!(drawn == 900 && different.len() > 200, "{drawn} draws of {} tokens", different.len());
}

#[test]
fn cuts_keep_the_tokens_that_sorting_keeps() {
    let (mut kept, mut buckets, mut peaks) = (Kept::default(), flat::Buckets::default(), Peaks::default());
    let (mut small, mut large) = (0, 0);
    for (at, vocab) in [40, 900, 20_000, 50_000].into_iter().cycle().take(56).enumerate() {
        let logits = random_logits(at as u32, vocab, at as u32 + 100);
        let (top_p, temperature) = ([0.1, 0.5, 0.9, 0.999][at / 4 % 4], [1.0, 0.3][at / 16 % 2]);
        for isa in Isa::available() {
            let highest = peaks.survey(isa, &logits);
            let weighting = Weighting { highest, inverse_temperature: 1.0 / temperature, min_weight: 0.0 };
            let mut weights = vec![0.0; vocab];
            isa.run(WeighAll { logits: &logits, weighting, out: &mut weights });
            let expected = naive::keep(&logits, &weights, 0, top_p);
            let view = LogitView { isa, logits: &logits, weighting };
            let is_small = keep_mass(view, &mut weights, &mut peaks, top_p, &mut buckets, &mut kept);
            let mut got: Vec<u32> = if is_small {
                kept.tokens.clone()
            } else {
                (0..vocab as u32).filter(|token| weights[*token as usize] > 0.0).collect()
            };
            got.sort_unstable();
            assert_eq!(got, expected, "kind {} of {vocab}, top_p {top_p}", at % 7);
            if is_small {
                small += 1;
            } else {
                large += 1;
            }
        }
    }
    assert!(small > 10 && large > 10, "both ways were taken: {small}, {large}");
}

#[test]
fn a_mass_is_the_weight_rounded_to_even() {
    for bits in (0..=1.0f32.to_bits()).step_by(9973).chain([1, 1.0f32.to_bits()]) {
        let weight = f32::from_bits(bits);
        assert_eq!(weigh::mass(weight), (weight * 17_592_186_044_416.0).round_ties_even() as u64);
    }
    for half in [0.5f32, 1.5, 2.5, 3.5] {
        assert_eq!(weigh::mass(half / 17_592_186_044_416.0), half.round_ties_even() as u64);
    }
}

#[test]
fn scores_are_the_log_softmax() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 31 % 997) as f32) / 100.0).collect();
    let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
    let mut scratch = Scratch::default();
    for isa in Isa::available() {
        let scored = score(isa, &logits, 4000, 3, &mut scratch);
        let exact = f64::from(logits[4000]) - sum.ln();
        assert!((f64::from(scored.logprob) - exact).abs() < 1e-5);
        let ahead =
            (0..5000).filter(|i| logits[*i] > logits[4000] || (logits[*i] == logits[4000] && *i < 4000));
        assert_eq!(scored.rank as usize, ahead.count() + 1);
        let mut order: Vec<u32> = (0..5000).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        assert_eq!(scored.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), order[..3]);
        assert_eq!(
            score(isa, &logits, order[0], 1, &mut scratch).top[0].1,
            score(isa, &logits, order[0], 0, &mut scratch).logprob
        );
        assert_eq!(score(isa, &logits, 0, 10_000, &mut scratch).top.len(), 5000);
    }
}

/// Softmax of `logits` in double precision.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Draws from two distributions with the same noise agree with probability Σ_i 1 / Σ_j max(p_j / p_i, q_j /
/// q_i), which is at least (1 - d) / (1 + d) for a total variation distance of d (Daliri, Musco and Suresh
/// 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding", theorem 1), and not
/// much less than the 1 - d of rejection sampling.
#[test]
fn a_draft_model_agrees_as_often_as_shared_noise_can() {
    const DRAWS: u32 = 1 << 20;
    let isa = Isa::best();
    for (kind, (spread, noise)) in [(2.0, 0.25), (3.0, 0.5), (4.0, 1.0)].into_iter().enumerate() {
        let normal = |seed: usize| -> Vec<f32> {
            let uniform = |seed, kind| random_logits(kind, 400, seed as u32);
            // The sum of uniform numbers is nearly normal.
            let of = (0..6).map(|nth| uniform(seed * 6 + nth, 0)).collect::<Vec<_>>();
            let mut sum: Vec<f32> = (0..400).map(|at| of.iter().map(|of| of[at]).sum()).collect();
            let mean = sum.iter().sum::<f32>() / 400.0;
            let deviation = (sum.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 400.0).sqrt();
            sum.iter_mut().for_each(|value| *value = (*value - mean) / deviation);
            sum
        };
        let (base, error) = (normal(2 * kind), normal(2 * kind + 1));
        let target: Vec<f32> = base.iter().map(|value| value * spread).collect();
        let draft: Vec<f32> = target.iter().zip(&error).map(|(logit, error)| logit + noise * error).collect();
        let (p, q) = (softmax(&target), softmax(&draft));
        let inverse = |i: usize| (0..400).map(|j| (p[j] / p[i]).max(q[j] / q[i])).sum::<f64>();
        let expected: f64 = (0..400).map(|i| 1.0 / inverse(i)).sum();
        let distance = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
        let mut scratch = Scratch::default();
        let agree = (0..DRAWS)
            .filter(|position| {
                let sampling = Sampling { position: *position, ..PLAIN };
                let mut of = |logits: &[f32]| draw(isa, logits, &sampling, &mut scratch);
                of(&target) == of(&draft)
            })
            .count();
        let measured = agree as f64 / f64::from(DRAWS);
        println!("distance {distance:.3}: {measured:.4} agree, {expected:.4} expected");
        assert!((measured / expected - 1.0).abs() < 0.01, "{measured} of {expected}");
        assert!(measured >= (1.0 - distance) / (1.0 + distance));
        assert!(measured >= 0.87 * (1.0 - distance), "{measured}, rejection sampling {}", 1.0 - distance);
    }
}
