//! What models add to their embeddings: learned positions, kinds of text; and the norm of the sum.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::embed::add_rows;

use super::layers::{Norm, Parts};
use super::model::Model;
use super::widened::widened;
use crate::LoadError;
use crate::checkpoint::Weights;
use crate::role::Role;
use crate::spec::Spec;
use crate::tensors::Tensor;

/// Tables beside the embeddings, in f32.
#[derive(Default)]
pub(super) struct BesideEmbedding {
    /// `[positions, hidden]`, and the row of position 0; empty if positions are not learned.
    positions: (Vec<f32>, usize),
    /// `[token types, hidden]`, or empty.
    token_types: Vec<f32>,
    norm: Option<Norm>,
}

impl BesideEmbedding {
    /// Those of the model of `spec`; `None` if it has none. Takes the norm from `parts`.
    pub fn read(
        spec: &Spec,
        tensors: &[Tensor],
        weights: &Weights,
        parts: &mut Parts,
    ) -> Result<Option<Self>, LoadError> {
        if spec.position_table.is_none() && spec.token_types == 0 && !spec.has_embedding_norm {
            return Ok(None);
        }
        let table = |role| match tensors.iter().find(|tensor| tensor.role == role) {
            Some(tensor) => widened(&tensor.find(weights)?, &tensor.name, 0),
            None => Ok(Vec::new()),
        };
        let first = spec.position_table.map_or(0, |positions| positions.first);
        Ok(Some(Self {
            positions: (table(Role::Positions)?, first),
            token_types: table(Role::TokenTypes)?,
            norm: parts.norm(None, Role::EmbeddingNorm),
        }))
    }

    /// Adds to `x` `[rows, hidden]` what rows at these `positions`, of texts of these kinds, have.
    pub fn add(&self, model: &Model, cpu: &mut Cpu, positions: &[u32], kinds: &[u32], x: &mut [f32]) {
        let width = model.spec.hidden_size;
        let (table, first) = &self.positions;
        if !self.token_types.is_empty() {
            let kind = |row: usize| kinds.get(row).map_or(0, |kind| *kind as usize);
            add_rows(cpu, &self.token_types, width, kind, x);
        }
        if !table.is_empty() {
            add_rows(cpu, table, width, |row| first + positions[row] as usize, x);
        }
        if let Some(norm) = &self.norm {
            model.normalise(cpu, x, norm);
        }
    }
}
