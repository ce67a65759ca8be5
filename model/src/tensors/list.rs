//! Builds the list of a model's tensors.

use super::{Kind, Place, Product, Role, Stored, Tensor};
use crate::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, Fused, LatentSpec, LayerInputSpec, NormKind, NormPlace,
    PositionTable, QkNorm, SharedSpec, Spec,
};
use crate::state_spec::Mixer;

/// All tensors of a model, in the order of a forward pass.
pub fn all(spec: &Spec) -> Vec<Tensor> {
    let mut list = List::new(spec);
    let (vocab, hidden) = (spec.vocab_size as usize, spec.hidden_size);
    list.embedding();
    list.beside_embedding();
    list.layer_embedding();
    for layer in 0..spec.layers.len() {
        list.layer = Some(layer);
        match (spec.layers[layer].mixer, &spec.state) {
            (Mixer::None, _) => {}
            (Mixer::State, Some(state)) => list.state(state),
            _ => list.attention(spec.attention_of(layer), spec.layers[layer].cache_of.is_none()),
        }
        if spec.layers[layer].feed_forward.exists() {
            list.feed_forward(&spec.layers[layer].feed_forward);
        }
        list.end_of_layer();
    }
    list.layer = None;
    if spec.has_last_norm() {
        list.norm(Role::LastNorm, hidden);
    }
    if !spec.is_tied && spec.pooled.is_none() {
        list.product(Product::Logits, &[Part::new(Role::Head, vocab)], hidden, false);
    }
    list.tensors
}

/// Embedding table, whose type counts as the checkpoint's.
pub fn embedding(spec: &Spec) -> Tensor {
    let mut list = List::new(spec);
    list.embedding();
    list.tensors.remove(0)
}

/// Table of the layers' own inputs, if they have any.
pub fn layer_embedding(spec: &Spec) -> Option<Tensor> {
    let mut list = List::new(spec);
    list.layer_embedding();
    list.tensors.into_iter().find(|tensor| tensor.role == Role::LayerEmbedding)
}

/// List under construction.
pub(super) struct List<'a> {
    pub spec: &'a Spec,
    layer: Option<usize>,
    expert: Option<usize>,
    pub tensors: Vec<Tensor>,
}

/// A matrix of a product.
#[derive(Clone, Copy)]
pub(super) struct Part {
    role: Role,
    rows: usize,
    /// Whether its rows belong to heads that are rotated.
    is_rotated: bool,
    /// Whether it comes after the others in a tensor that holds several parts.
    is_stored_last: bool,
    /// Groups of rows, if a tensor that holds several parts has the first group of each, then the second.
    groups: Option<usize>,
}

impl Part {
    pub fn new(role: Role, rows: usize) -> Self {
        Self { role, rows, is_rotated: false, is_stored_last: false, groups: None }
    }

    /// Its role and number of rows.
    pub fn size(&self) -> (Role, usize) {
        (self.role, self.rows)
    }

    /// The same, in a tensor that keeps the parts of each of so many groups together.
    pub fn grouped(self, groups: usize) -> Self {
        Self { groups: Some(groups), ..self }
    }
}

impl<'a> List<'a> {
    fn new(spec: &'a Spec) -> Self {
        Self { spec, layer: None, expert: None, tensors: Vec::new() }
    }

    fn embedding(&mut self) {
        let (rows, cols) = (self.spec.vocab_size as usize, self.spec.hidden_size);
        self.add(Part::new(Role::Embedding, rows), Kind::Table, cols, &[]);
    }

    /// What is added to the embeddings, and their norm.
    fn beside_embedding(&mut self) {
        let (hidden, types) = (self.spec.hidden_size, self.spec.token_types);
        if let Some(PositionTable { rows, .. }) = self.spec.position_table {
            self.add(Part::new(Role::Positions, rows), Kind::Table, hidden, &[]);
        }
        if types > 0 {
            self.add(Part::new(Role::TokenTypes, types), Kind::Table, hidden, &[]);
        }
        if self.spec.has_embedding_norm {
            self.norm(Role::EmbeddingNorm, hidden);
        }
    }

    /// Table of the layers' own inputs, and their projection from the embeddings.
    fn layer_embedding(&mut self) {
        let Some(LayerInputSpec { width, vocab_size }) = self.spec.layer_inputs else { return };
        let (all, hidden) = (self.spec.layers.len() * width, self.spec.hidden_size);
        self.add(Part::new(Role::LayerEmbedding, vocab_size), Kind::Table, all, &[]);
        self.product(Product::LayerInput, &[Part::new(Role::LayerInput, all)], hidden, false);
        self.norm(Role::LayerInputNorm, width);
    }

