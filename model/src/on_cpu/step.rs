//! One forward step: its rows, activations and operations.

use std::ops::Range;

use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::attention::{self, Attention, SequenceRows, attend};
use skein_kernels::cpu::embed::{embed, embed_part};
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::norm::rms_norm_heads;
use skein_kernels::cpu::output_gate::gate_outputs;
use skein_kernels::cpu::recurrent::{self, StatefulRows};
use skein_kernels::cpu::rope::{Projected, Rotation, angles, rotate, rotate_and_write, scale_by_position};
use skein_kernels::cpu::rows::{Rows, RowsMut};

use super::adapter::{AdapterRows, ChangedProduct, LayerProduct};
use super::caches::{Caches, Place};
use super::capture::{Capture, Reader};
use super::exchange::{Exchange, Heads, Shared};
use super::feed_forward::{DenseBuffers, Inner, Mixture, Network};
use super::latent::{Attended, LatentInput, LatentValues};
use super::layer_inputs::LayerInputs;
use super::layers::{self, AttentionInputs, FeedForward, Layer, Projection};
use super::model::Model;
use super::pooled::Vectors;
use super::profile::{Part, Profile};
use super::residual::{Change, Residual};
use crate::operations::Operations;
use crate::spec::{AttentionSpec, LayerSpec, QkNorm, Spec};
use crate::tensors::Product;

/// The rows of a forward step; see [`crate::backend::Batch`].
pub struct ForwardStep<'a> {
    /// Token ids: `[rows]`.
    pub tokens: &'a [u32],
    /// Absolute positions: `[rows]`.
    pub positions: &'a [u32],
    /// Kind of text of each row, below the model's number of kinds: `[rows]`, or empty if it has none.
    pub token_types: &'a [u32],
    /// Where they lie in the main cache.
    pub located: Located<'a>,
    /// Where they lie in the cache of layers with a window, if those have one apart.
    pub located_in_windows: Option<Located<'a>>,
    /// The rows by sequence and where their states are; empty for models without states.
    pub states: &'a [StatefulRows],
    /// Rows whose logits are needed, ascending. The other rows end in the last layer once their keys and
    /// values are cached, or its state has seen them.
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
    /// `[rows, q | k | v | gate]`, or `[rows, q | k | v | z | b | a]` of a state.
    pub(super) qkv: Aligned<f32>,
    /// `[rows, q]`: the output of attention, or `[rows, v]` of a state.
    pub(super) attended: Aligned<f32>,
    /// Inputs of layers besides `x`.
    layer_inputs: LayerInputs,
    /// Values of latent attention besides these.
    latent: LatentValues,
    /// `[rows, hidden]` normalised, encoded for a state's rates if they need another form.
    pub(super) rates: Input,
    pub(super) recurrent: recurrent::Scratch,
    /// `[rows, hidden]`: output to be normalised before it is added to the residual stream.
    added: Aligned<f32>,
    /// `[rows with an adapter, components]`: products with A over the inputs of all ranks.
    changes: Aligned<f32>,
    /// `[rows, q | k]` of all ranks' heads, for norms over whole rows.
    whole: Aligned<f32>,
    /// Cosines of each rotation, `[rows, head_dim / 2]`, one after the other.
    cos: Aligned<f32>,
    /// Sines, with the shape of `cos`.
    sin: Aligned<f32>,
    scores: attention::Scratch,
    pub(super) shared: Shared,
    pub(super) vectors: Vectors,
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
        self.layer_inputs.grow(spec, rows);
        self.inner.grow(spec, rows);
    }

    /// Bytes that [`grow`](Self::grow) allocates for steps of `rows` rows.
    pub fn planned_bytes(spec: &Spec, rows: usize) -> u64 {
        let of_row = widths(spec).iter().chain(&LatentValues::widths(spec)).sum::<usize>()
            + LayerInputs::widths(spec).iter().sum::<usize>();
        let values = of_row * rows + Inner::lens(spec, rows).iter().sum::<usize>();
        (values * size_of::<f32>()) as u64
    }

    /// Bytes allocated so far; encoded inputs are allocated in the first step.
    pub fn bytes(&self) -> u64 {
        let Self { x, qkv, attended, added, cos, sin, .. } = self;
        let lens = [x, qkv, attended, added, cos, sin].map(|values| values.len());
        let lens =
            lens.iter().sum::<usize>() + self.latent.len() + self.layer_inputs.len() + self.inner.len();
        (lens * size_of::<f32>()) as u64
    }

    /// Residual stream of the current step: `[rows, hidden]`.
    pub fn residual(&mut self, spec: &Spec, rows: usize) -> &mut [f32] {
        self.grow(spec, rows);
        &mut self.x[..rows * spec.hidden_size]
    }
}

