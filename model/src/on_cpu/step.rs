//! One forward step: its rows, activations and operations.

use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::attention::{self, Attention, SequenceRows, attend};
use skein_kernels::cpu::embed::{embed, embed_part};
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::norm::{rms_norm_add, rms_norm_heads};
use skein_kernels::cpu::rope::{Projected, angles, rotate_and_write, scale_by_position};
use skein_kernels::cpu::rows::{Rows, RowsMut};

use super::adapter::{AdapterRows, ChangedProduct, LayerProduct};
use super::caches::{Caches, Place};
use super::capture::{Capture, Reader};
use super::exchange::{Exchange, Heads, Shared};
use super::feed_forward::{DenseBuffers, Inner, Mixture, Network};
use super::latent::{Attended, LatentInput, LatentValues};
use super::layers::{self, AttentionInputs, FeedForward, Layer, Projection};
use super::model::Model;
use super::profile::{Part, Profile};
use crate::operations::Operations;
use crate::spec::{QkNorm, Spec, Temperature};
use crate::tensors::Product;

/// The rows of a forward step; see [`crate::backend::Batch`].
pub struct ForwardStep<'a> {
    /// Token ids: `[rows]`.
    pub tokens: &'a [u32],
    /// Absolute positions: `[rows]`.
    pub positions: &'a [u32],
    /// Where they lie in the main cache.
    pub located: Located<'a>,
    /// Where they lie in the cache of layers with a window, if those have one apart.
    pub located_in_windows: Option<Located<'a>>,
    /// Rows whose logits are needed, ascending. The other rows end in the last layer once their keys and
    /// values are cached.
    pub wanted: &'a [u32],
    /// The rows by adapter, and the wanted rows, numbered among the wanted ones.
    pub adapters: [&'a AdapterRows; 2],
}

impl<'a> ForwardStep<'a> {
    /// Where the rows lie in the cache of `place`.
    fn located(&self, place: Place) -> Located<'a> {
        self.located_in_windows.filter(|_| place.is_windowed).unwrap_or(self.located)
    }
}

/// Slots and block tables of a step's rows in one cache.
#[derive(Clone, Copy)]
pub struct Located<'a> {
    /// Slot mapping: `[rows]`.
    pub slots: &'a [u32],
    /// The rows by sequence.
    pub sequences: &'a [SequenceRows<'a>],
    /// The wanted rows by sequence, numbered among the wanted ones.
    pub wanted_sequences: &'a [SequenceRows<'a>],
}

/// Activations, reused between steps. They grow to the largest step; pages never touched take no memory.
#[derive(Default)]
pub struct Activations {
    /// `[rows, hidden]`: the residual stream.
    pub(super) x: Aligned<f32>,
    /// `[rows, hidden]` normalised, or `[rows, q]` from attention, encoded for the next product.
    pub(super) input: Input,
    /// The same values in `f32`, if an adapter changes the product.
    pub(super) exact: Input,
    /// `[rows, inner]`, likewise.
    gated: Input,
    inner: Inner,
    /// `[rows, q | k | v]`
    qkv: Aligned<f32>,
    /// `[rows, q]`: the output of attention.
    attended: Aligned<f32>,
    /// Values of latent attention besides these.
    latent: LatentValues,
    /// `[rows, hidden]`: output to be normalised before it is added to the residual stream.
    added: Aligned<f32>,
    /// `[rows with an adapter, components]`: products with A over the inputs of all ranks.
    changes: Aligned<f32>,
    /// `[rows, q | k]` of all ranks' heads, for norms over whole rows.
    whole: Aligned<f32>,
    /// Cosines, `[rotations, rows, head_dim / 2]`.
    cos: Aligned<f32>,
    /// Sines, with the shape of `cos`.
    sin: Aligned<f32>,
    scores: attention::Scratch,
    pub(super) shared: Shared,
    /// Time by part; off by default.
    pub profile: Profile,
    /// Inputs of the products; off by default.
    pub capture: Capture,
}

