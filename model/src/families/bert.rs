//! BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019) with its multilingual relatives, whose positions
//! begin after the row of padding.

use super::encoder::{encoder, learned_positions};
use super::names;
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::spec::Spec;
use crate::tensors::Role;

/// Default of transformers' `RobertaConfig`.
const PADDING: usize = 1;

pub fn bert(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let position_table = Some(learned_positions(fields, 0)?);
    Ok(Spec { position_table, names, ..encoder(fields)? })
}

pub fn roberta(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let padding = fields.count("pad_token_id", MAX_POSITIONS, PADDING)?;
    let position_table = Some(learned_positions(fields, padding + 1)?);
    Ok(Spec { position_table, names, ..encoder(fields)? })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embeddings.word_embeddings"],
        Role::Positions => &["model.embeddings.position_embeddings"],
        Role::TokenTypes => &["model.embeddings.token_type_embeddings"],
        Role::EmbeddingNorm => &["model.embeddings.LayerNorm"],
        Role::Query => &["attention.self.query"],
        Role::Key => &["attention.self.key"],
        Role::Value => &["attention.self.value"],
        Role::AttentionOutput => &["attention.output.dense"],
        Role::AttentionOutputNorm => &["attention.output.LayerNorm"],
        Role::Up => &["intermediate.dense"],
        Role::Down => &["output.dense"],
        Role::FeedForwardOutputNorm => &["output.LayerNorm"],
        role => names::usual(role),
    }
}