/// Values per row in [`Activations`]: `x`, `qkv`, `attended`, `added`, `cos`, `sin`.
fn widths(spec: &Spec) -> [usize; 6] {
    let added = if spec.norm.place.has_outputs() { spec.hidden_size } else { 0 };
    let angles = spec.angles_before(spec.rotations.len());
    let attended = |it: &AttentionSpec| it.latent.map_or(it.q_width(), |latent| it.heads * latent.rank);
    let most = |of: fn(&AttentionSpec) -> usize| spec.attention_shapes().map(of).max().unwrap_or_default();
    let (qkv, attended) = (most(AttentionSpec::qkv_width), most(attended));
    let (of_state, from_state) = spec.state.map_or((0, 0), |it| (it.width(), it.value_width()));
    let (qkv, attended) = (qkv.max(of_state), attended.max(from_state));
    [spec.hidden_size, qkv, attended, added, angles, angles]
}

/// A step in progress.
pub(super) struct Running<'a> {
    pub model: &'a Model,
    pub cpu: &'a mut Cpu,
    pub step: &'a ForwardStep<'a>,
    pub caches: &'a mut Caches,
    pub activations: &'a mut Activations,
    ranks: &'a mut dyn Ranks,
    /// Rows in progress: all, or only the wanted ones in the last layer once the others' keys and
    /// values are cached, or its state has seen them.
    pub rows: usize,
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

    /// In the last layer that writes keys and values or a state, continues with the wanted rows only, moved
    /// to the front: nothing reads the others' results.
    fn end_early(&mut self, layer: usize) {
        let (wanted, spec) = (self.step.wanted, &self.model.spec);
        if !self.ends_before(layer + 1) {
            return;
        }
        keep_rows(&mut self.activations.x, wanted, spec.hidden_size);
        let (attention, state) = (spec.attention_of(layer), &spec.state);
        if layer + 1 < spec.layers.len() {
            self.keep_angles();
        }
        self.activations.layer_inputs.keep(spec, wanted, keep_rows);
        match (&self.model.layers[layer].inputs, state) {
            (AttentionInputs::State(_), Some(state)) => {
                keep_rows(&mut self.activations.attended, wanted, state.value_width());
            }
            (AttentionInputs::Latent(_), _) => {
                keep_rows(&mut self.activations.latent.queries, wanted, attention.q_width());
            }
            _ => keep_rows(&mut self.activations.qkv, wanted, spec.qkv_width_of(layer)),
        }
        (self.rows, self.has_ended_early) = (wanted.len(), true);
        self.adapters = self.step.adapters[1];
    }

    /// Whether no layer from `next` on reads the rows that are not wanted.
    fn ends_before(&self, next: usize) -> bool {
        let is_needed = self.model.spec.layers[next..].iter().any(LayerSpec::has_memory);
        self.model.shard.is_last() && !is_needed && self.step.wanted.len() != self.rows
    }

    /// Continues with the wanted rows only in a stage whose layers have only feed-forward networks.
    fn end_before_the_first(&mut self) {
        if self.ends_before(0) {
            let (wanted, spec) = (self.step.wanted, &self.model.spec);
            keep_rows(&mut self.activations.x, wanted, spec.hidden_size);
            self.activations.layer_inputs.keep(spec, wanted, keep_rows);
            (self.rows, self.has_ended_early) = (wanted.len(), true);
            self.adapters = self.step.adapters[1];
        }
    }

    /// Moves the wanted rows' angles to where they are looked for among fewer rows.
    fn keep_angles(&mut self) {
        let (spec, wanted) = (&self.model.spec, self.step.wanted);
        for values in [&mut self.activations.cos, &mut self.activations.sin] {
            for (rotation, Rotation { frequencies, .. }) in spec.rotations.iter().enumerate() {
                let (before, half) = (spec.angles_before(rotation), frequencies.len());
                for (to, from) in wanted.iter().map(|row| *row as usize).enumerate() {
                    let from = self.rows * before + from * half;
                    values.copy_within(from..from + half, wanted.len() * before + to * half);
                }
            }
        }
    }

    /// Where the angles of a layer's rotation are.
    fn angles_of(&self, layer: usize) -> Range<usize> {
        let (spec, rotation) = (&self.model.spec, self.model.spec.layers[layer].rotation);
        self.rows * spec.angles_before(rotation)..self.rows * spec.angles_before(rotation + 1)
    }
}

