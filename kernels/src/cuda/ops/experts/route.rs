//! Choice of each row's experts; `cu/experts_route.cu`.

use super::{MAX_EXPERTS, MAX_GROUPS, MAX_PER_TOKEN, Pairs};
use crate::cpu::experts::{Groups, Routing, Score};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Rows of a block, a warp each.
const ROWS: usize = 4;

/// Experts of each row and their weights, the bits of [`crate::cpu::experts::Choices::route`].
#[derive(Debug, Clone, Copy)]
pub struct Route {
    kernel: Kernel,
}

/// Memory of one [`Route`] launch.
#[derive(Debug, Clone, Copy)]
pub struct RouteRows {
    /// Result, `[rows, per_token]`: experts, best first; `u32::MAX` in padding rows.
    pub chosen: DeviceSlice<u32>,
    /// Result, `[rows, per_token]`: their weights.
    pub weights: DeviceSlice<f32>,
    /// `[rows, stride]`, of which the first values of a row are the experts'.
    pub logits: DeviceSlice<f32>,
    /// Logits from one row to the next.
    pub stride: usize,
    /// `[experts]`: added to the scores for the choice only; or [`DeviceSlice::NONE`].
    pub correction: DeviceSlice<f32>,
    /// `[rows]`: slot mapping, which tells padding rows; or [`DeviceSlice::NONE`].
    pub slots: DeviceSlice<u32>,
    /// Sizes of the step.
    pub pairs: Pairs,
    /// Selection and weighting.
    pub routing: Routing,
}

impl Route {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("route")? })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, rows: RouteRows) -> Result<(), CudaError> {
        let RouteRows { chosen, weights, logits, stride, correction, slots, pairs, routing } = rows;
        let Pairs { rows, per_token, experts } = pairs;
        assert!((1..=MAX_EXPERTS).contains(&experts), "{experts} experts: at most {MAX_EXPERTS}");
        let most = MAX_PER_TOKEN.min(experts);
        assert!((1..=most).contains(&per_token), "{per_token} experts per row: at most {most}");
        assert_eq!(routing.per_token, per_token, "experts per row");
        assert!(
            stride >= experts && logits.len() >= rows * stride,
            "[{rows}, {stride}] logits of {experts} experts do not fit {}",
            logits.len()
        );
        assert!(chosen.len() >= pairs.count() && weights.len() >= pairs.count(), "{rows} rows do not fit");
        assert!(correction.is_empty() || correction.len() == experts, "a correction for each expert");
        assert!(slots.is_empty() || slots.len() >= rows, "a slot for each row");
        let groups = routing.groups.unwrap_or(Groups { count: 0, kept: 0, by_best: 0 });
        let are_equal = groups.count == 0
            || (groups.count <= MAX_GROUPS
                && experts.is_multiple_of(groups.count)
                && (1..=groups.count).contains(&groups.kept));
        assert!(are_equal, "{experts} experts in {groups:?}, at most {MAX_GROUPS} groups");
        if rows == 0 {
            return Ok(());
        }
        let args = Args::new()
            .slice(chosen)
            .slice(weights)
            .slice(logits)
            .slice(correction)
            .slice(slots)
            .size(rows)
            .size(stride)
            .size(experts)
            .size(per_token)
            .u32(u32::from(routing.score == Score::Sigmoid))
            .u32(u32::from(routing.renormalises))
            .f32(routing.scale)
            .size(groups.count)
            .size(groups.kept)
            .size(groups.by_best);
        let grid = Grid::new(rows.div_ceil(ROWS) as u32, ROWS as u32 * 32);
        self.kernel.launch(stream, grid.overlapping(), &args)
    }
}
