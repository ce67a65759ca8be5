//! The rows of a step, and the device memory of its values.

use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::StepKind;
use skein_kernels::cuda::ops::inputs::WindowTables;
use skein_kernels::cuda::ops::kv::StepSequences;

use super::adapter::StepTiles;
use super::experts::{ExpertActivations, widest_for_all};
use super::latent::LatentActivations;
use crate::spec::{QkNorm, Spec};

/// A step's rows in device memory, including padding.
#[derive(Debug, Clone, Copy)]
pub struct StepRows {
    /// Token ids: `[rows]`.
    pub tokens: DeviceSlice<u32>,
    /// Absolute positions: `[rows]`.
    pub positions: DeviceSlice<u32>,
    /// Slot mapping: `[rows]`.
    pub slots: DeviceSlice<u32>,
    /// The rows by sequence; `sequences.rows` is the number of rows.
    pub sequences: StepSequences,
    /// Where the rows lie in window blocks, if layers with a window have blocks apart.
    pub windows: Option<WindowTables>,
    /// Whether every sequence has at most one row.
    pub kind: StepKind,
    /// Rows that have an adapter; `None` = none has.
    pub adapters: Option<StepTiles>,
}

/// Activations and workspaces for steps up to a fixed number of rows.
#[derive(Debug, Clone, Copy)]
pub struct Activations<T> {
    /// `[rows, hidden]`: the residual stream.
    pub(super) residual: DeviceSlice<f32>,
    /// `[rows, hidden]`: normalised.
    pub(super) h: DeviceSlice<T>,
    /// `[rows, q | k | v]`; with latent attention latent, rotated key, and queries or their vector.
    pub(super) qkv: DeviceSlice<T>,
    /// `[rows, heads, value_dim]`: the output of attention.
    pub(super) attended: DeviceSlice<T>,
    /// `[rows, inner]`: the gated activations.
    pub(super) gated: DeviceSlice<T>,
    /// `[rows, hidden]`: the last projection's output, not yet added to the residual stream.
    pub(super) delta: DeviceSlice<T>,
    /// `[rows, hidden]`: the output of a feed-forward network beside attention; empty in other models.
    pub(super) beside: DeviceSlice<T>,
    /// `[rows, heads + kv_heads]`: sums of squares for norms over all heads; empty in other models, and with
    /// several ranks.
    pub(super) squares: DeviceSlice<f32>,
    /// Activations of latent attention.
    pub(super) latent: LatentActivations<T>,
    /// Activations of mixtures of experts.
    pub(super) experts: ExpertActivations<T>,
    /// `[logit rows, hidden]`
    pub(super) last: DeviceSlice<f32>,
    /// Workspace of attention.
    pub(super) attention: DeviceSlice<u8>,
    /// Workspace of projections.
    pub(super) linear: DeviceSlice<u8>,
    /// Memory for exchanges; empty on a single rank.
    pub(super) exchange: DeviceSlice<u8>,
}

/// Sizes of the workspaces, in bytes where nothing else is said.
#[derive(Debug, Clone, Copy)]
pub struct Workspace {
    /// Workspace of attention.
    pub attention: usize,
    /// Workspace of projections.
    pub linear: usize,
    /// Bytes for exchanges.
    pub exchange: usize,
    /// Most inputs of an expert's matrix that has them in an order of its own.
    pub ordered_inputs: usize,
}

impl<T: Activation> Activations<T> {
    /// Takes memory for steps of up to `rows` rows, `logit_rows` of them with logits.
    pub fn place(
        spec: &Spec,
        rows: usize,
        logit_rows: usize,
        workspace: Workspace,
        memory: &mut Carver,
    ) -> Self {
        let (attention, hidden) = (&spec.attention, spec.hidden_size);
        let beside = if spec.is_parallel { rows * hidden } else { 0 };
        let has_squares = attention.qk_norm == QkNorm::Row && workspace.exchange == 0;
        let squares = if has_squares { rows * (attention.heads + attention.kv_heads) } else { 0 };
        Self {
            residual: memory.take(rows * hidden),
            h: memory.take(rows.max(logit_rows) * hidden),
            qkv: memory.take(rows * attention.qkv_width()),
            attended: memory.take(rows * attention.heads * attention.value_dim()),
            gated: memory.take(rows * widest_for_all(spec)),
            delta: memory.take(rows * hidden),
            beside: memory.take(beside),
            squares: memory.take(squares),
            latent: LatentActivations::place(spec, rows, memory),
            experts: ExpertActivations::place(spec, rows, &workspace, memory),
            last: memory.take(logit_rows * hidden),
            attention: memory.take(workspace.attention),
            linear: memory.take(workspace.linear),
            exchange: memory.take(workspace.exchange),
        }
    }
}
