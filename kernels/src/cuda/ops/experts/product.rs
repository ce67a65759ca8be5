//! Products of the chosen experts; `cu/experts_gemv.cu` and `cu/experts_gemm.cu`, and with weights in codes
//! `cu/experts_gemv_packed.cu` and `cu/experts_gemm_packed.cu`.

use std::marker::PhantomData;

use super::super::Activation;
use super::super::packed::gemm_shared_bytes;
use super::super::product::{Granularity, LinearWeight, WeightValues};
use super::pairs::{SortedPairs, Storage, Tile};
use super::reorder::{ReorderPairs, Reordered};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use crate::gate::Gate;

/// Columns of k per stage of a tile with many rows.
const STAGE_K: usize = 64;
/// Padding of each row of results in shared memory, in bytes.
const ROW_PADDING: usize = 16;

/// The matrices of all experts, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct ExpertWeight<T> {
    /// Number of experts.
    pub experts: usize,
    /// `[experts * n, k]` without leaves; e4m3 has a scale per row. Codes may have an order of inputs for
    /// each expert.
    pub stacked: LinearWeight<T>,
}

/// Which product of the experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// The activation of the gate times up: reads a row of `x` for each pair, and writes in sorted order. An
    /// expert's matrix is its gate over its up.
    GateUp {
        /// Activation of the gate.
        by: Gate,
        /// Consecutive pairs that read the same row of `x`.
        per_row: usize,
    },
    /// Down: reads in sorted order, and writes in the order of pairs.
    Down,
}

/// Memory of one [`ExpertProducts`] launch.
#[derive(Debug, Clone, Copy)]
pub struct ExpertProduct<'a, T> {
    /// `[pairs, n]`; half as many columns for [`Stage::GateUp`].
    pub out: DeviceSlice<T>,
    /// `[pairs, k]`, or fewer rows for [`Stage::GateUp`].
    pub x: DeviceSlice<T>,
    /// Weights of the experts.
    pub weight: &'a ExpertWeight<T>,
    /// Pairs of a row and an expert, by expert.
    pub pairs: &'a SortedPairs,
    /// Which product.
    pub stage: Stage,
    /// Workspace, `[pairs, k]`, if experts have their inputs in orders of their own; else not used.
    pub ordered: DeviceSlice<T>,
}

impl Storage {
    /// Number of ways.
    const COUNT: usize = 5;
    const ALL: [Self; Self::COUNT] =
        [Self::Same, Self::E4m3, Self::Packed(4), Self::Packed(6), Self::Packed(8)];

    fn index(self) -> usize {
        match self {
            Self::Same => 0,
            Self::E4m3 => 1,
            Self::Packed(bits) => bits / 2,
        }
    }
}

/// `out = x weight^T + bias` with the weight of each pair's expert. A row's bits do not depend on the tile or
/// on other rows.
#[derive(Debug, Clone, Copy)]
pub struct ExpertProducts<T> {
    /// By tile, by storage, by stage.
    kernels: [[[Kernel; 2]; Storage::COUNT]; 3],
    reorder: ReorderPairs<T>,
    of: PhantomData<T>,
}

/// Names of the kernels of a type in the order of [`ExpertProducts`].
macro_rules! names {
    ($t:literal) => {
        [
            names!(@ "experts_gemv_", $t, ""),
            names!(@ "experts_gemm_", $t, "_medium"),
            names!(@ "experts_gemm_", $t, "_large"),
        ]
    };
    (@ $prefix:literal, $t:literal, $tile:literal) => {
        [
            [concat!($prefix, $t, "_same_gated", $tile), concat!($prefix, $t, "_same_plain", $tile)],
            [concat!($prefix, $t, "_e4m3_gated", $tile), concat!($prefix, $t, "_e4m3_plain", $tile)],
            names!(@packed $prefix, "packed4_", $t, $tile),
            names!(@packed $prefix, "packed6_", $t, $tile),
            names!(@packed $prefix, "packed8_", $t, $tile),
        ]
    };
    (@packed $prefix:literal, $bits:literal, $t:literal, $tile:literal) => {
        [concat!($prefix, $bits, $t, "_gated", $tile), concat!($prefix, $bits, $t, "_plain", $tile)]
    };
}

/// Shape of a tile's blocks.
struct Shape {
    weight_rows: usize,
    threads: u32,
    shared_bytes: usize,
}

impl Shape {
    fn of(tile: Tile, storage: Storage, is_gated: bool) -> Self {
        let (weight_rows, threads, stages) = match tile {
            Tile::Few => return Self { weight_rows: 16, threads: 256, shared_bytes: 0 },
            Tile::Medium => (64, 128, 4),
            Tile::Large => (128, 256, 3),
        };
        let x_rows = tile.rows(storage);
        let weight_bytes = match storage {
            Storage::Same => 2,
            Storage::E4m3 => 1,
            Storage::Packed(bits) => {
                let shared_bytes = gemm_shared_bytes(bits, weight_rows, x_rows, is_gated);
                return Self { weight_rows, threads, shared_bytes };
            }
        };
        let stage = STAGE_K * (weight_rows * weight_bytes + x_rows * 2);
        let row = if is_gated { weight_rows } else { 2 * weight_rows } + ROW_PADDING;
        Self { weight_rows, threads, shared_bytes: (stages * stage).max(x_rows * row) }
    }
}

