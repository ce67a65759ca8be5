//! Logits of the router; `cu/experts_router.cu`.

use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Threads per block.
const THREADS: u32 = 256;
/// For each kernel: (rows, outputs) of a block.
const TILES: [(usize, usize); 2] = [(4, 4), (8, 8)];
/// Rows from which the larger tile is used: it reads less, the smaller one has more blocks.
const MANY_ROWS: usize = 256;

/// `logits = x / rms(x) * norm * weight^T + bias`, in f32. A row's bits do not depend on the others.
#[derive(Debug, Clone, Copy)]
pub struct Router {
    kernels: [Kernel; 2],
}

/// Memory of one [`Router`] launch.
#[derive(Debug, Clone, Copy)]
pub struct RouterRows {
    /// Result, `[rows, outputs]`.
    pub logits: DeviceSlice<f32>,
    /// Residual stream, `[rows, hidden]`.
    pub residual: DeviceSlice<f32>,
    /// Weights of the norm, `[hidden]`; a multiple of 4.
    pub norm: DeviceSlice<f32>,
    /// `[outputs, hidden]`
    pub weight: DeviceSlice<f32>,
    /// `[outputs]`, or [`DeviceSlice::NONE`].
    pub bias: DeviceSlice<f32>,
    /// Number of rows.
    pub rows: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl Router {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernels: [kernels.get("router_logits_few")?, kernels.get("router_logits_many")?] })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, rows: RouterRows) -> Result<(), CudaError> {
        self.launch_tile(stream, rows, rows.rows >= MANY_ROWS)
    }

    /// Queues the launch with the larger or the smaller tile, which give the same bits.
    pub fn launch_tile(&self, stream: &Stream, rows: RouterRows, is_large: bool) -> Result<(), CudaError> {
        let RouterRows { logits, residual, norm, weight, bias, rows, eps } = rows;
        let hidden = norm.len();
        assert!(hidden > 0 && hidden.is_multiple_of(4), "hidden size {hidden} is not a multiple of 4");
        let outputs = weight.len() / hidden;
        assert!(outputs > 0 && weight.len() == outputs * hidden, "the weight is [outputs, {hidden}]");
        assert!(
            residual.len() >= rows * hidden && logits.len() >= rows * outputs,
            "{rows} rows do not fit into {} from {}",
            logits.len(),
            residual.len()
        );
        assert!(bias.is_empty() || bias.len() == outputs, "{} biases for {outputs} outputs", bias.len());
        if rows == 0 {
            return Ok(());
        }
        let (tile_rows, tile_outputs) = TILES[usize::from(is_large)];
        let blocks = [outputs.div_ceil(tile_outputs) as u32, rows.div_ceil(tile_rows) as u32, 1];
        let args = Args::new()
            .slice(logits)
            .slice(residual)
            .slice(norm)
            .slice(weight)
            .slice(bias)
            .size(rows)
            .size(outputs)
            .size(hidden)
            .f32(eps);
        self.kernels[usize::from(is_large)].launch(stream, Grid::of(blocks, THREADS).overlapping(), &args)
    }
}
