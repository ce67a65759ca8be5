//! Draws and scores on the device, after a step's logits.

use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::sample::{SampleBatch, Sampler};
use skein_kernels::cuda::ops::score::{ScoreBatch, Scorer, Targets};
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels, Stream};

use super::memory::StepMemory;
use super::pack::Drawing;

/// The sampler and the scorer, with workspaces for several launch sizes.
///
/// Each size has its own workspace: its counters must be zero before a launch, are zero again after it, and
/// their place depends on the size.
pub(super) struct Draw {
    sampler: Sampler,
    scorer: Scorer,
    sizes: Vec<Workspace>,
    vocab: usize,
}

/// Workspaces of one launch size.
#[derive(Debug, Clone, Copy)]
struct Workspace {
    capacity: usize,
    sampler: DeviceSlice<u8>,
    drawn_scores: DeviceSlice<u8>,
    scores: DeviceSlice<u8>,
}

impl Draw {
    /// Allocates memory for each launch size in `capacities` (ascending); the last is the most samples and
    /// scores per pass.
    pub fn place(
        kernels: &Kernels,
        capacities: &[usize],
        vocab: usize,
        memory: &mut Carver,
    ) -> Result<Self, CudaError> {
        let place = |&capacity: &usize| Workspace {
            capacity,
            sampler: memory.take(Sampler::workspace_bytes(capacity, vocab)),
            drawn_scores: memory.take(Scorer::workspace_bytes(capacity, vocab)),
            scores: memory.take(Scorer::workspace_bytes(capacity, vocab)),
        };
        let sizes = capacities.iter().map(place).collect();
        let (sampler, scorer) = (Sampler::new(kernels)?, Scorer::new(kernels)?);
        Ok(Self { sampler, scorer, sizes, vocab })
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Zeroes all counters, once at start.
    pub fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        for size in &self.sizes {
            for workspace in [size.sampler, size.drawn_scores, size.scores] {
                workspace.fill_bytes(stream, 0)?;
            }
        }
        Ok(())
    }

    /// Queues the draws and scores of `drawing`. Tokens and scores of samples go to the outputs from
    /// `samples_from` on, scores of prompt tokens from `scores_from` on.
    pub fn launch(
        &self,
        stream: &Stream,
        memory: &StepMemory,
        drawing: &Drawing,
        samples_from: usize,
        scores_from: usize,
    ) -> Result<(), CudaError> {
        if drawing.samples > 0 {
            self.draw(stream, memory, drawing, samples_from)?;
        }
        if drawing.scores > 0 {
            let size = self.size_for(drawing.scores);
            let packed = memory.packed;
            let given = packed.slice(drawing.scores_at..packed.len()).cast().slice(0..size.capacity);
            let scores = ScoreBatch {
                logits: memory.logits,
                stride: self.vocab,
                vocab: self.vocab,
                targets: Targets::Given(given),
                count: packed.slice(drawing.score_count_at..drawing.score_count_at + 1),
                out: memory.scores.slice(scores_from..memory.scores.len()),
                workspace: size.scores,
            };
            self.scorer.launch(stream, scores)?;
        }
        Ok(())
    }

    fn draw(
        &self,
        stream: &Stream,
        memory: &StepMemory,
        drawing: &Drawing,
        from: usize,
    ) -> Result<(), CudaError> {
        let size = self.size_for(drawing.samples);
        let packed = memory.packed;
        let samples = packed.slice(drawing.samples_at..packed.len()).cast().slice(0..size.capacity);
        let count = packed.slice(drawing.sample_count_at..drawing.sample_count_at + 1);
        let biases = |at: usize| packed.slice(at..at + drawing.biases);
        let tokens = memory.sampled.slice(from..memory.sampled.len());
        let batch = SampleBatch {
            logits: memory.logits,
            stride: self.vocab,
            vocab: self.vocab,
            samples,
            count,
            bias_tokens: biases(drawing.bias_tokens_at),
            bias_values: biases(drawing.bias_values_at).cast(),
            forbidden: packed,
            history: packed,
            masks: memory.masks,
            previous: memory.previous,
            tokens,
            status: memory.status.slice(from..memory.status.len()),
            workspace: size.sampler,
            stages: drawing.stages,
        };
        self.sampler.launch(stream, batch)?;
        if !drawing.has_logprobs {
            return Ok(());
        }
        let scores = ScoreBatch {
            logits: memory.logits,
            stride: self.vocab,
            vocab: self.vocab,
            targets: Targets::Drawn(samples, tokens),
            count,
            out: memory.drawn_scores.slice(from..memory.drawn_scores.len()),
            workspace: size.drawn_scores,
        };
        self.scorer.launch(stream, scores)
    }

    /// The smallest workspace that is large enough.
    fn size_for(&self, needed: usize) -> Workspace {
        let size = self.sizes.iter().find(|size| size.capacity >= needed);
        *size.unwrap_or_else(|| panic!("a pass of {needed} samples is within the largest size"))
    }
}
