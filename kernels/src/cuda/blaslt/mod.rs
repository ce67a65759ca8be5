//! Matrix products with cuBLASLt, which is found at run time. For each kind of product ([`GemmKey`]) one
//! algorithm is chosen, by the library's heuristics or by timing, and kept in memory and on disk. So the same
//! product always has the same arithmetic, and the microseconds to choose an algorithm are spent once.
//!
//! Not yet run on a GPU.

mod call;
mod key;
mod pinned;
mod plan;
mod tune;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::sys;

pub use key::{BlasElement, GemmKey, Scaling, row_bucket, row_buckets};
pub use tune::Tuned;

use call::Handle;
use pinned::Pinned;
use plan::{ALIGNMENT, Algorithm, Operands, Plan};

use super::{CudaError, Device, DeviceSlice, ErrorKind, Stream};

/// Size of the workspace that a product may use: NVIDIA's recommendation for Hopper (cuBLAS documentation,
/// "cublasSetWorkspace").
pub const WORKSPACE_BYTES: usize = 32 << 20;
/// Oldest supported library version.
const MIN_VERSION: usize = 120_000;
/// The values of `CUBLAS_STATUS_INVALID_VALUE` and `CUBLAS_STATUS_NOT_SUPPORTED`.
const INVALID_VALUE: u32 = 7;
const NOT_SUPPORTED: u32 = 15;
/// Oldest library version with scales per row and per block.
const MIN_VERSION_VECTOR_SCALES: usize = 120_900;

/// cuBLASLt on one device. Calling threads must be bound to it.
#[derive(Debug)]
pub struct BlasLt {
    handle: Handle,
    version: usize,
    device: Arc<Device>,
    state: Mutex<State>,
}

// SAFETY: the library's handles may be used from any thread that is bound to the device; descriptions are
// behind the lock.
unsafe impl Send for BlasLt {}
// SAFETY: as above.
unsafe impl Sync for BlasLt {}

#[derive(Debug)]
struct State {
    plans: HashMap<GemmKey, Option<Plan>>,
    pinned: Pinned,
    /// Errors of searches for algorithms.
    refusals: Vec<CudaError>,
}

/// A product `out[rows, n] = x[rows, k] * weight[n, k]^T (+ bias)`, summed in f32 and rounded once to `O`.
/// All matrices are row-major and dense.
#[derive(Debug, Clone, Copy)]
pub struct Gemm<I, O> {
    /// Result, `[rows, n]`.
    pub out: DeviceSlice<O>,
    /// Left operand, `[rows, k]`.
    pub x: DeviceSlice<I>,
    /// Right operand, `[n, k]`.
    pub weight: DeviceSlice<I>,
    /// `[n]` in the result's type, or [`DeviceSlice::NONE`].
    pub bias: DeviceSlice<O>,
    /// Rows of `x` and the result.
    pub rows: usize,
    /// Columns of the result.
    pub n: usize,
    /// Dimension that is summed over: a multiple of 8, or of 16 for e4m3.
    pub k: usize,
    /// Scaling of e4m3 operands.
    pub scaling: Scaling,
    /// Scales of `x` as [`Scaling`] describes, or [`DeviceSlice::NONE`].
    pub x_scales: DeviceSlice<f32>,
    /// Scales of the weight as [`Scaling`] describes, or [`DeviceSlice::NONE`].
    pub weight_scales: DeviceSlice<f32>,
}

impl<I: BlasElement, O: BlasElement> Gemm<I, O> {
    /// A product without bias and scales.
    pub fn new(
        out: DeviceSlice<O>,
        x: DeviceSlice<I>,
        weight: DeviceSlice<I>,
        rows: usize,
        n: usize,
        k: usize,
    ) -> Self {
        let (bias, scaling, none) = (DeviceSlice::NONE, Scaling::None, DeviceSlice::NONE);
        Self { out, x, weight, bias, rows, n, k, scaling, x_scales: none, weight_scales: none }
    }

    fn key(&self) -> GemmKey {
        GemmKey::new::<I, O>(self.rows, self.n, self.k, self.scaling, !self.bias.is_empty())
    }

    fn operands(&self, workspace: DeviceSlice<u8>) -> Operands {
        Operands {
            rows: self.rows as u32,
            out: self.out.address(),
            x: self.x.address(),
            weight: self.weight.address(),
            bias: self.bias.address(),
            x_scales: self.x_scales.address(),
            weight_scales: self.weight_scales.address(),
            workspace: workspace.address(),
            workspace_bytes: workspace.bytes(),
        }
    }

    fn check(&self) {
        let Self { rows, n, k, .. } = *self;
        assert!(self.out.len() >= rows * n, "[{rows}, {n}] does not fit {} results", self.out.len());
        assert!(self.x.len() >= rows * k, "x of {} is less than [{rows}, {k}]", self.x.len());
        assert!(self.weight.len() >= n * k, "a weight of {} is less than [{n}, {k}]", self.weight.len());
        assert!(
            self.bias.is_empty() || self.bias.len() >= n,
            "a bias of {} is less than {n}",
            self.bias.len()
        );
        let whole = self.scaling != Scaling::Block128 || rows.is_multiple_of(4);
        assert!(whole, "{rows} rows are no multiple of 4, as scales by block need");
        let (weight_scales, x_scales) = self.scaling.counts(rows, n, k);
        assert!(
            self.weight_scales.len() >= weight_scales && self.x_scales.len() >= x_scales,
            "{:?} scaling of [{rows}, {k}] x [{n}, {k}]^T needs {weight_scales} and {x_scales} scales",
            self.scaling
        );
        for (what, address) in
            [("out", self.out.address()), ("x", self.x.address()), ("weight", self.weight.address())]
        {
            let alignment = u64::from(ALIGNMENT);
            assert!(
                address.is_multiple_of(alignment),
                "{what} at {address:#x} is no multiple of {alignment}"
            );
        }
    }
}