impl Activations {
    pub(super) fn grow(&mut self, spec: &Spec, rows: usize) {
        let [x, qkv, attended, added, cos, sin] = widths(spec);
        for (values, width) in [
            (&mut self.x, x),
            (&mut self.qkv, qkv),
            (&mut self.attended, attended),
            (&mut self.added, added),
            (&mut self.cos, cos),
            (&mut self.sin, sin),
        ] {
            values.grow(rows * width);
        }
        self.latent.grow(spec, rows);
        self.inner.grow(spec, rows);
    }

    /// Bytes that [`grow`](Self::grow) allocates for steps of `rows` rows.
    pub fn planned_bytes(spec: &Spec, rows: usize) -> u64 {
        let values = (widths(spec).iter().sum::<usize>() + LatentValues::widths(spec).iter().sum::<usize>())
            * rows
            + Inner::lens(spec, rows).iter().sum::<usize>();
        (values * size_of::<f32>()) as u64
    }

    /// Bytes allocated so far; encoded inputs are allocated in the first step.
    pub fn bytes(&self) -> u64 {
        let Self { x, qkv, attended, added, cos, sin, .. } = self;
        let lens = [x, qkv, attended, added, cos, sin].map(|values| values.len());
        ((lens.iter().sum::<usize>() + self.latent.len() + self.inner.len()) * size_of::<f32>()) as u64
    }

    /// Residual stream of the current step: `[rows, hidden]`.
    pub fn residual(&mut self, spec: &Spec, rows: usize) -> &mut [f32] {
        self.grow(spec, rows);
        &mut self.x[..rows * spec.hidden_size]
    }
}

/// Values per row in [`Activations`]: `x`, `qkv`, `attended`, `added`, `cos`, `sin`.
fn widths(spec: &Spec) -> [usize; 6] {
    let attention = &spec.attention;
    let added = if spec.norm.place.has_outputs() { spec.hidden_size } else { 0 };
    let angles = spec.rotations.len() * attention.pairs();
    let attended = attention.latent.map_or(attention.q_width(), |latent| attention.heads * latent.rank);
    let qkv = attention.qkv_width();
    [spec.hidden_size, qkv, attended, added, angles, angles]
}

/// A step in progress.
pub(super) struct Running<'a> {
    model: &'a Model,
    cpu: &'a mut Cpu,
    step: &'a ForwardStep<'a>,
    caches: &'a mut Caches,
    activations: &'a mut Activations,
    ranks: &'a mut dyn Ranks,
    /// Rows in progress: all, or only the wanted ones in the last layer once the others' keys and
    /// values are cached.
    rows: usize,
    /// Whether those are only the wanted ones.
    has_ended_early: bool,
    /// The same rows, grouped by adapter.
    adapters: &'a AdapterRows,
}

impl<'a> Running<'a> {
    pub fn new(
        model: &'a Model,
        cpu: &'a mut Cpu,
        step: &'a ForwardStep<'a>,
        caches: &'a mut Caches,
        activations: &'a mut Activations,
        ranks: &'a mut dyn Ranks,
    ) -> Self {
        let rows = step.tokens.len();
        activations.grow(&model.spec, rows);
        let [adapters, _] = step.adapters;
        let has_ended_early = false;
        Self { model, cpu, step, caches, activations, ranks, rows, has_ended_early, adapters }
    }

    /// In the last layer, continues with the wanted rows only, moved to the front: nothing reads the others'
    /// results.
    fn end_early(&mut self, layer: usize) {
        let wanted = self.step.wanted;
        if !self.model.shard.is_last() || layer + 1 < self.model.layers.len() || wanted.len() == self.rows {
            return;
        }
        keep_rows(&mut self.activations.x, wanted, self.model.spec.hidden_size);
        let attention = &self.model.spec.attention;
        match attention.latent {
            None => keep_rows(&mut self.activations.qkv, wanted, attention.qkv_width()),
            Some(_) => keep_rows(&mut self.activations.latent.queries, wanted, attention.q_width()),
        }
        (self.rows, self.has_ended_early) = (wanted.len(), true);
        self.adapters = self.step.adapters[1];
    }
}

