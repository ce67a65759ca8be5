//! Adapters beside the model: their places in slots on the device, and their changes to products.
//!
//! All slots have one layout, for any adapter up to the highest rank. An adapter is kept as the bytes of a
//! slot in page-locked memory, so that one copy moves it to any slot.
//!
//! A rank's slots have its part of each adapter, cut like the matrices that it changes: B by outputs or A by
//! inputs. For the latter ranks exchange `x A`, and each adds the whole change to the joined sums.

use std::sync::Arc;

use half::{bf16, f16};
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::inputs::TileList;
use skein_kernels::cuda::ops::linear::GateUpSums;
use skein_kernels::cuda::ops::low_rank::{
    ChangedRows, InnerSums, LowRankAdd, MATRICES, RANK_UNIT, RECORD_WORDS, SlotProduct,
};
use skein_kernels::cuda::{CudaError, Device, DeviceSlice, Kernels, PinnedBuffer, Stream};

use super::exchange::Exchange;
use crate::LoadError;
use crate::adapter::Adapter;
use crate::adapter_changes::{Place, first_on_rank, for_each_change, may_change};
use crate::shard::Shard;
use crate::spec::Spec;
use crate::tensors::{self, Product};

/// Parts of a slot start at multiples of this, in bytes.
const ALIGNMENT: usize = 256;
/// Rows of gate and up whose sums are in f32 at a time.
const WIDE_ROWS: usize = 512;

/// Places of all products in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLayout {
    /// Most components, a multiple of [`RANK_UNIT`].
    max_rank: usize,
    /// Four for each layer of the stage, in the order of [`Product::OF_A_LAYER`], then the head; `None` =
    /// adapters do not change it on this rank.
    products: Vec<Option<SlotProduct>>,
    bytes: usize,
}

impl SlotLayout {
    /// Layout for adapters of up to `max_rank` components of the model of `spec`, on the rank of `shard`.
    pub fn new(spec: &Spec, shard: &Shard, max_rank: usize) -> Self {
        let max_rank = max_rank.next_multiple_of(RANK_UNIT);
        let mut products: Vec<Option<SlotProduct>> = vec![None; shard.layers.len() * 4 + 1];
        let all = tensors::all(spec);
        for (tensor, place) in may_change(spec, &all) {
            let part = shard.part(spec, tensor);
            if part.is_empty() {
                continue;
            }
            let index = index_of(shard, place);
            let product = products[index].get_or_insert(SlotProduct {
                index,
                a_at: 0,
                b_at: 0,
                k: part.cols.len(),
                n: 0,
                leaves: if tensor.leaves(spec) > 1 { part.leaves } else { 0 },
                matrices: 0,
                firsts: [usize::MAX; MATRICES],
            });
            let first = first_on_rank(&all, spec, shard, tensor);
            product.firsts[place.nth] = first;
            product.matrices = product.matrices.max(place.nth + 1);
            product.n = product.n.max(first + part.rows.len());
        }
        let mut bytes = (products.len() * RECORD_WORDS * size_of::<u32>()).next_multiple_of(ALIGNMENT);
        let mut take = |values: usize| {
            let at = bytes;
            bytes = (at + values * size_of::<u16>()).next_multiple_of(ALIGNMENT);
            at
        };
        for product in products.iter_mut().flatten() {
            product.a_at = take(product.matrices * max_rank * product.k);
            product.b_at = take(max_rank * product.n_stride());
            product.firsts = product.firsts.map(|first| first.min(product.n));
        }
        Self { max_rank, products, bytes }
    }

    /// Bytes of a slot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn product(&self, at: ChangedProduct) -> Option<&SlotProduct> {
        let index = match at {
            ChangedProduct::OfLayer(layer, product) => layer * 4 + product as usize,
            ChangedProduct::Logits => self.products.len() - 1,
        };
        self.products[index].as_ref()
    }

    /// Values of a step of `rows` rows between the two products of a change.
    fn inner_values(&self, rows: usize) -> usize {
        rows * MATRICES * self.max_rank
    }

    /// Most components of a matrix.
    pub fn max_rank(&self) -> usize {
        self.max_rank
    }

    /// Whether adapters may change a product of a layer of the stage.
    pub fn changes(&self, layer: usize, product: Product) -> bool {
        self.product(ChangedProduct::OfLayer(layer, product)).is_some()
    }

    /// Values of the sums of gate and up in steps of `rows` rows.
    fn wide_values(&self, spec: &Spec, rows: usize) -> usize {
        let gated = |layer: usize| {
            let is_gated = spec.layers[layer].feed_forward.is_gated;
            self.product(ChangedProduct::OfLayer(layer, Product::GateUp)).filter(|_| is_gated)
        };
        let widest = (0..spec.layers.len()).filter_map(gated).map(|product| product.n).max();
        widest.unwrap_or_default() * rows.min(WIDE_ROWS)
    }
}

/// Index of the product at `place`: the head is the last one.
fn index_of(shard: &Shard, place: Place) -> usize {
    place
        .of_layer
        .map_or(shard.layers.len() * 4, |(layer, product)| (layer - shard.layers.start) * 4 + product)
}