    /// Tensors that are used after a layer's feed-forward network.
    fn end_of_layer(&mut self) {
        let hidden = self.spec.hidden_size;
        if let Some(LayerInputSpec { width, .. }) = self.spec.layer_inputs {
            self.product(Product::LayerInputGate, &[Part::new(Role::LayerInputGate, width)], hidden, false);
            let output = [Part::new(Role::LayerInputOutput, hidden)];
            self.product(Product::LayerInputOutput, &output, width, false);
            self.norm(Role::LayerInputOutputNorm, hidden);
        }
        if self.spec.has_layer_scales {
            self.add(Part::new(Role::LayerScale, 1), Kind::Values, 1, &[]);
        }
    }

    /// Tensors of attention; only its queries if it has no keys and values of its own.
    fn attention(&mut self, attention: &AttentionSpec, has_keys: bool) {
        let (q_width, kv_width, hidden) = (attention.q_width(), attention.kv_width(), self.spec.hidden_size);
        let place = self.spec.norm.place;
        let has_norm = self.layer.is_none_or(|layer| self.spec.layers[layer].has_attention_norm);
        if place.has_inputs() && has_norm {
            self.norm(Role::AttentionNorm, hidden);
        }
        let rotated = |role, rows| Part { is_rotated: true, ..Part::new(role, rows) };
        if let Some(latent) = &attention.latent {
            self.latent(attention.heads, latent);
            let (output, cols) =
                ([Part::new(Role::AttentionOutput, hidden)], attention.heads * latent.value_dim);
            return self.product(Product::AttentionOutput, &output, cols, attention.has_output_bias);
        }
        let (query, key) = (rotated(Role::Query, q_width), rotated(Role::Key, kv_width));
        let value = Part::new(Role::Value, kv_width);
        if !has_keys {
            self.product(Product::Qkv, &[query], hidden, attention.has_bias);
        } else if attention.has_keys_as_values {
            self.product(Product::Qkv, &[query, key, value], hidden, attention.has_bias);
            self.keys_as_values();
        } else if attention.has_gate {
            let [query, gate] =
                [query, Part::new(Role::QueryGate, q_width)].map(|part| part.grouped(attention.heads));
            self.product(Product::Qkv, &[query, key, value, gate], hidden, attention.has_bias);
        } else {
            self.product(Product::Qkv, &[query, key, value], hidden, attention.has_bias);
        }
        let of_heads = match attention.qk_norm {
            QkNorm::None | QkNorm::Unweighted => None,
            QkNorm::Heads => Some((attention.head_dim, attention.head_dim)),
            QkNorm::Row => Some((q_width, kv_width)),
        };
        if let Some((query, key)) = of_heads {
            self.add(rotated(Role::QueryNorm, query), Kind::Norm, 1, &[]);
            if has_keys {
                self.add(rotated(Role::KeyNorm, key), Kind::Norm, 1, &[]);
            }
        }
        if attention.has_sinks {
            self.add(Part::new(Role::Sinks, attention.heads), Kind::Values, 1, &[]);
        }
        let output = [Part::new(Role::AttentionOutput, hidden)];
        self.product(Product::AttentionOutput, &output, q_width, attention.has_output_bias);
        if place != NormPlace::Inputs {
            self.norm(Role::AttentionOutputNorm, hidden);
        }
    }

    /// Lets the layer's values be stored where its keys are.
    fn keys_as_values(&mut self) {
        let layer = self.layer;
        let is_of = |tensor: &Tensor, role| tensor.layer == layer && tensor.role == role;
        let keys: Vec<Tensor> = self.tensors.iter().filter(|it| is_of(it, Role::Key)).cloned().collect();
        let values = self.tensors.iter_mut().filter(|tensor| is_of(tensor, Role::Value));
        for (value, key) in values.zip(keys) {
            (value.name, value.stored) = (key.name, key.stored);
        }
    }

