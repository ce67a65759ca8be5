//! Names of tensors.

use skein_proto::inference::DataType;
use skein_proto::pooling::{PooledKind, PooledModel};

/// The prompt as text.
pub const TEXT_INPUT: &str = "text_input";
/// The prompt as tokens.
pub const INPUT_IDS: &str = "input_ids";
/// The second texts of pairs.
pub const TEXT_PAIR: &str = "text_pair";
/// Tokens of each input.
pub const PROMPT_TOKENS: &str = "num_input_tokens";

/// Input tensors of a model that pools, by name.
pub const POOLED_INPUTS: [(&str, DataType); 3] =
    [(TEXT_INPUT, DataType::TypeString), (TEXT_PAIR, DataType::TypeString), (INPUT_IDS, DataType::TypeInt32)];

/// Name of the tensor with a model's vectors or scores.
pub fn output_name(model: &PooledModel) -> &'static str {
    match model.kind {
        PooledKind::Embedding { .. } => "embedding",
        PooledKind::Scores(_) => "scores",
    }
}
