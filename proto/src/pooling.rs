//! Vectors of prompts: what a request asks for ([`Pooling`]), and what a model gives ([`PooledModel`]).

use crate::Malformed;
use crate::worker::v1 as wire;

/// Asks for the vector of the prompt instead of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// Prompt position from which the tokens are of the second of two texts, above 0; `None` = one text.
    pub second_from: Option<u32>,
}

/// The vectors of a model that pools. Such a model generates no tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PooledModel {
    /// Values in a vector.
    pub width: u32,
    /// Meaning of the values.
    pub kind: PooledKind,
    /// With scores: names of the values, in order; empty = none are known.
    pub labels: Vec<String>,
}

/// Meaning of the values of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PooledKind {
    /// The position of a text in a space of meanings.
    Embedding {
        /// Whether it is divided by its length, after it was cut.
        is_normalised: bool,
    },
    /// Logits of classes, or of one.
    Scores(Activation),
}

/// Function that turns logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Scores are the logits.
    Identity,
    /// `1 / (1 + exp(-logit))`, value by value.
    Logistic,
    /// Softmax over all values.
    Softmax,
}

impl From<Pooling> for wire::Pooling {
    fn from(pooling: Pooling) -> Self {
        Self { second_from: pooling.second_from.unwrap_or(0) }
    }
}

impl From<wire::Pooling> for Pooling {
    fn from(sent: wire::Pooling) -> Self {
        Self { second_from: (sent.second_from != 0).then_some(sent.second_from) }
    }
}

impl From<PooledModel> for wire::PooledModel {
    fn from(PooledModel { width, kind, labels }: PooledModel) -> Self {
        let kind_of = |kind| match kind {
            PooledKind::Embedding { .. } => wire::PooledKind::Embedding,
            PooledKind::Scores(Activation::Identity) => wire::PooledKind::Scores,
            PooledKind::Scores(Activation::Logistic) => wire::PooledKind::LogisticScores,
            PooledKind::Scores(Activation::Softmax) => wire::PooledKind::SoftmaxScores,
        };
        let is_normalized = kind == PooledKind::Embedding { is_normalised: true };
        Self { width, kind: kind_of(kind).into(), is_normalized, labels }
    }
}

impl TryFrom<wire::PooledModel> for PooledModel {
    type Error = Malformed;

    fn try_from(sent: wire::PooledModel) -> Result<Self, Malformed> {
        let kind = match sent.kind() {
            wire::PooledKind::Unspecified => return Err(Malformed("vectors of an unknown kind")),
            wire::PooledKind::Embedding => PooledKind::Embedding { is_normalised: sent.is_normalized },
            wire::PooledKind::Scores => PooledKind::Scores(Activation::Identity),
            wire::PooledKind::LogisticScores => PooledKind::Scores(Activation::Logistic),
            wire::PooledKind::SoftmaxScores => PooledKind::Scores(Activation::Softmax),
        };
        if sent.width == 0 {
            return Err(Malformed("vectors without values"));
        }
        Ok(Self { width: sent.width, kind, labels: sent.labels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_vectors_survives_the_wire() {
        let kinds = [
            PooledKind::Embedding { is_normalised: false },
            PooledKind::Embedding { is_normalised: true },
            PooledKind::Scores(Activation::Identity),
            PooledKind::Scores(Activation::Logistic),
            PooledKind::Scores(Activation::Softmax),
        ];
        for kind in kinds {
            let model = PooledModel { width: 3, kind, labels: vec!["a".into()] };
            assert_eq!(PooledModel::try_from(wire::PooledModel::from(model.clone())), Ok(model));
        }
        assert!(PooledModel::try_from(wire::PooledModel { width: 3, ..Default::default() }).is_err());
        let no_values = PooledModel { width: 0, kind: kinds[0], labels: Vec::new() };
        assert!(PooledModel::try_from(wire::PooledModel::from(no_values)).is_err());
        for second_from in [None, Some(7)] {
            let pooling = Pooling { second_from };
            assert_eq!(Pooling::from(wire::Pooling::from(pooling)), pooling);
        }
    }
}