    /// Tensors of latent attention before the output projection.
    fn latent(&mut self, heads: usize, latent: &LatentSpec) {
        let LatentSpec { query_rank, rank, plain, rotated, value_dim, .. } = *latent;
        let rotated_part = |role, rows| Part { is_rotated: true, ..Part::new(role, rows) };
        let queries = |role| rotated_part(role, heads * latent.query_dim());
        let query = query_rank.map_or(queries(Role::Query), |rank| Part::new(Role::QueryDown, rank));
        let inputs = [rotated_part(Role::Latent, rank + rotated), query];
        self.product(Product::Qkv, &inputs, self.spec.hidden_size, false);
        self.add(Part::new(Role::LatentNorm, rank), Kind::Norm, 1, &[]);
        if let Some(rank) = query_rank {
            self.add(Part::new(Role::QueryNorm, rank), Kind::Norm, 1, &[]);
            self.product(Product::QueryUp, &[queries(Role::QueryUp)], rank, false);
        }
        // One stored matrix has the rows of each head's keys and then values. Keys are needed turned. GGUF
        // files have a tensor for the turned keys of all heads, and one for the values.
        let (each, columns) = (plain + value_dim, Place::Columns { first: 0, every: 1 });
        for head in 0..heads {
            let (shape, first_row) = (vec![heads * each, rank], head * each);
            let key = HeadMatrix {
                product: Product::HeadKey,
                rows: rank,
                cols: plain,
                together: (shape.clone(), first_row, columns),
            };
            self.of_head(heads, head, Role::HeadKey, key);
            let value = HeadMatrix {
                product: Product::HeadValue,
                rows: value_dim,
                cols: rank,
                together: (shape, first_row + plain, Place::Rows),
            };
            self.of_head(heads, head, Role::HeadValue, value);
        }
    }

    /// Adds a matrix of one of `heads` heads.
    fn of_head(&mut self, heads: usize, head: usize, role: Role, matrix: HeadMatrix) {
        let HeadMatrix { product, rows, cols, together } = matrix;
        self.add(Part::new(role, rows), Kind::Matrix(product, 0), cols, &[]);
        let names = |role| (self.spec.names)(role).iter();
        let is_shared = |name: &str| {
            names(Role::HeadKey).chain(names(Role::HeadValue)).filter(|it| **it == name).count() > 1
        };
        let places: Vec<_> = (self.spec.names)(role)
            .iter()
            .map(|name| {
                let apart = (vec![heads, rows, cols], head * rows, Place::Rows);
                if is_shared(name) { together.clone() } else { apart }
            })
            .collect();
        let tensor = self.tensors.last_mut().unwrap_or_else(|| unreachable!("it was just added"));
        tensor.head = Some(head);
        for (stored, (shape, first_row, place)) in tensor.stored.iter_mut().zip(places) {
            (stored.shape, stored.first_row, stored.place) = (shape, first_row, place);
        }
    }

    fn feed_forward(&mut self, network: &FeedForwardSpec) {
        let (hidden, inner, has_bias) = (self.spec.hidden_size, network.inner_size, network.has_bias);
        let place = self.spec.norm.place;
        if place.has_inputs() && !self.spec.is_parallel {
            self.norm(Role::FeedForwardNorm, hidden);
        }
        if let Some(experts) = network.experts {
            let has_bias = experts.has_bias;
            if experts.has_own_norms {
                self.add(Part::new(Role::RouterScale, hidden), Kind::Values, 1, &[]);
                self.add(Part::new(Role::ExpertScales, experts.count), Kind::Values, 1, &[]);
                self.norm(Role::ExpertNorm, hidden);
                self.norm(Role::ExpertOutputNorm, hidden);
            }
            self.product(Product::Router, &[Part::new(Role::Router, experts.count)], hidden, has_bias);
            if let Some(latent) = experts.latent {
                self.product(Product::ExpertLatent, &[Part::new(Role::ExpertLatent, latent)], hidden, false);
                let output = [Part::new(Role::ExpertLatentOutput, hidden)];
                self.product(Product::ExpertLatentOutput, &output, latent, false);
            }
            let width = experts.latent.unwrap_or(hidden);
            for expert in 0..experts.count {
                self.expert = Some(expert);
                let inputs = [Role::ExpertGate, Role::ExpertUp].map(|role| Part::new(role, inner));
                self.product(Product::GateUp, network.inputs_of(&inputs), width, has_bias);
                self.product(Product::Down, &[Part::new(Role::ExpertDown, width)], inner, has_bias);
            }
            self.expert = None;
            self.beside_experts(network, experts);
        } else {
            let [gate, up] = [Role::Gate, Role::Up].map(|role| Part::new(role, inner));
            let inputs = [Part { is_stored_last: network.is_up_first, ..gate }, up];
            self.product(Product::GateUp, network.inputs_of(&inputs), hidden, has_bias);
            let down = [Part::new(Role::Down, hidden)];
            self.product(Product::Down, &down, inner, network.has_output_bias);
        }
        if place != NormPlace::Inputs {
            self.norm(Role::FeedForwardOutputNorm, hidden);
        }
    }

