//! What becomes of a model's vector: it is cut and divided by its length, or activated. Pure.

use skein_proto::pooling::Activation;

/// Least length by which a vector is divided, as in torch's `normalize`.
const LEAST_LENGTH: f64 = 1e-12;

/// The first `dimensions` values of `vector`, divided by their length if `normalises`.
pub fn embedding(mut vector: Vec<f32>, dimensions: Option<usize>, normalises: bool) -> Vec<f32> {
    if let Some(dimensions) = dimensions {
        vector.truncate(dimensions);
    }
    if normalises {
        let length = length(&vector).max(LEAST_LENGTH);
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    vector
}

/// Scores of `logits`.
pub fn scores(mut logits: Vec<f32>, activation: Activation) -> Vec<f32> {
    match activation {
        Activation::Identity => {}
        Activation::Logistic => {
            logits.iter_mut().for_each(|value| *value = logistic(f64::from(*value)) as f32);
        }
        Activation::Softmax => {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exponential = |logit: f32| (f64::from(logit) - f64::from(most)).exp();
            let sum: f64 = logits.iter().map(|logit| exponential(*logit)).sum();
            logits.iter_mut().for_each(|logit| *logit = (exponential(*logit) / sum) as f32);
        }
    }
    logits
}

/// Cosine of the angle between two vectors; 0 if one has no length.
pub fn cosine(first: &[f32], second: &[f32]) -> f32 {
    let product: f64 = first.iter().zip(second).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let lengths = (length(first) * length(second)).max(LEAST_LENGTH);
    (product / lengths) as f32
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// Without overflow for either sign.
fn logistic(logit: f64) -> f64 {
    if logit >= 0.0 { 1.0 / (1.0 + (-logit).exp()) } else { logit.exp() / (1.0 + logit.exp()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_cut_before_it_is_divided() {
        assert_eq!(embedding(vec![3.0, 4.0, 12.0], None, false), [3.0, 4.0, 12.0]);
        assert_eq!(embedding(vec![3.0, 4.0, 12.0], Some(2), true), [0.6, 0.8]);
        assert_eq!(embedding(vec![3.0, 4.0], Some(5), false), [3.0, 4.0]);
        assert_eq!(embedding(vec![0.0, 0.0], None, true), [0.0, 0.0], "no NaN");
        // The squares of these are beyond f32.
        let unit = 2.0_f32.powi(100);
        assert_eq!(embedding(vec![3.0 * unit, 4.0 * unit], None, true), [0.6, 0.8]);
    }

    #[test]
    fn logits_become_scores() {
        assert_eq!(scores(vec![-2.0, 3.5], Activation::Identity), [-2.0, 3.5]);
        assert_eq!(scores(vec![0.0, 1000.0, -1000.0], Activation::Logistic), [0.5, 1.0, 0.0]);
        let softmax = scores(vec![1000.0, 1000.0 + 3.0_f32.ln()], Activation::Softmax);
        assert!((softmax[0] - 0.25).abs() < 1e-4 && (softmax[1] - 0.75).abs() < 1e-4, "{softmax:?}");
    }

    #[test]
    fn a_cosine_depends_on_directions_alone() {
        assert!((cosine(&[1.0, 0.0], &[5.0, 0.0]) - 1.0).abs() < 1e-7);
        assert!((cosine(&[1.0, 1.0], &[-2.0, -2.0]) + 1.0).abs() < 1e-6);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 7.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 7.0]), 0.0);
    }
}
