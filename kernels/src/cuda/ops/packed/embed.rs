//! Embedding lookup in a packed table; `cu/embed_packed.cu`.

use std::marker::PhantomData;

use super::{BLOCK, Shape};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::ops::product::{LinearWeight, WeightValues};
use crate::cuda::ops::{Activation, kernel_for};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Values of a row that a thread writes at once.
const VALUES: usize = 4;
/// Most threads per row.
const MAX_THREADS: usize = 1024;

/// `out[row] = scale * table[tokens[row]]`, dequantised to `f32`.
#[derive(Debug, Clone, Copy)]
pub struct EmbedPacked<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`EmbedPacked`] launch.
#[derive(Debug, Clone, Copy)]
pub struct EmbedPackedRows<'a, T> {
    /// Result, `[rows, hidden]`.
    pub out: DeviceSlice<f32>,
    /// Packed table, `[vocab, hidden]`, without leaves and in the inputs' order.
    pub table: &'a LinearWeight<T>,
    /// `[rows]`; tokens outside the vocabulary read row 0, so that padding is harmless.
    pub tokens: DeviceSlice<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Factor of all values; 1 changes no bit.
    pub scale: f32,
}

impl<T: Activation> EmbedPacked<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "embed_packed")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, embed: EmbedPackedRows<'_, T>) -> Result<(), CudaError> {
        let EmbedPackedRows { out, table, tokens, rows, scale } = embed;
        let WeightValues::Packed(packed) = table.values else { unreachable!("the table is packed") };
        debug_assert_eq!(table.check(), Ok(()));
        assert!(table.leaf == 0 && packed.form.orders == 0, "rows are looked up in the inputs' order");
        assert!(out.len() >= rows * table.k && tokens.len() >= rows, "{rows} rows do not fit");
        if rows == 0 {
            return Ok(());
        }
        let shape = Shape { form: packed.form, n: table.n, k: table.k, leaf: 0 };
        let threads = (table.k.next_multiple_of(BLOCK) / VALUES).min(MAX_THREADS) as u32;
        let args = packed
            .args(&shape.places(), Args::new().slice(out).slice(tokens))
            .size(packed.form.bits)
            .size(table.n)
            .size(table.k)
            .f32(scale);
        self.kernel.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
    }
}