    /// Tensors of a mixture other than its router and experts.
    fn beside_experts(&mut self, network: &FeedForwardSpec, experts: ExpertsSpec) {
        if experts.has_correction {
            self.add(Part::new(Role::RouterCorrection, experts.count), Kind::Values, 1, &[]);
            self.or_as_a_row();
        }
        let Some(SharedSpec { inner_size, is_weighted }) = experts.shared else { return };
        let hidden = self.spec.hidden_size;
        let inputs = [Role::SharedGate, Role::SharedUp].map(|role| Part::new(role, inner_size));
        self.product(Product::GateUp, network.inputs_of(&inputs), hidden, false);
        self.product(Product::Down, &[Part::new(Role::SharedDown, hidden)], inner_size, false);
        if experts.has_own_norms {
            self.norm(Role::SharedOutputNorm, hidden);
        }
        if is_weighted {
            self.product(Product::Router, &[Part::new(Role::SharedRouter, 1)], hidden, false);
        }
    }

    /// Lets the last vector also be stored as the only row of a matrix.
    fn or_as_a_row(&mut self) {
        let tensor = self.tensors.last_mut().unwrap_or_else(|| unreachable!("it was just added"));
        let place = Place::Columns { first: 0, every: 1 };
        let as_row = |stored: &Stored| Stored { shape: vec![1, tensor.rows], place, ..stored.clone() };
        let rows: Vec<_> = tensor.stored.iter().map(as_row).collect();
        tensor.stored.extend(rows);
    }

    /// Lets the last vector be stored in any of these shapes.
    pub fn or_of_shapes(&mut self, shapes: &[Vec<usize>]) {
        let tensor = self.tensors.last_mut().unwrap_or_else(|| unreachable!("it was just added"));
        let in_shapes = |stored: &Stored| {
            let stored = stored.clone();
            shapes.iter().map(move |shape| Stored { shape: shape.clone(), ..stored.clone() })
        };
        tensor.stored = tensor.stored.iter().flat_map(in_shapes).collect();
    }

    pub fn norm(&mut self, role: Role, len: usize) {
        self.add(Part::new(role, len), Kind::Norm, 1, &[]);
        if self.spec.norm.kind == (NormKind::Layer { has_bias: true }) {
            self.add(Part::new(role, len), Kind::NormBias, 1, &[]);
        }
    }

    /// Adds the matrices and biases of a product.
    pub fn product(&mut self, product: Product, parts: &[Part], cols: usize, has_bias: bool) {
        let mut first = 0;
        for part in parts {
            self.add(*part, Kind::Matrix(product, first), cols, parts);
            if has_bias {
                self.add(*part, Kind::Bias(product, first), 1, parts);
            }
            first += part.rows;
        }
    }

    /// Adds the tensor of `part`, which belongs to the `stack` of its product.
    pub fn add(&mut self, part: Part, kind: Kind, cols: usize, stack: &[Part]) {
        let stored: Vec<Stored> = (self.spec.names)(part.role)
            .iter()
            .flat_map(|name| self.stored(name, part, kind, cols, stack))
            .collect();
        let attention = self.layer.map_or(&self.spec.attention, |layer| self.spec.attention_of(layer));
        let order = match (part.is_rotated, attention.latent) {
            (false, _) => None,
            (true, None) => attention.pairs.order(attention.head_dim),
            (true, Some(latent)) => {
                let plain = if part.role == Role::Latent { latent.rank } else { latent.plain };
                latent.order(plain, attention.pairs.is_interleaved)
            }
        };
        let (layer, expert, Part { role, rows, .. }) = (self.layer, self.expert, part);
        let name = stored[0].name.clone();
        let (head, input_order) = (None, None);
        let tensor = Tensor { name, layer, expert, head, role, kind, rows, cols, stored, order, input_order };
        self.tensors.push(tensor);
    }

