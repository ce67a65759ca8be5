//! The encoder that BERT's relatives start from, and the ends that classify.

use skein_kernels::cpu::rope::Rotation;
use skein_kernels::gate::Gate;

use super::decoder::{Defaults, decoder};
use crate::LoadError;
use crate::fields::Fields;
use crate::pooled_head::{HeadActivation, HeadLayer, PooledHead};
use crate::pooling::PooledRows;
use crate::spec::{HeadPairs, NormKind, NormPlace, PositionTable, Spec};

/// Default of transformers' `BertConfig`.
const EPS: f64 = 1e-12;
/// Most kinds of text that tokens are of.
pub(super) const MAX_TOKEN_TYPES: usize = 1 << 10;
/// Activations of feed-forward networks, as transformers names them.
const ACTIVATIONS: [&str; 6] = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"];

/// Post-norm encoder with biases, an ungated network and token types, which neither rotates nor has learned
/// positions. Families add these.
pub(super) fn encoder(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    for field in ["is_decoder", "add_cross_attention"] {
        if fields.flag(field, false)? {
            return Err(fields.wrong(field, "false in an encoder".into()));
        }
    }
    let defaults = Defaults { eps_field: "layer_norm_eps", eps: EPS, ..Defaults::USUAL };
    let mut spec = decoder(fields, defaults)?;
    let activation = activation(fields, "hidden_act")?;
    spec.rotations = vec![Rotation::none(spec.attention.head_dim)];
    spec.attention.pairs = HeadPairs { rotated: spec.attention.head_dim, is_interleaved: false };
    (spec.attention.has_bias, spec.attention.has_output_bias) = (true, true);
    (spec.norm.kind, spec.norm.place) = (NormKind::Layer { has_bias: true }, NormPlace::Sums);
    for layer in &mut spec.layers {
        layer.feed_forward = layer.feed_forward.with_bias(true);
        (layer.feed_forward.activation, layer.feed_forward.is_gated) = (activation, false);
    }
    spec.token_types = fields.count("type_vocab_size", MAX_TOKEN_TYPES, 2)?;
    (spec.has_embedding_norm, spec.is_bidirectional, spec.is_tied) = (true, true, true);
    Ok(spec)
}

/// The activation of feed-forward networks in `field`.
pub(super) fn activation(fields: &Fields<'_>, field: &'static str) -> Result<Gate, LoadError> {
    let name = fields.one_of(field, &ACTIVATIONS, Some("gelu"))?;
    match HeadActivation::named(&name) {
        Some(HeadActivation::Gate(gate)) => Ok(gate),
        _ => Err(fields.wrong(field, ACTIVATIONS.join(", "))),
    }
}

/// Learned positions, of which the first is row `first` of the table.
pub(super) fn learned_positions(fields: &Fields<'_>, first: usize) -> Result<PositionTable, LoadError> {
    fields.one_of("position_embedding_type", &["absolute"], Some("absolute"))?;
    let rows = fields.max_positions()? as usize;
    if rows <= first {
        return Err(fields.wrong("max_position_embeddings", format!("a whole number from {}", first + 1)));
    }
    Ok(PositionTable { rows, first })
}

/// The first row through `pooler` and tanh, then `classifier`.
fn of_first_row(hidden: usize, labels: usize, pooler: &str, classifier: &str) -> PooledHead {
    let pooler = HeadLayer::linear(pooler, hidden, hidden, true).then(HeadActivation::Tanh);
    let classifier = HeadLayer::linear(classifier, hidden, labels, true);
    PooledHead { rows: PooledRows::First, layers: vec![pooler, classifier] }
}

/// End of `BertForSequenceClassification`.
pub(super) fn classifier(_: &Fields<'_>, hidden: usize, labels: usize) -> Result<PooledHead, LoadError> {
    Ok(of_first_row(hidden, labels, "pooler.dense", "classifier"))
}

/// End of `RobertaForSequenceClassification`, which has its pooler in the classifier.
pub(super) fn roberta_classifier(
    _: &Fields<'_>,
    hidden: usize,
    labels: usize,
) -> Result<PooledHead, LoadError> {
    Ok(of_first_row(hidden, labels, "classifier.dense", "classifier.out_proj"))
}

/// End of a decoder's `...ForSequenceClassification`.
pub(super) fn score(_: &Fields<'_>, hidden: usize, labels: usize) -> Result<PooledHead, LoadError> {
    let layers = vec![HeadLayer::linear("score", hidden, labels, false)];
    Ok(PooledHead { rows: PooledRows::Last, layers })
}
