//! Every operation of a step as the backend runs it, in sequence: a decode step, or with many rows a prompt.

use std::sync::Arc;

use half::bf16;

use super::Model;
use super::attention::{self, Cached};
use super::products::{self, Weights};
use super::time::{Rig, Work};
use skein_kernels::cuda::blaslt::BlasLt;
use skein_kernels::cuda::ops::attention::StepKind;
use skein_kernels::cuda::ops::embed::{Embed, EmbedRows};
use skein_kernels::cuda::ops::linear::{Gated, Linear, LinearOptions};
use skein_kernels::cuda::ops::norm::{AddNorm, Formula, Norm};
use skein_kernels::cuda::ops::rope::{HeadNorm, RopeKvWrite, RopeRows};
use skein_kernels::cuda::{CudaError, DeviceSlice};
use skein_kernels::gate::Gate;

/// From this many rows on a step is a prompt: only its last row has logits.
const PROMPT: usize = 1024;

/// `rows` sequences of one row over `context` tokens, or one prompt of `rows` tokens.
pub(super) fn step(rig: &mut Rig<'_>, model: &Model, rows: usize, context: usize) -> Result<(), CudaError> {
    let of = format!("{} step of {rows}", model.name);
    let is_prompt = rows >= PROMPT || rows == context;
    embed(rig, &of, model, rows)?;
    norm(rig, &of, model, rows)?;
    for (name, n, k) in products::shapes(model) {
        linear(rig, &format!("{of}, {name}"), n, k, rows, name == "gate_up")?;
    }
    rope(rig, &of, model, rows)?;
    if !is_prompt {
        let name = format!("{of}, attention over {context}");
        if rig.wants(&name, Cached::bytes(rig, model, rows, context))? {
            let cached = Cached::new(rig, model, rows, 1, context)?;
            let work = attention::decode_work(model, rows, context);
            attention::over_cache(rig, &name, &cached, StepKind::Decode, work)?;
        }
    }
    let logit_rows = if is_prompt { 1 } else { rows };
    logits(rig, &format!("{of}, logits"), model, logit_rows)
}

fn embed(rig: &mut Rig<'_>, of: &str, model: &Model, rows: usize) -> Result<(), CudaError> {
    let Model { hidden, vocab, .. } = *model;
    let name = format!("{of}, embed");
    if !rig.wants(&name, 2 * vocab * hidden)? {
        return Ok(());
    }
    let (table, out) = (rig.random::<bf16>(vocab * hidden)?, rig.zeros::<f32>(rows * hidden)?);
    let tokens: Vec<u32> = (0..rows).map(|row| (row * 7919 % vocab) as u32).collect();
    let (tokens, embed) = (rig.upload(&tokens)?, Embed::<bf16>::new(rig.kernels())?);
    let work = Work { bytes: rows * hidden * 6, operations: 0.0 };
    rig.measure(&name, work, 1, |stream, _| {
        embed
            .launch(stream, EmbedRows { out: *out, table: *table, tokens: *tokens, rows, hidden, scale: 1.0 })
    })
}

fn norm(rig: &mut Rig<'_>, of: &str, model: &Model, rows: usize) -> Result<(), CudaError> {
    let hidden = model.hidden;
    let (name, len) = (format!("{of}, norm"), rows * hidden);
    if !rig.wants(&name, 8 * len)? {
        return Ok(());
    }
    // The residual grows by delta each time, but stays small enough.
    let (residual, delta) = (rig.random::<f32>(len)?, rig.random::<bf16>(len)?);
    let (out, weight) = (rig.zeros::<bf16>(len)?, rig.random::<f32>(hidden)?);
    let norm = AddNorm::<bf16>::new(rig.kernels(), Formula::Rms)?;
    // Residual in and out, delta in, result out.
    let work = Work { bytes: len * 12, operations: 0.0 };
    rig.measure(&name, work, 1, |stream, _| {
        let it = Norm {
            out: *out,
            residual: *residual,
            delta: *delta,
            beside: DeviceSlice::NONE,
            delta_weight: DeviceSlice::NONE,
            weight: *weight,
            bias: DeviceSlice::NONE,
            rows,
            hidden,
            eps: 1e-5,
        };
        norm.launch(stream, it)
    })
}

