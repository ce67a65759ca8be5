//! Which adapter is in which slot on the device, and a step's rows by slot.
//!
//! The launching thread copies an adapter that a step needs and no slot has, in the stream, before that
//! step: steps in flight come before the copy, so the slot's former adapter is no longer read. No more
//! adapters are in use at once than there are slots.

use std::sync::Arc;

use skein_kernels::cuda::Stream;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::low_rank::TILE_ROWS;
use skein_model::on_cuda::adapter::DeviceAdapters;
use skein_model::served_adapter::HeldAdapter;
use skein_proto::adapter::AdapterId;

use super::stage::QueueError;
use crate::backend::{BackendError, Batch, LoadedAdapter};

/// The slots of a device.
pub(super) struct AdapterSlots {
    slots: Vec<Option<Held>>,
    /// Number of the step, as a clock for the order of use.
    step: u64,
    /// Copies so far.
    copies: u64,
}

struct Held {
    id: AdapterId,
    /// Kept until the slot gets another adapter, because the copy reads it.
    _weights: Arc<HeldAdapter>,
    last_used: u64,
}

impl AdapterSlots {
    /// `count` empty slots.
    pub fn new(count: usize) -> Self {
        Self { slots: (0..count).map(|_| None).collect(), step: 0, copies: 0 }
    }

    /// Sorts the rows of `batch` by slot, and queues the copies of adapters that no slot has yet.
    pub fn place<T: Activation>(
        &mut self,
        stream: &Stream,
        device: &DeviceAdapters<T>,
        batch: &Batch,
    ) -> Result<SlotRows, QueueError> {
        self.step += 1;
        // Adapters of this step that have a slot keep it.
        for adapter in batch.sequences.iter().filter_map(|sequence| sequence.adapter.as_ref()) {
            let held = self.slots.iter_mut().flatten().find(|held| held.id == adapter.id);
            held.into_iter().for_each(|held| held.last_used = self.step);
        }
        let mut rows = SlotRows::default();
        for sequence in &batch.sequences {
            let Some(adapter) = &sequence.adapter else { continue };
            let slot = self.slot_of(stream, device, adapter)?;
            rows.add(slot as u32, sequence.rows.clone());
        }
        Ok(rows)
    }

    fn slot_of<T: Activation>(
        &mut self,
        stream: &Stream,
        device: &DeviceAdapters<T>,
        adapter: &LoadedAdapter,
    ) -> Result<usize, QueueError> {
        let holds = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.id == adapter.id);
        if let Some(slot) = self.slots.iter().position(holds) {
            return Ok(slot);
        }
        let Some(HeldAdapter::Cuda(image)) = adapter.weights.as_deref() else { return Err(unsupported()) };
        let last_used = |held: &Option<Held>| held.as_ref().map_or(0, |held| held.last_used);
        let oldest = self.slots.iter().enumerate().min_by_key(|(_, held)| last_used(held));
        // An adapter is in use while a sequence has it, and no more are in use than there are slots.
        let oldest = oldest.filter(|(_, held)| last_used(held) < self.step);
        let Some((slot, _)) = oldest else { return Err(unsupported()) };
        image.copy_to(stream, device.slot(slot))?;
        self.copies += 1;
        tracing::debug!(slot, id = format!("{:016x}", adapter.id.0), copies = self.copies, "adapter copied");
        let weights = adapter.weights.clone().unwrap_or_else(|| unreachable!("it has an image"));
        self.slots[slot] = Some(Held { id: adapter.id, _weights: weights, last_used: self.step });
        Ok(slot)
    }
}

/// A step with adapters that this backend has no slots for.
pub(super) fn unsupported() -> QueueError {
    let error = BackendError::Unsupported { backend: "cuda", want: "run more adapters than --max-loras" };
    QueueError::Unsupported(error)
}

/// Rows with an adapter, by slot.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SlotRows(Vec<(u32, Vec<u32>)>);

impl SlotRows {
    fn add(&mut self, slot: u32, rows: impl Iterator<Item = u32>) {
        match self.0.iter_mut().find(|(of, _)| *of == slot) {
            Some((_, of_slot)) => of_slot.extend(rows),
            None => self.0.push((slot, rows.collect())),
        }
    }

    /// Whether no row has an adapter.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tiles of up to [`TILE_ROWS`] rows with the same adapter.
    pub fn tiles(&self) -> Vec<(u32, &[u32])> {
        self.0.iter().flat_map(|(slot, rows)| rows.chunks(TILE_ROWS).map(|rows| (*slot, rows))).collect()
    }

    /// Those among `wanted` (ascending), numbered among them.
    pub fn among(&self, wanted: &[u32]) -> Self {
        let of = |(slot, rows): &(u32, Vec<u32>)| {
            let found = rows.iter().filter_map(|row| wanted.binary_search(row).ok());
            (*slot, found.map(|at| at as u32).collect::<Vec<u32>>())
        };
        Self(self.0.iter().map(of).filter(|(_, rows)| !rows.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_tiles_of_one_adapter() {
        let mut rows = SlotRows::default();
        rows.add(3, 0..20);
        rows.add(1, 20..21);
        rows.add(3, 30..32);
        let tiles: Vec<(u32, usize)> = rows.tiles().iter().map(|(slot, rows)| (*slot, rows.len())).collect();
        assert_eq!(tiles, [(3, 16), (3, 6), (1, 1)]);
        let among = rows.among(&[4, 20, 25, 31]);
        assert_eq!(among.tiles(), [(3, &[0, 3][..]), (1, &[1][..])]);
        assert!(rows.among(&[21]).is_empty() && !rows.is_empty());
    }
}