impl Operations for Running<'_> {
    type Error = Lost;

    fn embed(&mut self) -> Result<(), Lost> {
        let Self { model, cpu, step, activations, ranks, rows, .. } = self;
        let Activations { x, input, layer_inputs, cos, sin, shared, profile, .. } = &mut **activations;
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
        if let Some(beside) = &model.beside_embedding {
            beside.add(model, cpu, step.positions, step.token_types, x);
        }
        layer_inputs.make(model, cpu, step.tokens, x, input);
        for (i, rotation) in model.spec.rotations.iter().enumerate() {
            let of_rotation = *rows * model.spec.angles_before(i)..*rows * model.spec.angles_before(i + 1);
            angles(cpu, rotation, step.positions, &mut cos[of_rotation.clone()], &mut sin[of_rotation]);
        }
        profile.mark(Part::Embed);
        self.end_before_the_first();
        Ok(())
    }

    fn attention_input(&mut self, index: usize) -> Result<(), Lost> {
        match &self.model.layers[index].inputs {
            AttentionInputs::Heads(heads) => {
                self.heads_input(index, &heads.each_ref().map(Projection::linear))?;
            }
            AttentionInputs::GatedHeads(heads) => {
                self.heads_input(index, &heads.each_ref().map(Projection::linear))?;
            }
            AttentionInputs::Queries(query) => {
                self.heads_input(index, &query.each_ref().map(Projection::linear))?;
            }
            AttentionInputs::Latent(weights) => self.latent_input(index, weights),
            AttentionInputs::State(weights) => {
                self.state_input(index, weights);
                return Ok(());
            }
            AttentionInputs::None => return Ok(()),
        }
        self.end_early(index);
        self.activations.profile.mark(Part::Cache);
        Ok(())
    }

    fn attend(&mut self, layer: usize) -> Result<(), Lost> {
        if let AttentionInputs::State(weights) = &self.model.layers[layer].inputs {
            self.run_state(layer, weights);
            self.end_early(layer);
            return Ok(());
        }
        let Self { model, cpu, step, caches, activations, rows, has_ended_early, .. } = self;
        let place = caches.place(layer);
        let Located { sequences, wanted_sequences, .. } = step.located(place);
        let sequences = if *has_ended_early { wanted_sequences } else { sequences };
        let Activations { qkv, latent, attended, scores, profile, .. } = &mut **activations;
        let attention = model.spec.attention_of(layer);
        let (heads, scale) = (attention.heads, attention.scale);
        let (group, skipped) = model.shard.group_of(model.spec.layers[layer].window.is_some());
        let (q, stride, out) = match attention.latent {
            None => (&*qkv, model.spec.qkv_width_of(layer), attention.q_width()),
            Some(of) => (&latent.queries, attention.q_width(), heads * of.rank),
        };
        let query = Attention {
            cache: caches.at(place),
            layer: place.layer,
            q: &q[..*rows * stride],
            stride,
            heads,
            group,
            skipped,
            scale,
            window: model.spec.layers[layer].window,
            is_chunked: model.spec.layers[layer].is_chunked,
            ahead: model.spec.ahead_of(layer),
            softcap: attention.softcap,
            sinks: model.layers[layer].sinks.as_deref(),
        };
        let attended = &mut attended[..*rows * out];
        attend(cpu, &query, sequences, attended, scores);
        if attention.has_gate && *rows > 0 {
            let before = attention.qkv_width() - attention.gate_width();
            let gates = Rows { values: &qkv[before..*rows * attention.qkv_width()], stride };
            gate_outputs(cpu, gates, out, attended);
        }
        profile.mark(Part::Attention);
        Ok(())
    }

    fn attention_output(&mut self, index: usize) -> Result<(), Lost> {
        let Self { model, cpu, activations, ranks, rows, adapters, .. } = self;
        let Activations { x, input, attended, latent, added, changes, shared, profile, capture, .. } =
            &mut **activations;
        let (spec, layer) = (&model.spec, &model.layers[index]);
        let Some(o) = layer.o.as_ref().map(Projection::linear) else { return Ok(()) };
        let attention = spec.attention_of(index);
        match (&layer.inputs, &attention.latent) {
            (AttentionInputs::Latent(weights), Some(of)) => {
                let attended = &attended[..*rows * attention.heads * of.rank];
                latent.outputs(model, cpu, Attended { of, weights, values: attended }, o, input);
            }
            (inputs, _) => {
                let of_state = spec.state.filter(|_| matches!(inputs, AttentionInputs::State(_)));
                let width = of_state.map_or(attention.q_width(), |state| state.value_width());
                let encoding = model.encoding(&[o], input);
                input.set(cpu, encoding, &attended[..*rows * width], width);
            }
        }
        capture.take(Reader::of_layer(Product::AttentionOutput), input);
        profile.mark(Part::Encode);
        let x = &mut x[..*rows * spec.hidden_size];
        let exchange = Exchange { shared, ranks: *ranks };
        let residual = Residual { x, added, exchange, eps: spec.norm.eps };
        let attended = Rows { values: attended, stride: attention.q_width() };
        let changed = ChangedProduct::OfLayer(index, LayerProduct::AttentionOutput);
        let change = Change { adapters, at: changed, x: attended, inner: changes };
        residual.add(cpu, input, o, layer.o_norm.as_deref(), change)?;
        if let Some(norm) = &layer.attention_sum_norm {
            profile.mark(Part::Products);
            model.normalise(cpu, &mut activations.x[..*rows * spec.hidden_size], norm);
            activations.profile.mark(Part::Encode);
            return Ok(());
        }
        profile.mark(Part::Products);
        Ok(())
    }

    fn feed_forward(&mut self, index: usize) -> Result<(), Lost> {
        let Self { model, cpu, activations, ranks, rows, adapters, .. } = self;
        let activations = &mut **activations;
        let Activations { x, input, layer_inputs, exact, gated, inner, added, .. } = activations;
        let Activations { changes, shared, profile, capture, .. } = activations;
        let (model_spec, layer) = (&model.spec, &model.layers[index]);
        let (x, eps) = (&mut x[..*rows * model_spec.hidden_size], model_spec.norm.eps);
        let spec = &model_spec.layers[index].feed_forward;
        let norm =
            if model_spec.is_parallel { &layer.attention_norm } else { &layer.feed_forward_norm }.as_ref();
        if let (FeedForward::Experts(weights), Some(experts)) = (&layer.feed_forward, spec.experts) {
            let output_norm = layer.down_norm.as_deref();
            let mixture = Mixture { model, spec, experts, norm, output_norm, weights };
            mixture.add(cpu, x, gated, inner, capture, Exchange { shared, ranks: &mut **ranks })?;
            layer_inputs.end_layer(model, cpu, index, x, (input, added));
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
        let x = &mut activations.x[..*rows * model_spec.hidden_size];
        if let Some(norm) = &layer.feed_forward_sum_norm {
            profile.mark(Part::Products);
            model.normalise(cpu, x, norm);
            profile.mark(Part::Encode);
        }
        layer_inputs.end_layer(model, cpu, index, x, (input, added));
        profile.mark(Part::Products);
        Ok(())
    }
}