impl<T: Activation> ExpertWeight<T> {
    /// Outputs of an expert.
    pub fn n(&self) -> usize {
        self.stacked.n / self.experts
    }

    /// How weights are stored.
    pub fn storage(&self) -> Storage {
        match self.stacked.values {
            WeightValues::Same(_) => Storage::Same,
            WeightValues::E4m3 { .. } => Storage::E4m3,
            WeightValues::Packed(packed) => Storage::Packed(packed.form.bits),
        }
    }

    /// `[experts, k]`: input of each column; empty if columns are in the inputs' order.
    fn orders(&self) -> DeviceSlice<u32> {
        match self.stacked.values {
            WeightValues::Packed(packed) => packed.orders(&self.stacked.packed_shape(packed.form)),
            WeightValues::Same(_) | WeightValues::E4m3 { .. } => DeviceSlice::NONE,
        }
    }

    /// Arguments that describe the weights.
    fn args(&self) -> Args<'static> {
        match self.stacked.values {
            WeightValues::Same(values) => Args::new().slice(values).slice(DeviceSlice::<f32>::NONE),
            WeightValues::E4m3 { values, scales, granularity } => {
                assert_eq!(granularity, Granularity::Channel, "experts have a scale per row");
                Args::new().slice(values).slice(scales)
            }
            WeightValues::Packed(packed) => {
                packed.args(&self.stacked.packed_shape(packed.form).places(), Args::new())
            }
        }
    }
}

impl<T: Activation> ExpertProducts<T> {
    /// Looks the kernels up.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let names = match T::SUFFIX {
            "bf16" => names!("bf16"),
            _ => names!("f16"),
        };
        let mut table = [[[kernels.get(names[0][0][0])?; 2]; Storage::COUNT]; 3];
        for (at, tile) in Tile::ALL.into_iter().enumerate() {
            for storage in Storage::ALL {
                for stage in 0..2 {
                    let kernel = kernels.get(names[at][storage.index()][stage])?;
                    let shared_bytes = Shape::of(tile, storage, stage == 0).shared_bytes;
                    if shared_bytes > 0 {
                        kernel.allow_shared(shared_bytes as u32)?;
                    }
                    table[at][storage.index()][stage] = kernel;
                }
            }
        }
        Ok(Self { kernels: table, reorder: ReorderPairs::new(kernels)?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, product: ExpertProduct<'_, T>) -> Result<(), CudaError> {
        let ExpertProduct { out, x, weight, pairs: sorted_pairs, stage, ordered } = product;
        let SortedPairs { sorted, tiles, pairs, tile, tile_rows } = *sorted_pairs;
        if pairs.count() == 0 || pairs.experts == 0 {
            return Ok(());
        }
        let LinearWeight { k, bias, leaf, .. } = weight.stacked;
        debug_assert_eq!(weight.stacked.check(), Ok(()));
        assert_eq!((weight.experts, leaf), (pairs.experts, 0), "experts, leaves");
        let is_gated = matches!(stage, Stage::GateUp { .. });
        let (columns, count) = (if is_gated { weight.n() / 2 } else { weight.n() }, pairs.count());
        assert!(columns.is_multiple_of(8), "{columns} outputs are not a multiple of 8");
        let (per_row, (function, alpha, limit)) = match stage {
            Stage::GateUp { by, per_row } => (per_row, numbers(by)),
            Stage::Down => (1, (0, 0.0, 0.0)),
        };
        assert!(
            out.len() >= count * columns && x.len() >= count.div_ceil(per_row) * k && sorted.len() >= count,
            "{pairs:?} do not fit"
        );
        let (storage, most) = (weight.storage(), tile.rows(weight.storage()));
        assert!((1..=most).contains(&tile_rows), "tiles of {tile_rows} rows: at most {most} by {storage:?}");
        assert!(tiles.len() >= SortedPairs::tile_words(pairs, tile_rows), "tiles of {pairs:?} do not fit");
        let aligned = x.address().is_multiple_of(16) && out.address().is_multiple_of(16);
        assert!(aligned, "x at {:#x} or out at {:#x} is no multiple of 16", x.address(), out.address());
        let orders = weight.orders();
        let (x, per_row) = if orders.is_empty() {
            (x, per_row)
        } else {
            let per_row = if is_gated { per_row } else { 0 };
            self.reorder.launch(stream, sorted_pairs, Reordered { out: ordered, x, orders, per_row, k })?;
            (ordered, 0)
        };
        let shape = Shape::of(tile, storage, is_gated);
        let outputs = if is_gated { shape.weight_rows / 2 } else { shape.weight_rows };
        let blocks = [pairs.most_tiles(tile_rows) as u32, columns.div_ceil(outputs) as u32, 1];
        let args = weight
            .args()
            .slice(out)
            .slice(x)
            .slice(bias)
            .slice(tiles)
            .slice(sorted)
            .size(per_row)
            .size(columns)
            .size(k)
            .u32(function)
            .f32(alpha)
            .f32(limit);
        let grid = Grid::of(blocks, shape.threads).shared(shape.shared_bytes as u32).overlapping();
        self.kernels[tile as usize][storage.index()][usize::from(!is_gated)].launch(stream, grid, &args)
    }
}

/// Number of a function in `cu/experts.cuh`, with its alpha and limit.
fn numbers(gate: Gate) -> (u32, f32, f32) {
    match gate {
        Gate::Clamped { alpha, limit } => (2, alpha, limit),
        other => (other.on_cuda(), 0.0, 0.0),
    }
}