impl BlasLt {
    /// Opens the library; `None` if it is missing or too old. The calling thread must be bound to `device`.
    pub fn open(device: &Arc<Device>) -> Result<Option<Self>, CudaError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        // SAFETY: the library is present, and every version has this function.
        let version = unsafe { sys::cublasLtGetVersion() };
        if version < MIN_VERSION {
            return Ok(None);
        }
        let pinned = Pinned::of_user(device, version);
        let state = State { plans: HashMap::new(), pinned, refusals: Vec::new() };
        Ok(Some(Self { handle: Handle::new()?, version, device: device.clone(), state: Mutex::new(state) }))
    }

    /// Version of the library, `10000 * major + 100 * minor + patch`.
    pub fn version(&self) -> usize {
        self.version
    }

    /// The device that products run on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Errors that the library returned when it was asked for algorithms. A kind of product with such an
    /// error counts as unsupported, so that our own kernels compute it.
    pub fn refusals(&self) -> Vec<CudaError> {
        self.state().refusals.clone()
    }

    /// Whether the library supports this kind of product on this device. Also chooses its algorithm: call it
    /// once for each kind before serving.
    pub fn supports(&self, key: GemmKey) -> Result<bool, CudaError> {
        Ok(self.state().plan(self, key)?.is_some())
    }

    /// Queues a product. `workspace` needs [`WORKSPACE_BYTES`], and no other stream may use it meanwhile. The
    /// first product of a kind chooses the algorithm and loads its code, so run each kind once before
    /// capturing it in a graph.
    pub fn matmul<I: BlasElement, O: BlasElement>(
        &self,
        stream: &Stream,
        gemm: Gemm<I, O>,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        gemm.check();
        assert!(
            workspace.bytes() >= WORKSPACE_BYTES,
            "a workspace of {} bytes is too small",
            workspace.bytes()
        );
        if gemm.rows == 0 {
            return Ok(());
        }
        let (key, operands) = (gemm.key(), gemm.operands(workspace));
        match self.run(stream, key, &operands) {
            // The bucket's algorithm may reject a smaller number of rows. That number then gets its own
            // algorithm.
            Err(CudaError::Blas { code: INVALID_VALUE | NOT_SUPPORTED, .. }) if key.rows != operands.rows => {
                self.run(stream, GemmKey { rows: operands.rows, ..key }, &operands)
            }
            result => result,
        }
    }

    fn run(&self, stream: &Stream, key: GemmKey, operands: &Operands) -> Result<(), CudaError> {
        match self.state().plan(self, key)? {
            Some(plan) => plan.run(&self.handle, stream.raw().cast(), operands),
            None => Err(CudaError::invalid(format!(
                "cuBLASLt {} has no product {key} on {}; ask BlasLt::supports first",
                self.version, self.device.name
            ))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_have(&self, scaling: Scaling) -> bool {
        // Older libraries return an error for attributes that they do not know.
        !matches!(scaling, Scaling::Outer | Scaling::Block128) || self.version >= MIN_VERSION_VECTOR_SCALES
    }
}

impl State {
    /// The plan for `key`. An unknown key gets the algorithm pinned on disk, or else the heuristics' first
    /// choice, which is then pinned.
    fn plan(&mut self, blas: &BlasLt, key: GemmKey) -> Result<Option<&Plan>, CudaError> {
        if !self.plans.contains_key(&key) {
            let plan = self.choose(blas, key)?;
            self.plans.insert(key, plan);
        }
        Ok(self.plans.get(&key).and_then(Option::as_ref))
    }

    fn choose(&mut self, blas: &BlasLt, key: GemmKey) -> Result<Option<Plan>, CudaError> {
        if !blas.may_have(key.scaling) {
            return Ok(None);
        }
        let mut plan = Plan::new(key)?;
        let pinned =
            self.pinned.get(&key).filter(|pinned| plan.accepts(&blas.handle, pinned, WORKSPACE_BYTES));
        if let Some(algorithm) = pinned {
            plan.algorithm = algorithm;
            return Ok(Some(plan));
        }
        let Some(first) = self.algorithms(blas, &plan, 1)?.first().copied() else {
            return Ok(None);
        };
        plan.algorithm = first;
        self.pinned.put(key, first);
        Ok(Some(plan))
    }

    /// Up to `most` algorithms for `plan`; none if the search fails and the device still works.
    fn algorithms(&mut self, blas: &BlasLt, plan: &Plan, most: usize) -> Result<Vec<Algorithm>, CudaError> {
        match plan.algorithms(&blas.handle, most, WORKSPACE_BYTES) {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                self.refusals.push(error);
                Ok(Vec::new())
            }
            result => result,
        }
    }
}