impl Operations for Running<'_> {
    type Error = Lost;

    fn embed(&mut self) -> Result<(), Lost> {
        let Self { model, cpu, step, activations, ranks, rows, .. } = self;
        let Activations { x, cos, sin, shared, profile, .. } = &mut **activations;
        let half = model.spec.attention.pairs();
        profile.start();
        let scale = model.embedding_scale();
        let (shard, x) = (&model.shard, &mut x[..*rows * model.spec.hidden_size]);
        match &model.embedding {
            // Later stages have received the rows of the stage before.
            None => {}
            Some(table) if shard.ranks == 1 => embed(cpu, table, step.tokens, scale, x),
            Some(table) => {
                let first = shard.vocabulary.start;
                shared.embeddings(*ranks, shard, step.tokens, x, |own| {
                    embed_part(cpu, table, first, step.tokens, scale, own);
                })?;
            }
        }
        let count = *rows * half;
        for (i, rotation) in model.spec.rotations.iter().enumerate() {
            let of_rotation = i * count..(i + 1) * count;
            angles(cpu, rotation, step.positions, &mut cos[of_rotation.clone()], &mut sin[of_rotation]);
        }
        profile.mark(Part::Embed);
        Ok(())
    }

    fn attention_input(&mut self, index: usize) -> Result<(), Lost> {
        let of_heads = match &self.model.layers[index].inputs {
            AttentionInputs::Heads(of_heads) => of_heads,
            AttentionInputs::Latent(weights) => {
                self.latent_input(index, weights);
                self.end_early(index);
                self.activations.profile.mark(Part::Cache);
                return Ok(());
            }
        };
        let Self { model, cpu, step, caches, activations, ranks, rows, adapters, .. } = self;
        let Activations { x, input, exact, qkv, whole, cos, sin, shared, profile, capture, .. } =
            &mut **activations;
        let (spec, layer) = (&model.spec, &model.layers[index]);
        let (attention, width) = (&spec.attention, spec.attention.qkv_width());
        let (x, qkv) = (&x[..*rows * spec.hidden_size], &mut qkv[..*rows * width]);
        let stack = of_heads.each_ref().map(Projection::linear);
        let encoding = model.encoding(&stack, input);
        model.normalise_into(cpu, x, layer.attention_norm.as_ref(), encoding, input);
        capture.take(Reader::of_layer(Product::Qkv), input);
        profile.mark(Part::Encode);
        matmul(cpu, input, &stack, qkv, Write::Set);
        let changed = ChangedProduct::OfLayer(index, LayerProduct::Qkv);
        if adapters.change(changed) {
            model.normalise_into(cpu, x, layer.attention_norm.as_ref(), Encoding::F32, exact);
            let y = RowsMut { values: &mut *qkv, stride: width };
            adapters.add_to(cpu, changed, exact.as_f32(), y);
        }
        profile.mark(Part::Products);
        if attention.qk_norm == QkNorm::Row && model.shard.ranks > 1 {
            let (shard, dim, kv_heads) = (&model.shard, attention.head_dim, model.shard.all_kv_heads);
            let heads = Heads { shard, dim, kv_heads };
            shared.whole_rows(*ranks, &heads, qkv, whole, |rows| {
                normalise_rows(cpu, shard.group, kv_heads * dim, spec.norm.eps, layer, rows);
            })?;
        } else {
            normalise_heads(cpu, spec, layer, qkv);
        }
        let (count, rotation) = (*rows * attention.head_dim / 2, spec.layers[index].rotation);
        let of_rotation = rotation * count..(rotation + 1) * count;
        let place = caches.place(index);
        let (cos, sin, slots) = (&cos[of_rotation.clone()], &sin[of_rotation], step.located(place).slots);
        let (heads, cache) = (attention.heads, caches.at(place));
        rotate_and_write(cpu, cache, place.layer, Projected { qkv: &mut *qkv, heads, cos, sin, slots });
        if let Some(temperature) = spec.layers[index].temperature {
            let (queries, Temperature { every, scale }) = (attention.q_width(), temperature);
            let qkv = RowsMut { values: &mut *qkv, stride: width };
            scale_by_position(cpu, qkv, queries, step.positions, every, scale);
        }
        self.end_early(index);
        self.activations.profile.mark(Part::Cache);
        Ok(())
    }

    fn attend(&mut self, layer: usize) -> Result<(), Lost> {
        let Self { model, cpu, step, caches, activations, rows, has_ended_early, .. } = self;
        let place = caches.place(layer);
        let Located { sequences, wanted_sequences, .. } = step.located(place);
        let sequences = if *has_ended_early { wanted_sequences } else { sequences };
        let Activations { qkv, latent, attended, scores, profile, .. } = &mut **activations;
        let attention = &model.spec.attention;
        let (heads, scale) = (attention.heads, attention.scale);
        let (q, stride, out) = match attention.latent {
            None => (&*qkv, attention.qkv_width(), attention.q_width()),
            Some(of) => (&latent.queries, attention.q_width(), heads * of.rank),
        };
        let query = Attention {
            cache: caches.at(place),
            layer: place.layer,
            q: &q[..*rows * stride],
            stride,
            heads,
            group: model.shard.group,
            skipped: model.shard.skipped_heads(),
            scale,
            window: model.spec.layers[layer].window,
            is_chunked: model.spec.layers[layer].is_chunked,
            softcap: attention.softcap,
            sinks: model.layers[layer].sinks.as_deref(),
        };
        attend(cpu, &query, sequences, &mut attended[..*rows * out], scores);
        profile.mark(Part::Attention);
        Ok(())
    }

    fn attention_output(&mut self, index: usize) -> Result<(), Lost> {
        let Self { model, cpu, activations, ranks, rows, adapters, .. } = self;
        let Activations { x, input, attended, latent, added, changes, shared, profile, capture, .. } =
            &mut **activations;
        let (spec, layer) = (&model.spec, &model.layers[index]);
        let o = layer.o.linear();
        match (&layer.inputs, &spec.attention.latent) {
            (AttentionInputs::Latent(weights), Some(of)) => {
                let attended = &attended[..*rows * spec.attention.heads * of.rank];
                latent.outputs(model, cpu, Attended { of, weights, values: attended }, o, input);
            }
            _ => {
                let (width, encoding) = (spec.attention.q_width(), model.encoding(&[o], input));
                input.set(cpu, encoding, &attended[..*rows * width], width);
            }
        }
        capture.take(Reader::of_layer(Product::AttentionOutput), input);
        profile.mark(Part::Encode);
        let x = &mut x[..*rows * spec.hidden_size];
        let exchange = Exchange { shared, ranks: *ranks };
        let residual = Residual { x, added, exchange, eps: spec.norm.eps };
        let attended = Rows { values: attended, stride: spec.attention.q_width() };
        let changed = ChangedProduct::OfLayer(index, LayerProduct::AttentionOutput);
        let change = Change { adapters, at: changed, x: attended, inner: changes };
        residual.add(cpu, input, o, layer.o_norm.as_deref(), change)?;
        profile.mark(Part::Products);
        Ok(())
    }

    fn feed_forward(&mut self, index: usize) -> Result<(), Lost> {
        let Self { model, cpu, activations, ranks, rows, adapters, .. } = self;
        let Activations { x, input, exact, gated, inner, added, changes, shared, profile, capture, .. } =
            &mut **activations;
        let (model_spec, layer) = (&model.spec, &model.layers[index]);
        let (x, eps) = (&mut x[..*rows * model_spec.hidden_size], model_spec.norm.eps);
        let spec = &model_spec.layers[index].feed_forward;
        let norm =
            if model_spec.is_parallel { &layer.attention_norm } else { &layer.feed_forward_norm }.as_ref();
        if let (FeedForward::Experts(weights), Some(experts)) = (&layer.feed_forward, spec.experts) {
            let mixture = Mixture { model, spec, experts, norm, weights };
            mixture.add(cpu, x, gated, inner, capture, Exchange { shared, ranks: &mut **ranks })?;
            profile.mark(Part::Products);
            return Ok(());
        }
        let network = Network { model, spec, norm, x, layer: index, adapters };
        let buffers = DenseBuffers { input: &mut *input, exact, values: &mut *inner };
        if let Some(down) = network.run_dense(cpu, &layer.feed_forward, buffers, gated) {
            capture.take(Reader::of_layer(Product::GateUp), input);
            capture.take(Reader::of_layer(Product::Down), gated);
            profile.mark(Part::Products);
            let exchange = Exchange { shared, ranks: *ranks };
            let residual = Residual { x, added, exchange, eps };
            let changed = ChangedProduct::OfLayer(index, LayerProduct::Down);
            let x = Rows { values: inner.exact(), stride: spec.inner_size };
            let change = Change { adapters, at: changed, x, inner: changes };
            residual.add(cpu, gated, down.linear(), layer.down_norm.as_deref(), change)?;
        }
        profile.mark(Part::Products);
        Ok(())
    }
}