impl Running<'_> {
    /// [`Operations::attention_input`] of heads with the matrices in `stack`.
    fn heads_input(&mut self, index: usize, stack: &[Linear<'_>]) -> Result<(), Lost> {
        let of_rotation = self.angles_of(index);
        let Self { model, cpu, step, caches, activations, ranks, rows, adapters, .. } = self;
        let Activations { x, input, exact, qkv, whole, cos, sin, shared, profile, capture, .. } =
            &mut **activations;
        let (spec, layer) = (&model.spec, &model.layers[index]);
        let (attention, width) = (spec.attention_of(index), spec.qkv_width_of(index));
        let (x, qkv) = (&x[..*rows * spec.hidden_size], &mut qkv[..*rows * width]);
        let encoding = model.encoding(stack, input);
        model.normalise_into(cpu, x, layer.attention_norm.as_ref(), encoding, input);
        capture.take(Reader::of_layer(Product::Qkv), input);
        profile.mark(Part::Encode);
        matmul(cpu, input, stack, qkv, Write::Set);
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
            normalise_heads(cpu, (attention, width, spec.norm.eps), layer, qkv);
        }
        let place = caches.place(index);
        let (cos, sin, slots) = (&cos[of_rotation.clone()], &sin[of_rotation], step.located(place).slots);
        let (heads, cache) = (attention.heads, caches.at(place));
        if spec.layers[index].cache_of.is_some() {
            rotate(cpu, qkv, width, heads, cos, sin);
            return Ok(());
        }
        rotate_and_write(cpu, cache, place.layer, Projected { qkv: &mut *qkv, heads, cos, sin, slots });
        if let Some(temperature) = spec.layers[index].temperature {
            let qkv = RowsMut { values: &mut *qkv, stride: width };
            scale_by_position(cpu, qkv, attention.q_width(), step.positions, temperature);
        }
        Ok(())
    }

    /// Latent attention's [`Operations::attention_input`].
    fn latent_input(&mut self, index: usize, weights: &layers::Latent) {
        let of_rotation = self.angles_of(index);
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
        let (cos, sin) = (&cos[of_rotation.clone()], &sin[of_rotation]);
        let key = LatentInput { of, weights, projected, cos, sin };
        let place = caches.place(index);
        latent.keys(cpu, caches.at(place), place.layer, step.located(place).slots, key);
        let key = LatentInput { of, weights, projected, cos, sin };
        latent.queries(model, cpu, key, input);
        profile.mark(Part::Products);
    }
}