    /// Locations of `part` in a tensor called `name`. Parts with the same name are rows of one tensor,
    /// consecutive or group by group; if an expert's name has no `{}`, the tensor holds all experts.
    fn stored(&self, name: &str, part: Part, kind: Kind, cols: usize, stack: &[Part]) -> Vec<Stored> {
        let has_name = |other: &&Part| (self.spec.names)(other.role).contains(&name);
        let together = || stack.iter().filter(has_name);
        let rows_of = |parts: &mut dyn Iterator<Item = &Part>| parts.map(|part| part.rows).sum::<usize>();
        let all = rows_of(&mut together()).max(part.rows);
        let is_before = |other: &&Part| !other.is_stored_last;
        let before = match part.is_stored_last {
            true => all - part.rows,
            false => rows_of(&mut together().take_while(|other| other.role != part.role).filter(is_before)),
        };
        let end = match kind {
            Kind::Bias(..) | Kind::NormBias => ".bias",
            Kind::Table | Kind::Matrix(..) | Kind::Norm => ".weight",
            Kind::Values => "",
        };
        let is_vector = !matches!(kind, Kind::Table | Kind::Matrix(..));
        let of_rows = |rows| if is_vector { vec![rows] } else { vec![rows, cols] };
        let prefix = self.layer.map_or(String::new(), |layer| format!("model.layers.{layer}."));
        let experts =
            self.spec.layers.get(self.layer.unwrap_or_default()).and_then(|it| it.feed_forward.experts);
        match (self.expert, experts) {
            (Some(expert), Some(experts)) if !name.contains("{}") => {
                let name = format!("{prefix}{name}");
                let (parts, index) = (together().count(), together().take_while(|it| it.role != part.role));
                let fused = FusedPart { name, cols, all, before, parts, index: index.count() };
                if is_vector { fused.biases(experts, expert) } else { fused.matrices(experts, expert) }
            }
            (expert, _) => {
                let name = expert.map_or(name.to_owned(), |expert| name.replace("{}", &expert.to_string()));
                let name = format!("{prefix}{name}{end}");
                let (first_row, place) = match part.groups.filter(|_| all > part.rows) {
                    None => (before, Place::Rows),
                    Some(groups) => {
                        let (len, every) = (part.rows / groups, all / groups);
                        (before / groups, Place::Runs { len, every })
                    }
                };
                vec![Stored { name, shape: of_rows(all), first_row, place }]
            }
        }
    }
}

impl FeedForwardSpec {
    /// The matrices that it has of `gate` and `up`.
    fn inputs_of<'a>(&self, gate_up: &'a [Part; 2]) -> &'a [Part] {
        if self.is_gated { gate_up } else { &gate_up[1..] }
    }
}

/// A matrix of one head.
struct HeadMatrix {
    product: Product,
    rows: usize,
    cols: usize,
    /// Shape of the tensor that holds keys and values of all heads, and the first row and the place there.
    together: (Vec<usize>, usize, Place),
}

/// A part of a tensor that holds all experts of a layer.
struct FusedPart {
    /// Name of the stored tensor.
    name: String,
    /// Inputs of its matrices.
    cols: usize,
    /// Outputs of all parts of an expert.
    all: usize,
    /// Outputs of the parts before this one.
    before: usize,
    /// Number of parts.
    parts: usize,
    /// Index of this part.
    index: usize,
}

impl FusedPart {
    /// Where the matrix of an expert may be.
    fn matrices(self, experts: ExpertsSpec, expert: usize) -> Vec<Stored> {
        let Self { name, cols, all, before, parts, index } = self;
        let by_outputs = vec![experts.count, all, cols];
        let by_inputs = |first, every| Stored {
            name: name.clone(),
            shape: vec![experts.count, cols, all],
            first_row: expert * cols,
            place: Place::Columns { first, every },
        };
        match experts.fused {
            Fused::Outputs => {
                let first_row = expert * all + before;
                vec![Stored { name, shape: by_outputs, first_row, place: Place::Rows }]
            }
            Fused::Inputs => vec![by_inputs(before, 1)],
            // Codes have the outputs as rows.
            Fused::Alternating => {
                let (numbers, place) = (by_inputs(index, parts), Place::EveryRow(parts));
                let first_row = expert * all + index;
                vec![numbers, Stored { name, shape: by_outputs, first_row, place }]
            }
        }
    }

    /// Where the biases of an expert are.
    fn biases(self, experts: ExpertsSpec, expert: usize) -> Vec<Stored> {
        let Self { name, all, before, parts, index, .. } = self;
        let (first, every) = match experts.fused {
            Fused::Alternating => (index, parts),
            Fused::Outputs | Fused::Inputs => (before, 1),
        };
        let (name, shape) = (format!("{name}_bias"), vec![experts.count, all]);
        vec![Stored { name, shape, first_row: expert, place: Place::Columns { first, every } }]
    }
}