impl Running<'_> {
    /// Latent attention's [`Operations::attention_input`].
    fn latent_input(&mut self, index: usize, weights: &layers::Latent) {
        let Self { model, cpu, step, caches, activations, rows, .. } = self;
        let Activations { x, input, qkv, latent, cos, sin, profile, .. } = &mut **activations;
        let (spec, layer) = (&model.spec, &model.layers[index]);
        let Some(of) = &spec.attention.latent else { return };
        let (x, width) = (&x[..*rows * spec.hidden_size], spec.attention.qkv_width());
        let projected = &mut qkv[..*rows * width];
        let stack = weights.inputs.each_ref().map(Projection::linear);
        let encoding = model.encoding(&stack, input);
        model.normalise_into(cpu, x, layer.attention_norm.as_ref(), encoding, input);
        profile.mark(Part::Encode);
        matmul(cpu, input, &stack, projected, Write::Set);
        let (count, rotation) = (*rows * spec.attention.pairs(), spec.layers[index].rotation);
        let of_rotation = rotation * count..(rotation + 1) * count;
        let (cos, sin) = (&cos[of_rotation.clone()], &sin[of_rotation]);
        let key = LatentInput { of, weights, projected, cos, sin };
        let place = caches.place(index);
        latent.keys(cpu, caches.at(place), place.layer, step.located(place).slots, key);
        let key = LatentInput { of, weights, projected, cos, sin };
        latent.queries(model, cpu, key, input);
        profile.mark(Part::Products);
    }
}