/// A product that adapters may change.
#[derive(Debug, Clone, Copy)]
pub enum ChangedProduct {
    /// One of [`Product::OF_A_LAYER`], by layer.
    OfLayer(usize, Product),
    /// The product with the head.
    Logits,
}

/// Rows of a product: its input and its output.
#[derive(Clone, Copy)]
pub struct ProductRows<T, O> {
    /// `[rows, k]`
    pub x: DeviceSlice<T>,
    /// `[rows, n]`
    pub out: DeviceSlice<O>,
    /// Number of rows.
    pub rows: usize,
}

/// How adapters are kept for a device.
#[derive(Debug)]
pub struct SlotForm {
    /// Layout of a slot.
    pub layout: Arc<SlotLayout>,
    /// The rank's part of the model.
    pub shard: Shard,
    /// Whether values are IEEE halves; otherwise bfloat16.
    pub is_f16: bool,
    /// Pins the memory of images.
    pub device: Arc<Device>,
}

/// An adapter as the bytes of a slot.
#[derive(Debug)]
pub struct SlotImage {
    bytes: PinnedBuffer<u8>,
}

impl SlotForm {
    /// Reads the rank's part of `adapter`, rounded to the model's 16-bit type.
    ///
    /// # Errors
    /// As [`for_each_change`], if a weight is not a finite number in that type, or if no page-locked memory
    /// is left.
    pub fn read(&self, adapter: &Adapter, spec: &Spec, max_rank: usize) -> Result<SlotImage, LoadError> {
        let no_memory = |error: CudaError| {
            let bytes = self.layout.bytes;
            adapter.refused(
                "adapter_model.safetensors",
                &format!("cannot have {bytes} bytes of page-locked memory ({error}); lower --max-cpu-loras"),
            )
        };
        self.device.bind().map_err(no_memory)?;
        let mut bytes = PinnedBuffer::<u8>::new(&self.device, self.layout.bytes).map_err(no_memory)?;
        for_each_change(adapter, spec, max_rank, |tensor, place, delta| {
            let part = self.shard.part(spec, tensor);
            if part.is_empty() {
                return Ok(());
            }
            let Some(product) = &self.layout.products[index_of(&self.shard, place)] else {
                unreachable!("{} is among the matrices that may change", tensor.name)
            };
            let refused = |value: f32| {
                let of = if self.is_f16 { "half precision" } else { "bfloat16" };
                adapter.refused(&tensor.name, &format!("has the weight {value} there, not a number in {of}"))
            };
            let bits = |value: f32| -> Result<u16, LoadError> {
                let (half, brain) = (f16::from_f32(value), bf16::from_f32(value));
                let is_finite = if self.is_f16 { half.is_finite() } else { brain.is_finite() };
                let bits = if self.is_f16 { half.to_bits() } else { brain.to_bits() };
                if is_finite { Ok(bits) } else { Err(refused(value)) }
            };
            let mut put = |at: usize, value: u16| {
                bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            };
            let (max_rank, rank) = (self.layout.max_rank, delta.rank());
            for component in 0..rank {
                let row = product.a_at + (place.nth * max_rank + component) * product.k * 2;
                for input in 0..product.k {
                    put(row + input * 2, bits(delta.a(component, part.cols.start + input))?);
                }
                let row = product.b_at + (component * product.n_stride() + product.firsts[place.nth]) * 2;
                for output in 0..part.rows.len() {
                    put(row + output * 2, bits(delta.b(tensor, part.rows.start + output, component))?);
                }
            }
            let record = product.index * RECORD_WORDS + place.nth;
            for (word, value) in [(record, rank as u32), (record + 4, delta.scale().to_bits())] {
                bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        })?;
        Ok(SlotImage { bytes })
    }
}

impl SlotImage {
    /// Queues the copy to a slot. The image must not be dropped before the copy has ended.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy_to(&self, stream: &Stream, slot: DeviceSlice<u8>) -> Result<(), CudaError> {
        slot.upload(stream, &self.bytes, 0..self.bytes.len())
    }
}

/// Rows of a step that have an adapter, as listed in the step's message.
#[derive(Debug, Clone, Copy)]
pub struct StepTiles {
    /// The message.
    pub packed: DeviceSlice<u32>,
    /// Most tiles in its list.
    pub tiles: usize,
}

/// How the ranks of a stage exchange inner sums: the exchange, and memory for all ranks' sums.
type Shared<'a, T> = (&'a Exchange<T>, DeviceSlice<u8>);

/// Slots on the device, and what their changes need.
pub struct DeviceAdapters<T> {
    /// `[slots, slot bytes]`
    slots: DeviceSlice<u8>,
    layout: Arc<SlotLayout>,
    pub(super) kernel: LowRankAdd<T>,
    /// `[rows, up to MATRICES, max_rank]`
    inner: DeviceSlice<f32>,
    /// `[some rows, gate | up]`
    pub(super) wide: DeviceSlice<f32>,
}