/// One projection with the kernel that [`Linear`] chooses; gate and up include the SiLU.
fn linear(
    rig: &mut Rig<'_>,
    name: &str,
    n: usize,
    k: usize,
    rows: usize,
    is_gated: bool,
) -> Result<(), CudaError> {
    if !rig.wants(name, 2 * n * k)? {
        return Ok(());
    }
    let weights = Weights::<bf16>::new(rig, n, k)?;
    let linear = new_linear(rig)?;
    let workspace = rig.zeros::<u8>(linear.workspace_bytes(rows, &[(n, k)]))?;
    let (x, out) = (rig.random::<bf16>(rows * k)?, rig.zeros::<bf16>(rows * n)?);
    rig.measure(name, products::work(rows, n, k, 2), weights.copies, |stream, copy| {
        let weight = weights.get(copy);
        if is_gated {
            let gated = Gated { by: Gate::Silu, weight: &weight };
            linear.launch_gate_up(stream, *out, *x, gated, rows, *workspace)
        } else {
            linear.launch(stream, *out, *x, &weight, rows, *workspace)
        }
    })
}

fn logits(rig: &mut Rig<'_>, name: &str, model: &Model, rows: usize) -> Result<(), CudaError> {
    let (n, k) = (model.vocab, model.hidden);
    if !rig.wants(name, 2 * n * k)? {
        return Ok(());
    }
    let weights = Weights::<bf16>::new(rig, n, k)?;
    let linear = new_linear(rig)?;
    let workspace = rig.zeros::<u8>(linear.workspace_bytes(rows, &[(n, k)]))?;
    let (x, out) = (rig.random::<bf16>(rows * k)?, rig.zeros::<f32>(rows * n)?);
    let plain = products::work(rows, n, k, 2);
    let work = Work { bytes: plain.bytes + 2 * rows * n, ..plain };
    rig.measure(name, work, weights.copies, |stream, copy| {
        let weight = weights.get(copy);
        linear.launch_f32(stream, *out, *x, &weight, rows, *workspace)
    })
}

fn new_linear(rig: &Rig<'_>) -> Result<Linear<bf16>, CudaError> {
    let blas = BlasLt::open(rig.kernels().device())?.map(Arc::new);
    Linear::new(rig.kernels(), blas, LinearOptions::default())
}

fn rope(rig: &mut Rig<'_>, of: &str, model: &Model, rows: usize) -> Result<(), CudaError> {
    let name = format!("{of}, rope and kv write");
    let width = model.qkv_width();
    let cached_bytes = Cached::bytes(rig, model, 1, rows);
    if !rig.wants(&name, cached_bytes + 2 * rows * width)? {
        return Ok(());
    }
    let cached = Cached::new(rig, model, 1, rows, rows)?;
    let (qkv, angles) = (rig.random::<bf16>(rows * width)?, rig.random::<f32>(rows * model.head_dim)?);
    let places: Vec<u32> = (0..rows as u32).collect();
    let (positions, slots) = (rig.upload(&places)?, rig.upload(&places)?);
    let rope = RopeKvWrite::<bf16, bf16>::new(rig.kernels())?;
    // Queries in and out, keys and values in and to the cache.
    let work = Work { bytes: rows * width * 4, operations: 0.0 };
    rig.measure(&name, work, cached.copies, |stream, copy| {
        let it = RopeRows {
            qkv: *qkv,
            heads: model.heads,
            norm: HeadNorm::None,
            norm_eps: 1e-5,
            temperature: None,
            angles: *angles,
            positions: *positions,
            slots: *slots,
            layer: cached.layer(copy),
            rows,
        };
        rope.launch(stream, it)
    })
}