/// Normalises queries and keys in `[rows, q | k | v]`, in place.
fn normalise_heads(cpu: &mut Cpu, spec: &Spec, layer: &Layer, qkv: &mut [f32]) {
    let Some((q_norm, k_norm)) = &layer.qk_norm else { return };
    let (attention, eps) = (&spec.attention, spec.norm.eps);
    let (heads, kv_heads, stride) = (attention.heads, attention.kv_heads, attention.qkv_width());
    // A whole-row norm sees all queries as head 0 and all keys as the one head behind them; heads are counted
    // in units of the keys' width.
    let (queries, keys) = match attention.qk_norm {
        QkNorm::Row => (0..1, heads / kv_heads..heads / kv_heads + 1),
        QkNorm::Heads | QkNorm::Unweighted | QkNorm::None => (0..heads, heads..heads + kv_heads),
    };
    rms_norm_heads(cpu, qkv, stride, queries, q_norm, eps);
    rms_norm_heads(cpu, qkv, stride, keys, k_norm, eps);
}

/// Normalises queries and keys of whole rows in `[rows, q | k]` of all ranks, in place. Queries are `group`
/// times as wide as the keys, `width`.
fn normalise_rows(cpu: &mut Cpu, group: usize, width: usize, eps: f32, layer: &Layer, rows: &mut [f32]) {
    let Some((q_norm, k_norm)) = &layer.qk_norm else { return };
    rms_norm_heads(cpu, rows, (group + 1) * width, 0..1, q_norm, eps);
    rms_norm_heads(cpu, rows, (group + 1) * width, group..group + 1, k_norm, eps);
}

