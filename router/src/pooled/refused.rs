//! Refusals of requests that a model is not for. Each names the model and says what to do.

use std::sync::Arc;

use skein_proto::pooling::{PooledKind, PooledModel};

use crate::refusal::Refusal;

/// Most names of labels that an error lists.
const MAX_TOLD_LABELS: usize = 8;

/// A vector or a score is asked of a model that generates.
pub fn generates(model: &Arc<str>) -> Refusal {
    let message = format!(
        "this server's model `{model}` generates text and gives no vectors or scores; send prompts to \
         /v1/chat/completions or /v1/completions, or ask a server of a model for embeddings or reranking."
    );
    Refusal::invalid("model", message)
}

/// The operator ended the request before it had its vector.
pub fn aborted() -> Refusal {
    let message =
        "The operator of this server ended the request before its vector was computed; send it again.";
    Refusal::Conflict(message.to_owned())
}

/// Text is asked of a model that pools.
pub fn pools(model: &Arc<str>, pooled: &PooledModel) -> Refusal {
    let message = match pooled.kind {
        PooledKind::Embedding { .. } => format!(
            "this server's model `{model}` gives vectors of texts and generates none; send texts to /v1/embeddings, or \
             ask a server of a model that generates."
        ),
        PooledKind::Scores(_) => format!(
            "this server's model `{model}` gives scores of texts and generates none; send texts to /v1/rerank, /v1/score \
             or /classify, or ask a server of a model that generates."
        ),
    };
    Refusal::invalid("model", message)
}

/// Vectors are asked of a model that scores.
pub fn scores(model: &Arc<str>) -> Refusal {
    let message = format!(
        "this server's model `{model}` gives scores and no embeddings; send pairs of texts to /v1/rerank or /v1/score, \
         single ones to /classify."
    );
    Refusal::invalid("model", message)
}

/// Classes are asked of a model for embeddings.
pub fn embeds(model: &Arc<str>) -> Refusal {
    let message = format!(
        "this server's model `{model}` gives embeddings and no classes; send texts to /v1/embeddings, or pairs to \
         /v1/score."
    );
    Refusal::invalid("model", message)
}

/// One score is asked of a model with several.
pub fn classifies(model: &Arc<str>, pooled: &PooledModel) -> Refusal {
    let labels: Vec<String> =
        pooled.labels.iter().take(MAX_TOLD_LABELS).map(|label| format!("`{label}`")).collect();
    let labels = if labels.is_empty() { String::new() } else { format!(" ({})", labels.join(", ")) };
    let message = format!(
        "this server's model `{model}` gives {} scores of a text{labels}, so that none is its relevance; send texts to \
         /classify.",
        pooled.width
    );
    Refusal::invalid("model", message)
}
