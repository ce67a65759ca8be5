//! Matrix products by cuBLASLt, found at run time. For each kind of product ([`GemmKey`]) one algorithm is
//! chosen, by the library's heuristics or by timing, and kept: in memory, and on disk for the next start. So
//! the same product is the same arithmetic each time, and choosing costs its microseconds once.
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
use plan::{ALIGNMENT, Operands, Plan};

use super::{CudaError, Device, DeviceSlice, Stream};

/// What products may use besides their operands: NVIDIA's advice for Hopper (cuBLAS documentation,
/// "cublasSetWorkspace").
pub const WORKSPACE_BYTES: usize = 32 << 20;
/// The oldest library whose answers are understood.
const MIN_VERSION: usize = 120_000;
/// `CUBLAS_STATUS_INVALID_VALUE` and `CUBLAS_STATUS_NOT_SUPPORTED`.
const INVALID_VALUE: u32 = 7;
const NOT_SUPPORTED: u32 = 15;
/// The oldest library with scales by row and by block.
const MIN_VERSION_VECTOR_SCALES: usize = 120_900;

/// cuBLASLt on one device. Calls come from threads that are bound to it.
#[derive(Debug)]
pub struct BlasLt {
    handle: Handle,
    version: usize,
    device: Arc<Device>,
    state: Mutex<State>,
}

// SAFETY: the library's handles may be used from any thread that is bound to the device; descriptions lie
// behind the lock.
unsafe impl Send for BlasLt {}
// SAFETY: as above.
unsafe impl Sync for BlasLt {}

#[derive(Debug)]
struct State {
    plans: HashMap<GemmKey, Option<Plan>>,
    pinned: Pinned,
}

/// One product: `out[rows, n] = x[rows, k] * weight[n, k]^T (+ bias)`, f32 sums, rounded once to `O`. All
/// row-major and dense.
#[derive(Debug, Clone, Copy)]
pub struct Gemm<I, O> {
    /// `[rows, n]`
    pub out: DeviceSlice<O>,
    /// `[rows, k]`
    pub x: DeviceSlice<I>,
    /// `[n, k]`
    pub weight: DeviceSlice<I>,
    /// `[n]`, in the result's type, or [`DeviceSlice::NONE`].
    pub bias: DeviceSlice<O>,
    /// Rows.
    pub rows: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed over: a multiple of 8, of 16 for e4m3.
    pub k: usize,
    /// How e4m3 operands are scaled.
    pub scaling: Scaling,
    /// As [`Scaling`] says, or [`DeviceSlice::NONE`].
    pub x_scales: DeviceSlice<f32>,
    /// As [`Scaling`] says, or [`DeviceSlice::NONE`].
    pub weight_scales: DeviceSlice<f32>,
}

impl<I: BlasElement, O: BlasElement> Gemm<I, O> {
    /// Without bias and scales.
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
    /// The library, when there is one of a known version; the calling thread is bound to `device`.
    pub fn open(device: &Arc<Device>) -> Result<Option<Self>, CudaError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        // SAFETY: the library is there, and each version has this function.
        let version = unsafe { sys::cublasLtGetVersion() };
        if version < MIN_VERSION {
            return Ok(None);
        }
        let state = State { plans: HashMap::new(), pinned: Pinned::of_user(device, version) };
        Ok(Some(Self { handle: Handle::new()?, version, device: device.clone(), state: Mutex::new(state) }))
    }

    /// `10000 * major + 100 * minor + patch`.
    pub fn version(&self) -> usize {
        self.version
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether the library has a product of this kind on this device. Chooses its algorithm: call it once for
    /// each kind before serving.
    pub fn supports(&self, key: GemmKey) -> Result<bool, CudaError> {
        Ok(self.state().plan(self, key)?.is_some())
    }

    /// Queues a product. `workspace` has [`WORKSPACE_BYTES`], and no other stream uses it meanwhile. The
    /// first product of its kind chooses the algorithm and loads its code; run each once before it is
    /// captured in a graph.
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
            // The bucket's algorithm may refuse a smaller number of rows: that number then gets its own.
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
        // Older libraries would answer an attribute they do not know with an error.
        !matches!(scaling, Scaling::Outer | Scaling::Block128) || self.version >= MIN_VERSION_VECTOR_SCALES
    }
}

impl State {
    /// The plan of `key`: known, pinned on disk, or what the heuristics like best, which is then pinned.
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
        let Some(first) = plan.algorithms(&blas.handle, 1, WORKSPACE_BYTES)?.first().copied() else {
            return Ok(None);
        };
        plan.algorithm = first;
        self.pinned.put(key, first);
        Ok(Some(plan))
    }
}