/// Changes by adapters to a product with the input `x`.
struct Change<'a> {
    adapters: &'a AdapterRows,
    at: ChangedProduct,
    x: Rows<'a>,
    /// Memory for the products with A.
    inner: &'a mut Aligned<f32>,
}

impl Change<'_> {
    /// Adds the changes to a product divided among ranks by its inputs: each rank's products with A, joined
    /// like the model's, then the product with B on every rank.
    fn add_to(self, cpu: &mut Cpu, exchange: Exchange<'_>, y: RowsMut<'_>) -> Result<(), Lost> {
        let Self { adapters, at, x, inner } = self;
        if !adapters.change(at) {
            return Ok(());
        }
        let Exchange { shared, ranks } = exchange;
        if ranks.count() == 1 {
            adapters.add_to(cpu, at, x, y);
            return Ok(());
        }
        let (rows, components) = adapters.components(at);
        inner.grow(rows * components);
        let inner = &mut inner[..rows * components];
        let sum = |cpu: &mut Cpu, own: &mut [f32]| {
            adapters.inner(cpu, at, x, RowsMut { values: own, stride: components });
        };
        let whole = RowsMut { values: &mut *inner, stride: components };
        shared.sum(cpu, ranks, None, whole, Write::Set, sum)?;
        adapters.add_outer(cpu, at, Rows { values: inner, stride: components }, y);
        Ok(())
    }
}

/// The residual stream.
struct Residual<'a> {
    x: &'a mut [f32],
    /// Output that is normalised before it is added.
    added: &'a mut Aligned<f32>,
    exchange: Exchange<'a>,
    eps: f32,
}

impl Residual<'_> {
    /// Adds a product divided among ranks by its inputs, normalised if `norm` is given.
    fn add(
        self,
        cpu: &mut Cpu,
        input: &Input,
        linear: Linear<'_>,
        norm: Option<&[f32]>,
        change: Change<'_>,
    ) -> Result<(), Lost> {
        let (Self { x, added, mut exchange, eps }, stride) = (self, linear.weights.rows());
        let Some(norm) = norm else {
            product(cpu, &mut exchange, input, linear, x, Write::Add)?;
            return change.add_to(cpu, exchange, RowsMut { values: x, stride });
        };
        let added = &mut added[..x.len()];
        product(cpu, &mut exchange, input, linear, added, Write::Set)?;
        change.add_to(cpu, exchange, RowsMut { values: &mut *added, stride })?;
        rms_norm_add(cpu, added, norm, eps, x);
        Ok(())
    }
}

/// Product divided among ranks by its inputs: the sum of all ranks' leaves, then the bias, then `y`.
fn product(
    cpu: &mut Cpu,
    exchange: &mut Exchange<'_>,
    input: &Input,
    linear: Linear<'_>,
    y: &mut [f32],
    write: Write,
) -> Result<(), Lost> {
    let Exchange { shared, ranks } = exchange;
    if ranks.count() == 1 {
        matmul(cpu, input, &[linear], y, write);
        return Ok(());
    }
    let own = Linear { bias: None, ..linear };
    let sum = |cpu: &mut Cpu, to: &mut [f32]| matmul(cpu, input, &[own], to, Write::Set);
    let y = RowsMut { values: y, stride: linear.weights.rows() };
    shared.sum(cpu, *ranks, linear.bias, y, write, sum)
}

/// Moves some rows of `values` `[any, width]` to the front; `rows` is ascending.
fn keep_rows(values: &mut [f32], rows: &[u32], width: usize) {
    for (to, from) in rows.iter().map(|row| *row as usize).enumerate() {
        values.copy_within(from * width..(from + 1) * width, to * width);
    }
}