/// Normalises queries, keys and values in `[rows, stride]` of `q | k | v` or only `q`, in place, as far as
/// the layer does so.
fn normalise_heads(
    cpu: &mut Cpu,
    (attention, stride, eps): (&AttentionSpec, usize, f32),
    layer: &Layer,
    qkv: &mut [f32],
) {
    let (heads, kv_heads) = (attention.heads, attention.kv_heads);
    if let Some(v_norm) = &layer.v_norm {
        rms_norm_heads(cpu, qkv, stride, heads + kv_heads..heads + 2 * kv_heads, v_norm, eps);
    }
    let Some((q_norm, k_norm)) = &layer.qk_norm else { return };
    // A whole-row norm sees all queries as head 0 and all keys as the one head behind them; heads are counted
    // in units of the keys' width.
    let (queries, keys) = match attention.qk_norm {
        QkNorm::Row => (0..1, heads / kv_heads..heads / kv_heads + 1),
        QkNorm::Heads | QkNorm::Unweighted | QkNorm::None => (0..heads, heads..heads + kv_heads),
    };
    rms_norm_heads(cpu, qkv, stride, queries, q_norm, eps);
    if !k_norm.is_empty() {
        rms_norm_heads(cpu, qkv, stride, keys, k_norm, eps);
    }
}

/// Normalises queries and keys of whole rows in `[rows, q | k]` of all ranks, in place. Queries are `group`
/// times as wide as the keys, `width`.
fn normalise_rows(cpu: &mut Cpu, group: usize, width: usize, eps: f32, layer: &Layer, rows: &mut [f32]) {
    let Some((q_norm, k_norm)) = &layer.qk_norm else { return };
    rms_norm_heads(cpu, rows, (group + 1) * width, 0..1, q_norm, eps);
    rms_norm_heads(cpu, rows, (group + 1) * width, group..group + 1, k_norm, eps);
}

/// Moves some rows of `values` `[any, width]` to the front; `rows` is ascending.
fn keep_rows(values: &mut [f32], rows: &[u32], width: usize) {
    for (to, from) in rows.iter().map(|row| *row as usize).enumerate() {
        values.copy_within(from * width..(from + 1) * width, to * width);
    }
}