impl<T: Activation> DeviceAdapters<T> {
    /// Takes memory for the changes of steps of up to `rows` rows, of which as many may have logits.
    ///
    /// # Errors
    /// If a kernel is missing.
    pub fn place(
        kernels: &Kernels,
        spec: &Spec,
        layout: Arc<SlotLayout>,
        rows: usize,
        memory: &mut Carver,
    ) -> Result<Self, CudaError> {
        let (inner, wide) =
            (memory.take(layout.inner_values(rows)), memory.take(layout.wide_values(spec, rows)));
        let kernel = LowRankAdd::new(kernels)?;
        Ok(Self { slots: DeviceSlice::NONE, layout, kernel, inner, wide })
    }

    /// With these slots.
    pub fn with_slots(self, slots: DeviceSlice<u8>) -> Self {
        Self { slots, ..self }
    }

    /// Memory of a slot.
    pub fn slot(&self, slot: usize) -> DeviceSlice<u8> {
        let bytes = self.layout.bytes;
        self.slots.slice(slot * bytes..(slot + 1) * bytes)
    }

    fn changed(&self, of: StepTiles, list: TileList) -> ChangedRows {
        ChangedRows {
            slots: self.slots,
            slot_bytes: self.layout.bytes,
            max_rank: self.layout.max_rank,
            packed: of.packed,
            list,
            tiles: of.tiles,
        }
    }

    /// Whether steps with adapters change a product of a layer.
    pub(super) fn changes(&self, layer: usize, product: Product) -> bool {
        self.layout.changes(layer, product)
    }

    fn own(&self) -> InnerSums {
        InnerSums { values: self.inner, ranks: 1 }
    }

    /// Queues the changes to a product: `out`, `[rows, n]`, from its input `x`. If ranks divide
    /// the inputs, they exchange the inner sums over `shared` and its memory, and `out` is joined already.
    pub(super) fn add(
        &self,
        stream: &Stream,
        of: StepTiles,
        at: ChangedProduct,
        shared: Option<Shared<'_, T>>,
        values: ProductRows<T, T>,
    ) -> Result<(), CudaError> {
        let ProductRows { x, out, rows } = values;
        let Some(product) = self.layout.product(at) else {
            return Ok(());
        };
        let (of, x) = (self.changed(of, TileList::Rows), x.slice(0..rows * product.k));
        let inner = match shared.filter(|_| product.leaves > 0) {
            None => self.kernel.inner(stream, &of, product, x, self.inner).map(|()| self.own())?,
            Some((exchange, memory)) => {
                let len = rows * product.matrices * self.layout.max_rank;
                let compute = |own| self.kernel.inner(stream, &of, product, x, own);
                let (values, ranks) = exchange.components(stream, memory, len, compute)?;
                InnerSums { values, ranks }
            }
        };
        self.kernel.add(stream, &of, product, inner, out.slice(0..rows * product.n))
    }

    /// Queues the inner sums of gate and up. Returns the addition of their changes, or `None` if there are
    /// none.
    pub(super) fn gate_up(
        &self,
        stream: &Stream,
        of: StepTiles,
        layer: usize,
        x: DeviceSlice<T>,
    ) -> Result<Option<GateUpChange<'_, T>>, CudaError> {
        let Some(product) = self.layout.product(ChangedProduct::OfLayer(layer, Product::GateUp)) else {
            return Ok(None);
        };
        let of = self.changed(of, TileList::Rows);
        self.kernel.inner(stream, &of, product, x, self.inner)?;
        Ok(Some(GateUpChange { adapters: self, of, product }))
    }

    /// Queues the changes to the rank's logits, `[rows, its vocabulary]`, from the head's input `x`.
    pub(super) fn logits(
        &self,
        stream: &Stream,
        of: StepTiles,
        values: ProductRows<T, f32>,
    ) -> Result<(), CudaError> {
        let ProductRows { x, out: logits, rows } = values;
        let Some(product) = self.layout.product(ChangedProduct::Logits) else { return Ok(()) };
        let of = self.changed(of, TileList::Logits);
        self.kernel.inner(stream, &of, product, x.slice(0..rows * product.k), self.inner)?;
        self.kernel.add_wide(stream, &of, product, self.own(), (logits.slice(0..rows * product.n), 0))
    }
}

/// Changes to gate and up whose inner sums are there.
pub(super) struct GateUpChange<'a, T> {
    adapters: &'a DeviceAdapters<T>,
    of: ChangedRows,
    product: &'a SlotProduct,
}

impl<T: Activation> GateUpChange<'_, T> {
    /// Queues the changes to `sums`.
    pub fn add(&self, stream: &Stream, sums: GateUpSums<T>) -> Result<(), CudaError> {
        let Self { adapters, of, product } = self;
        let (kernel, inner) = (&adapters.kernel, adapters.own());
        match sums {
            GateUpSums::Rounded(out) => kernel.add(stream, of, product, inner, out),
            GateUpSums::Wide(out, first) => kernel.add_wide(stream, of, product, inner, (out, first)),
        }
    }
}

/// Most kernel launches of a layer's changes: two for each product, and the activation after gate and up.
pub(super) const LAUNCHES: usize = 2 * 4 + 1;
/// Exchanges of a layer's changes between ranks: of the two products whose inputs they divide.
pub(super) const EXCHANGES: usize = 2;
