//! The raw rows of a layer: of the batch, and of positions before it in the cache.

use std::ops::Range;

use super::cache::{Parts, PartsMut};
use super::plan::Stretch;
use super::shape::{Kind, StateShape};

/// Rows of the batch.
#[derive(Clone, Copy)]
pub(super) struct BatchRows<'a> {
    shape: StateShape,
    values: &'a [f32],
    stride: usize,
}

impl<'a> BatchRows<'a> {
    /// `values` are `[rows, width]` of the shape; of a convolution they are `[rows, channels]`.
    pub(super) fn new(shape: StateShape, values: &'a [f32]) -> Self {
        let stride = if shape.kind == Kind::Convolution { shape.channels() } else { shape.width() };
        Self { shape, values, stride }
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.stride]
    }

    #[inline(always)]
    fn channels(&self, row: usize) -> &'a [f32] {
        &self.row(row)[self.shape.first_channel()..][..self.shape.channels()]
    }

    #[inline(always)]
    fn logits(&self, row: usize) -> &'a [f32] {
        &self.row(row)[self.stride - self.shape.logits()..]
    }
}

/// Raw rows of a pass and before it.
pub(super) struct RawRows<'a> {
    pub(super) batch: BatchRows<'a>,
    /// `[taps - 1, channels]` for each slot: the row of position `p` is in place `p % (taps - 1)`.
    pub(super) windows: Parts<'a>,
    /// `[MOST_DRAFTED, channels + logits]` for each slot.
    pub(super) pending: Parts<'a>,
    /// Channels before the first position, as many as are convolved at once.
    pub(super) zeros: &'a [f32],
}

impl<'a> RawRows<'a> {
    pub(super) fn shape(&self) -> &StateShape {
        &self.batch.shape
    }

    /// Channels of the row `back` positions before row `row` of a stretch.
    #[inline(always)]
    pub(super) fn channels(
        &self,
        stretch: &Stretch,
        row: usize,
        back: usize,
        channels: Range<usize>,
    ) -> &'a [f32] {
        if let Some(row) = row.checked_sub(back) {
            return match stretch.in_batch(row) {
                Some(row) => &self.batch.channels(row)[channels],
                None => &self.pending(stretch, row)[channels],
            };
        }
        match (stretch.position as usize + row).checked_sub(back) {
            Some(position) => {
                let shape = self.shape();
                let start = position % (shape.taps - 1) * shape.channels();
                &self.windows.of(stretch.part)[start..][channels]
            }
            None => &self.zeros[..channels.len()],
        }
    }

    /// Logits of the gates of row `row` of a stretch.
    #[inline(always)]
    pub(super) fn logits(&self, stretch: &Stretch, row: usize) -> &'a [f32] {
        match stretch.in_batch(row) {
            Some(row) => self.batch.logits(row),
            None => &self.pending(stretch, row)[self.shape().channels()..],
        }
    }

    #[inline(always)]
    fn pending(&self, stretch: &Stretch, row: usize) -> &'a [f32] {
        let width = self.shape().kept_width();
        &self.pending.of(stretch.part)[row * width..][..width]
    }
}

/// Where raw rows are kept, as in [`RawRows`].
pub(super) struct KeptRows<'a> {
    pub(super) batch: BatchRows<'a>,
    pub(super) windows: PartsMut<'a>,
    pub(super) pending: PartsMut<'a>,
}

impl KeptRows<'_> {
    /// Keeps the rows of `stretch` that later rows need: some for the window, and drafts as pending rows.
    ///
    /// # Safety
    /// No other task accesses this slot's part at the same time.
    pub(super) unsafe fn keep(&self, stretch: &Stretch) {
        let shape = &self.batch.shape;
        let (channels, before, width) = (shape.channels(), shape.taps - 1, shape.kept_width());
        let kept = stretch.kept();
        // First the window, because these rows may be pending rows, which drafts replace.
        for row in kept.saturating_sub(before)..kept {
            let place = (stretch.position as usize + row) % before;
            // SAFETY: nothing else accesses this part; windows and pending rows are different memory.
            let (to, pending) = unsafe {
                (
                    self.windows.range(stretch.part, place * channels, channels),
                    self.pending.range(stretch.part, 0, stretch.replayed * width),
                )
            };
            to.copy_from_slice(match stretch.in_batch(row) {
                Some(row) => self.batch.channels(row),
                None => &pending[row * width..][..channels],
            });
        }
        for draft in 0..stretch.drafts {
            let row = stretch.rows.end - stretch.drafts + draft;
            // SAFETY: as above.
            let to = unsafe { self.pending.range(stretch.part, draft * width, width) };
            let (to_channels, to_logits) = to.split_at_mut(channels);
            to_channels.copy_from_slice(self.batch.channels(row));
            to_logits.copy_from_slice(self.batch.logits(row));
        }
    }
}
