//! Chooses algorithms by timing them.

use std::sync::Arc;

use super::key::GemmKey;
use super::plan::{Algorithm, Operands, Plan};
use super::{BlasLt, WORKSPACE_BYTES};
use crate::cuda::{CudaError, CudaEvent, DeviceSlice, Stream};

/// Number of candidates to time.
const CANDIDATES: usize = 8;
/// Timed runs of each candidate. The fastest counts, because disturbances only make runs slower.
const ROUNDS: usize = 5;

/// Result of tuning a product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuned {
    /// Number of algorithms timed.
    pub candidates: usize,
    /// Time of the heuristics' favourite.
    pub first_milliseconds: f32,
    /// Time of the chosen algorithm.
    pub best_milliseconds: f32,
}

impl BlasLt {
    /// Times the library's candidates for `key` on `stream` and pins the fastest; waits for the stream.
    /// `scratch` needs [`Self::tuning_bytes`] of any content; it is read as operands and overwritten with
    /// results. If another algorithm wins, later products of this kind give other bits, while graphs captured
    /// earlier keep the old algorithm: tune before serving.
    pub fn tune(
        &self,
        stream: &Stream,
        key: GemmKey,
        scratch: DeviceSlice<u8>,
    ) -> Result<Option<Tuned>, CudaError> {
        let need = Self::tuning_bytes(&key);
        assert!(scratch.bytes() >= need, "tuning {key} needs {need} bytes, and has {}", scratch.bytes());
        if !self.supports(key)? {
            return Ok(None);
        }
        let mut plan = Plan::new(key)?;
        let candidates = self.state().algorithms(self, &plan, CANDIDATES)?;
        let operands = Operands::inside(&key, scratch);
        let mut timed: Vec<(f32, Algorithm)> = Vec::with_capacity(candidates.len());
        for algorithm in candidates {
            plan.algorithm = algorithm;
            if let Some(milliseconds) = self.time(stream, &plan, &operands)? {
                timed.push((milliseconds, algorithm));
            }
        }
        let best = timed.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(first), Some((best_milliseconds, algorithm))) = (timed.first().copied(), best) else {
            return Ok(None);
        };
        plan.algorithm = algorithm;
        let mut state = self.state();
        state.pinned.put(key, algorithm);
        state.plans.insert(key, Some(plan));
        Ok(Some(Tuned { candidates: timed.len(), first_milliseconds: first.0, best_milliseconds }))
    }

    /// Bytes of scratch memory that [`Self::tune`] needs for `key`.
    pub fn tuning_bytes(key: &GemmKey) -> usize {
        let (rows, n, k) = (key.rows as usize, key.n as usize, key.k as usize);
        let (weight_scales, x_scales) = key.scaling.counts(rows, n, k);
        // Four bytes cover every type; regions are aligned to 256.
        let regions = [rows * n * 4, rows * k * 4, n * k * 4, n * 4, weight_scales * 4, x_scales * 4];
        regions.iter().map(|bytes| bytes.next_multiple_of(256)).sum::<usize>() + WORKSPACE_BYTES
    }

    /// Milliseconds of the fastest run; `None` if the library rejects the algorithm after all.
    fn time(&self, stream: &Stream, plan: &Plan, operands: &Operands) -> Result<Option<f32>, CudaError> {
        let device = Arc::clone(&self.device);
        let (start, end) = (CudaEvent::new(&device)?, CudaEvent::new(&device)?);
        let run = || plan.run(&self.handle, stream.raw().cast(), operands);
        match run() {
            Err(CudaError::Blas { .. }) => return Ok(None),
            otherwise => otherwise?,
        }
        let mut best = f32::INFINITY;
        for _ in 0..ROUNDS {
            start.record(stream)?;
            run()?;
            end.record(stream)?;
            end.synchronize()?;
            best = best.min(end.since(&start)?);
        }
        Ok(Some(best))
    }
}

impl Operands {
    fn inside(key: &GemmKey, scratch: DeviceSlice<u8>) -> Self {
        let (rows, n, k) = (key.rows as usize, key.n as usize, key.k as usize);
        let (weight_scales, x_scales) = key.scaling.counts(rows, n, k);
        let mut at = scratch.address();
        let mut next = |values: usize| {
            let start = at;
            at += (values * 4).next_multiple_of(256) as u64;
            start
        };
        Self {
            rows: key.rows,
            out: next(rows * n),
            x: next(rows * k),
            weight: next(n * k),
            bias: next(n),
            x_scales: next(x_scales),
            weight_scales: next(weight_scales),
            workspace: at,
            workspace_bytes: WORKSPACE_BYTES,
        }
    }
}
