//! Steps of models that give vectors of prompts.

use std::ops::Range;

use skein_model::spec::Spec;

use super::super::{Answer, BackendError, Batch, PoolRows, StepOutput, Want};

/// What such models are asked for in vain.
const TOKENS: &str = "draw or score tokens with a model that gives vectors of prompts";

/// Rows whose hidden states the vectors of a step are made of.
pub(super) struct PooledRuns {
    /// Those rows of the batch, ascending.
    pub rows: Vec<u32>,
    /// For each want its part of `rows`.
    pub runs: Vec<Range<usize>>,
}

impl PooledRuns {
    /// Those that `batch` asks for.
    ///
    /// # Errors
    /// If it asks for tokens, or the model of `spec` generates them.
    pub fn of(spec: &Spec, batch: &Batch) -> Result<Self, BackendError> {
        let of_vectors = vector_rows(spec, batch)?;
        let mut rows: Vec<u32> = of_vectors.iter().cloned().flatten().collect();
        rows.sort_unstable();
        rows.dedup();
        let among = |row: u32| rows.partition_point(|wanted| *wanted < row);
        let runs = of_vectors.iter().map(|rows| among(rows.start)..among(rows.end)).collect();
        Ok(Self { rows, runs })
    }

    /// The answers with these `vectors`, `[runs, any]`.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn answers(&self, vectors: &[f32]) -> Result<StepOutput, BackendError> {
        let width = vectors.len() / self.runs.len().max(1);
        let answer =
            |(vector, run): (&[f32], &Range<usize>)| match vector.iter().all(|value| value.is_finite()) {
                true => Ok(Answer::Pooled(vector.to_vec())),
                false => Err(BackendError::NotFinite { row: self.rows[run.start] }),
            };
        let answers = vectors.chunks_exact(width.max(1)).zip(&self.runs).map(answer);
        Ok(StepOutput { answers: answers.collect::<Result<_, _>>()? })
    }
}

/// Rows of the batch that each want's vector is made of.
fn vector_rows(spec: &Spec, batch: &Batch) -> Result<Vec<Range<u32>>, BackendError> {
    let head = spec.pooled.as_ref().ok_or(BackendError::Unsupported { backend: "cpu", want: "pool" })?;
    let rows = |want: &Want| match want {
        Want::Pool(PoolRows { rows, .. }) if !rows.is_empty() => Ok(head.rows.of(rows.clone())),
        _ => Err(BackendError::Unsupported { backend: "cpu", want: TOKENS }),
    };
    batch.wants.iter().map(rows).collect()
}

/// Sets `kinds` to the kind of text of each row of `batch`; to nothing if all are of the first.
pub(super) fn token_types(spec: &Spec, batch: &Batch, kinds: &mut Vec<u32>) {
    kinds.clear();
    if spec.token_types < 2 {
        return;
    }
    for want in &batch.wants {
        let Want::Pool(PoolRows { rows, second_from: Some(second) }) = want else { continue };
        kinds.resize(batch.tokens.len(), 0);
        let rows = rows.start as usize..rows.end as usize;
        for (kind, position) in kinds[rows.clone()].iter_mut().zip(&batch.positions[rows]) {
            *kind = u32::from(position >= second);
        }
    }
}
