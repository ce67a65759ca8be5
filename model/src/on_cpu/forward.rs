//! Runs a model's steps.

use std::ops::Range;

use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::Encoding;
use skein_kernels::cpu::matmul::{Write, matmul};
use skein_kernels::cpu::rows::RowsMut;
use skein_kernels::cpu::softcap::softcap;

use super::adapter::{AdapterRows, ChangedProduct};
use super::caches::Caches;
use super::model::Model;
use super::profile::Part;
use super::step::{Activations, ForwardStep, Running};
use crate::operations;

impl Model {
    /// Allocates memory for steps of up to `rows` rows.
    pub fn activations(&self, rows: usize) -> Activations {
        let mut activations = Activations::default();
        activations.grow(&self.spec, rows);
        activations
    }

    /// Runs all layers on `step` and writes its keys and values to `caches`. Leaves the wanted rows for
    /// [`Model::logits`]. All ranks run the same step.
    ///
    /// # Errors
    /// If another rank is lost.
    pub fn forward(
        &self,
        cpu: &mut Cpu,
        step: &ForwardStep<'_>,
        caches: &mut Caches,
        activations: &mut Activations,
        ranks: &mut dyn Ranks,
    ) -> Result<(), Lost> {
        let mut running = Running::new(self, cpu, step, caches, activations, ranks);
        operations::forward(&self.spec, &mut running)
    }

    /// Logits of some wanted rows of the last step: `[rows, vocab]`, on every rank of the last stage.
    /// `adapters` has the wanted rows by adapter.
    ///
    /// # Errors
    /// If another rank is lost.
    ///
    /// # Panics
    /// In any other stage.
    pub fn logits(
        &self,
        cpu: &mut Cpu,
        rows: Range<usize>,
        adapters: &AdapterRows,
        activations: &mut Activations,
        ranks: &mut dyn Ranks,
        logits: &mut [f32],
    ) -> Result<(), Lost> {
        let Activations { x, input, exact, shared, profile, .. } = activations;
        let hidden = self.spec.hidden_size;
        let x = &x[rows.start * hidden..rows.end * hidden];
        let head = self.head.as_ref().unwrap_or_else(|| unreachable!("the last stage has the head"));
        let stack = [head.into()];
        profile.start();
        let encoding = self.encoding(&stack, input);
        self.normalise_into(cpu, x, self.norm.as_ref(), encoding, input);
        profile.mark(Part::Encode);
        let shard = &self.shard;
        if shard.ranks == 1 {
            matmul(cpu, input, &stack, logits, Write::Set);
            if adapters.change(ChangedProduct::Logits) {
                self.normalise_into(cpu, x, self.norm.as_ref(), Encoding::F32, exact);
                let of_part = adapters.part(rows.start as u32, rows.len() as u32);
                let y = RowsMut { values: &mut *logits, stride: self.spec.vocab_size as usize };
                of_part.add_to(cpu, ChangedProduct::Logits, exact.as_f32(), y);
            }
        } else {
            let is_changed = adapters.change(ChangedProduct::Logits);
            if is_changed {
                self.normalise_into(cpu, x, self.norm.as_ref(), Encoding::F32, exact);
            }
            shared.logits(ranks, shard, logits, |own| {
                matmul(cpu, input, &stack, own, Write::Set);
                if is_changed {
                    let of_part = adapters.part(rows.start as u32, rows.len() as u32);
                    let y = RowsMut { values: own, stride: shard.vocabulary.len() };
                    of_part.add_to(cpu, ChangedProduct::Logits, exact.as_f32(), y);
                }
            })?;
        }
        if let Some(cap) = self.spec.logits_softcap {
            softcap(cpu, logits, cap);
        }
        profile.mark(Part::Head);
        Ok(())
    }
}
