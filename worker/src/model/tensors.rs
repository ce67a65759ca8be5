//! The only list of a model's tensors: names, shapes and roles. Packing, upload, dummy weights, costs and the
//! memory plan use it.

use std::collections::HashMap;
use std::ops::Range;

use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::leaves;

use super::LoadError;
use super::checkpoint::Weights;
use super::checkpoint::quantised::CodedMatrix;
use super::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, Fused, LatentSpec, NormKind, QkNorm, SharedSpec, Spec,
};

/// Role of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named as in the papers
pub enum Role {
    Embedding,
    AttentionNorm,
    Query,
    QueryDown,
    QueryUp,
    Latent,
    LatentNorm,
    HeadKey,
    HeadValue,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    Sinks,
    AttentionOutput,
    AttentionOutputNorm,
    FeedForwardNorm,
    Router,
    Gate,
    Up,
    Down,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    RouterCorrection,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedRouter,
    FeedForwardOutputNorm,
    LastNorm,
    Head,
}

impl Role {
    /// Number of roles.
    pub const COUNT: usize = Self::Head as usize + 1;
}

/// Groups of matrices that read the same input. A device may stack them and multiply once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// Query, key, value; with latent attention the latent, and the query or the vector it is projected from.
    Qkv,
    /// Attention output projection.
    AttentionOutput,
    /// Gate and up projections.
    GateUp,
    /// Down projection of the feed-forward network.
    Down,
    /// Queries from the vector of latent attention.
    QueryUp,
    /// A head's queries in terms of the latent.
    HeadKey,
    /// A head's output from what it attended to.
    HeadValue,
    /// Head, which computes logits.
    Logits,
    /// Choice of experts.
    Router,
}

impl Product {
    /// Products of every layer, in the order of a step. Their numbers are their indices here.
    pub const OF_A_LAYER: [Self; 4] = [Self::Qkv, Self::AttentionOutput, Self::GateUp, Self::Down];
}

/// How a tensor is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Embedding table: its rows are looked up, and a tied model also uses it as head.
    Table,
    /// Matrix of a product; its first row is this output of the product.
    Matrix(Product, usize),
    /// Bias of the matrix with the same role.
    Bias(Product, usize),
    /// Weights of a normalisation, stored without [`super::spec::NormSpec::offset`].
    Norm,
    /// Biases of a layer normalisation.
    NormBias,
    /// Other values, whose name in the checkpoint has no suffix.
    Values,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// First of its possible names in checkpoints.
    pub name: String,
    /// Layer index; `None` outside the layers.
    pub layer: Option<usize>,
    /// Expert index; `None` outside the experts.
    pub expert: Option<usize>,
    /// Query head of a matrix that only one head uses.
    pub head: Option<usize>,
    /// Role in the model.
    pub role: Role,
    /// Use of the tensor in computations.
    pub kind: Kind,
    /// Outputs of a matrix, or values of a vector.
    pub rows: usize,
    /// Inputs of a matrix; 1 for a vector.
    pub cols: usize,
    /// Where a checkpoint may store it; the first that exists is used.
    pub stored: Vec<Stored>,
    /// Index in the checkpoint of each value of a head; `None` if the order is the same.
    pub order: Option<Vec<usize>>,
}

/// A matrix as stored in a checkpoint.
#[derive(Clone)]
pub enum StoredMatrix {
    /// 16- or 32-bit numbers, or GGUF's blocks.
    Numbers(WeightMatrix),
    /// Codes of fewer bits.
    Codes(CodedMatrix),
    /// Outputs that are columns of a stored matrix.
    Columns(Columns),
}

/// A matrix whose outputs are some columns of a stored one. Packing copies them.
#[derive(Clone)]
pub struct Columns {
    /// The stored matrix, `[inputs, columns]`.
    pub stored: ColumnsOf,
    /// Column of the first output.
    pub first: usize,
    /// Columns from one output to the next.
    pub every: usize,
    /// Number of outputs.
    pub count: usize,
}

/// The matrix of [`Columns`].
#[derive(Clone)]
pub enum ColumnsOf {
    /// 16- or 32-bit numbers.
    Numbers(WeightMatrix),
    /// Codes, which are decoded to 32-bit numbers, because a group of inputs would be a part of a column.
    Codes(CodedMatrix),
}

impl ColumnsOf {
    /// Number of rows, which are inputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.rows(),
            Self::Codes(codes) => codes.rows(),
        }
    }
}

impl StoredMatrix {
    /// Number of outputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.rows(),
            Self::Codes(codes) => codes.rows(),
            Self::Columns(columns) => columns.count,
        }
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.cols(),
            Self::Codes(codes) => codes.cols(),
            Self::Columns(columns) => columns.stored.rows(),
        }
    }

    /// Whether weights have fewer than 16 bits.
    pub fn is_quantised(&self) -> bool {
        match self {
            Self::Numbers(numbers) => numbers.storage().blocks().is_some(),
            Self::Codes(_) => true,
            Self::Columns(_) => false,
        }
    }

    /// Size of the weights, in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len_bytes(),
            Self::Codes(codes) => codes.len_bytes(),
            Self::Columns(Columns { stored: ColumnsOf::Numbers(stored), count, .. }) => {
                stored.storage().bytes_of(stored.rows() * count)
            }
            Self::Columns(Columns { stored: ColumnsOf::Codes(stored), .. }) => stored.len_bytes(),
        }
    }

    /// The part with these rows and columns.
    ///
    /// # Errors
    /// If it cannot be split there.
    ///
    /// # Panics
    /// If the matrix has no such rows and columns.
    pub fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Result<Self, LoadError> {
        match self {
            Self::Numbers(numbers) => Ok(Self::Numbers(numbers.part(rows, cols))),
            Self::Codes(codes) => codes.part(rows, cols).map(Self::Codes),
            Self::Columns(Columns { stored, first, every, .. }) => {
                let stored = match stored {
                    ColumnsOf::Numbers(numbers) => ColumnsOf::Numbers(numbers.part(cols, 0..numbers.cols())),
                    ColumnsOf::Codes(codes) => ColumnsOf::Codes(codes.part(cols, 0..codes.cols())?),
                };
                let (first, every, count) = (first + rows.start * every, *every, rows.len());
                Ok(Self::Columns(Columns { stored, first, every, count }))
            }
        }
    }
}

/// Location of a tensor in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Name of the stored tensor.
    pub name: String,
    /// Shape of the stored tensor.
    pub shape: Vec<usize>,
    /// First row of the tensor within the stored one, which may have more rows.
    pub first_row: usize,
    /// Which values from that row on are the tensor's outputs.
    pub place: Place,
}

/// Outputs of a tensor within a stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Consecutive rows of the tensor.
    Rows,
    /// Rows that are this many apart.
    EveryRow(usize),
    /// Columns; each row is an input.
    Columns {
        /// Column of the first output.
        first: usize,
        /// Columns from one output to the next.
        every: usize,
    },
}

impl Tensor {
    /// Shape of the first stored tensor.
    pub fn shape(&self) -> Vec<usize> {
        self.stored[0].shape.clone()
    }

    /// Number of leaves of the sums over its inputs: several if ranks may split the matrix by its inputs,
    /// which they do by whole heads.
    pub fn leaves(&self, spec: &Spec) -> usize {
        match self.kind {
            Kind::Matrix(Product::AttentionOutput, _) => leaves::count(self.cols, spec.attention.value_dim()),
            Kind::Matrix(Product::Down, _) => leaves::count(self.cols, 1),
            _ => 1,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds the tensor in `weights`: a matrix, or a vector as one row. Heads have the checkpoint's order.
    ///
    /// # Errors
    /// If it is missing or has the wrong type or shape.
    pub fn find_stored(&self, weights: &Weights) -> Result<WeightMatrix, LoadError> {
        match (self.find_numbers(weights)?, self.kind) {
            (
                StoredMatrix::Columns(Columns { stored: ColumnsOf::Numbers(stored), first, every, count }),
                _,
            ) => {
                let columns = stored.columns(first, every, count);
                let is_vector = !matches!(self.kind, Kind::Table | Kind::Matrix(..));
                let (rows, cols) = if is_vector { (1, count) } else { (count, columns.cols()) };
                Ok(WeightMatrix::new(columns.storage().clone(), rows, cols))
            }
            (StoredMatrix::Numbers(numbers), Kind::Table | Kind::Matrix(..)) => Ok(numbers),
            (StoredMatrix::Numbers(numbers), _) => {
                Ok(WeightMatrix::new(numbers.storage().clone(), 1, self.rows))
            }
            (StoredMatrix::Codes(_) | StoredMatrix::Columns(_), _) => {
                unreachable!("only numbers are looked for")
            }
        }
    }

    /// Finds the tensor's numbers in `weights`: a matrix, or a vector as one column.
    fn find_numbers(&self, weights: &Weights) -> Result<StoredMatrix, LoadError> {
        let exists = self.stored.iter().find(|stored| weights.contains(&stored.name));
        let Stored { name, shape, first_row, place } = exists.unwrap_or(&self.stored[0]);
        let read = |rows: usize| weights.rows(name, shape, *first_row..*first_row + rows);
        Ok(match *place {
            Place::Rows => StoredMatrix::Numbers(WeightMatrix::new(read(self.rows)?, self.rows, self.cols)),
            Place::EveryRow(every) => {
                let rows = (self.rows - 1) * every + 1;
                StoredMatrix::Numbers(WeightMatrix::new(read(rows)?, rows, self.cols).every_row(every))
            }
            Place::Columns { first, every } => {
                let columns = shape[shape.len() - 1];
                let stored = ColumnsOf::Numbers(WeightMatrix::new(read(self.cols)?, self.cols, columns));
                StoredMatrix::Columns(Columns { stored, first, every, count: self.rows })
            }
        })
    }

    /// Finds a matrix in `weights`, as numbers or as codes. Heads have the checkpoint's order.
    ///
    /// # Errors
    /// If it is missing or has the wrong type or shape.
    pub fn find_matrix(&self, weights: &Weights) -> Result<StoredMatrix, LoadError> {
        if weights.scheme().is_some() && !self.stored.iter().any(|stored| weights.has_numbers(&stored.name)) {
            for stored in &self.stored {
                if let Some(codes) = self.find_codes(weights, stored)? {
                    return Ok(codes);
                }
            }
        }
        self.find_numbers(weights)
    }

    /// Finds the matrix in `weights` as codes stored there.
    fn find_codes(&self, weights: &Weights, stored: &Stored) -> Result<Option<StoredMatrix>, LoadError> {
        let Stored { name, shape, first_row, place } = stored;
        let (last, outer) = shape.split_last().unwrap_or_else(|| unreachable!("a shape has sizes"));
        let codes = |outer: &[usize]| weights.codes(name, (outer.iter().product(), *last));
        Ok(match *place {
            Place::Rows => {
                codes(outer)?.map(|codes| StoredMatrix::Codes(codes.every(*first_row, 1, self.rows)))
            }
            Place::EveryRow(every) => {
                codes(outer)?.map(|codes| StoredMatrix::Codes(codes.every(*first_row, every, self.rows)))
            }
            // Formats of codes have outputs as rows: a matrix that is turned, not a tensor of experts.
            Place::Columns { first, every } if outer.len() == 1 => codes(outer)?.map(|codes| {
                let stored = ColumnsOf::Codes(codes.every(*first_row, 1, self.cols));
                StoredMatrix::Columns(Columns { stored, first, every, count: self.rows })
            }),
            Place::Columns { .. } => None,
        })
    }

    /// Row in the checkpoint of row `row` of a matrix.
    pub fn stored_row(&self, row: usize) -> usize {
        let Some(order) = &self.order else { return row };
        row / order.len() * order.len() + order[row % order.len()]
    }

    /// Like [`Tensor::find_stored`], with heads in the device's order; reordering copies them.
    ///
    /// # Errors
    /// If it is missing or has the wrong type or shape.
    pub fn find(&self, weights: &Weights) -> Result<WeightMatrix, LoadError> {
        self.find_stored(weights).map(|stored| self.in_order(stored))
    }

    /// `stored` with heads in the device's order.
    pub fn in_order(&self, stored: WeightMatrix) -> WeightMatrix {
        if self.order.is_none() {
            return stored;
        }
        let from = |row| self.stored_row(row);
        if matches!(self.kind, Kind::Matrix(..)) { stored.with_rows(from) } else { stored.with_columns(from) }
    }

    /// Values of a vector as applied: norms include their offset, and the last one the logits' factor.
    ///
    /// # Errors
    /// As for [`Tensor::find`].
    pub fn read(&self, spec: &Spec, weights: &Weights) -> Result<Vec<f32>, LoadError> {
        let mut values = vec![0.0; self.rows];
        self.find(weights)?.widen_row(0, &mut values);
        if self.kind == Kind::Norm && spec.norm.offset != 0.0 {
            values.iter_mut().for_each(|value| *value += spec.norm.offset);
        }
        if self.role == Role::LastNorm && spec.logits_scale != 1.0 {
            values.iter_mut().for_each(|value| *value *= spec.logits_scale);
        }
        Ok(values)
    }
}

/// All tensors of a model, in the order of a forward pass.
pub fn all(spec: &Spec) -> Vec<Tensor> {
    let mut list = List::new(spec);
    let (vocab, hidden) = (spec.vocab_size as usize, spec.hidden_size);
    list.embedding();
    for layer in 0..spec.layers.len() {
        list.layer = Some(layer);
        list.attention(&spec.attention);
        list.feed_forward(&spec.layers[layer].feed_forward);
    }
    list.layer = None;
    list.norm(Role::LastNorm, hidden);
    if !spec.is_tied {
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

/// The matrix of the last product: the head, or the embedding table of a tied model.
///
/// # Panics
/// If `tensors` does not come from [`all`].
pub fn head(tensors: &[Tensor]) -> &Tensor {
    let find = |role| tensors.iter().find(|tensor| tensor.role == role);
    find(Role::Head)
        .or_else(|| find(Role::Embedding))
        .unwrap_or_else(|| unreachable!("a model embeds tokens"))
}

/// Shape of a product, and whether it has a bias.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProductShape {
    /// Outputs: rows of all its matrices.
    pub rows: usize,
    /// Inputs of its matrices.
    pub cols: usize,
    /// Whether any of its matrices has a bias.
    pub has_bias: bool,
}

/// All products of `tensors`, by layer.
pub fn products(tensors: &[Tensor]) -> HashMap<(Option<usize>, Product), ProductShape> {
    let mut products: HashMap<_, ProductShape> = HashMap::new();
    for tensor in tensors {
        match tensor.kind {
            Kind::Matrix(product, _) => {
                let shape = products.entry((tensor.layer, product)).or_default();
                (shape.rows, shape.cols) = (shape.rows + tensor.rows, tensor.cols);
            }
            Kind::Bias(product, _) => {
                products.entry((tensor.layer, product)).or_default().has_bias = true;
            }
            Kind::Table | Kind::Norm | Kind::NormBias | Kind::Values => {}
        }
    }
    products
}

/// List under construction.
struct List<'a> {
    spec: &'a Spec,
    layer: Option<usize>,
    expert: Option<usize>,
    tensors: Vec<Tensor>,
}

/// A matrix of a product.
#[derive(Clone, Copy)]
struct Part {
    role: Role,
    rows: usize,
    /// Whether its rows belong to heads that are rotated.
    is_rotated: bool,
}

impl Part {
    fn new(role: Role, rows: usize) -> Self {
        Self { role, rows, is_rotated: false }
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

    fn attention(&mut self, attention: &AttentionSpec) {
        let (q_width, kv_width, hidden) = (attention.q_width(), attention.kv_width(), self.spec.hidden_size);
        let place = self.spec.norm.place;
        if place.has_inputs() {
            self.norm(Role::AttentionNorm, hidden);
        }
        let rotated = |role, rows| Part { role, rows, is_rotated: true };
        if let Some(latent) = &attention.latent {
            self.latent(attention.heads, latent);
            let (output, cols) =
                ([Part::new(Role::AttentionOutput, hidden)], attention.heads * latent.value_dim);
            return self.product(Product::AttentionOutput, &output, cols, attention.has_output_bias);
        }
        let inputs =
            [rotated(Role::Query, q_width), rotated(Role::Key, kv_width), Part::new(Role::Value, kv_width)];
        self.product(Product::Qkv, &inputs, hidden, attention.has_bias);
        let of_heads = match attention.qk_norm {
            QkNorm::None | QkNorm::Unweighted => None,
            QkNorm::Heads => Some((attention.head_dim, attention.head_dim)),
            QkNorm::Row => Some((q_width, kv_width)),
        };
        if let Some((query, key)) = of_heads {
            self.add(rotated(Role::QueryNorm, query), Kind::Norm, 1, &[]);
            self.add(rotated(Role::KeyNorm, key), Kind::Norm, 1, &[]);
        }
        if attention.has_sinks {
            self.add(Part::new(Role::Sinks, attention.heads), Kind::Values, 1, &[]);
        }
        let output = [Part::new(Role::AttentionOutput, hidden)];
        self.product(Product::AttentionOutput, &output, q_width, attention.has_output_bias);
        if place.has_outputs() {
            self.norm(Role::AttentionOutputNorm, hidden);
        }
    }

    /// Tensors of latent attention before the output projection.
    fn latent(&mut self, heads: usize, latent: &LatentSpec) {
        let LatentSpec { query_rank, rank, plain, rotated, value_dim, .. } = *latent;
        let queries = |role| Part { role, rows: heads * latent.query_dim(), is_rotated: true };
        let query = query_rank.map_or(queries(Role::Query), |rank| Part::new(Role::QueryDown, rank));
        let inputs = [Part { role: Role::Latent, rows: rank + rotated, is_rotated: true }, query];
        self.product(Product::Qkv, &inputs, self.spec.hidden_size, false);
        self.add(Part::new(Role::LatentNorm, rank), Kind::Norm, 1, &[]);
        if let Some(rank) = query_rank {
            self.add(Part::new(Role::QueryNorm, rank), Kind::Norm, 1, &[]);
            self.product(Product::QueryUp, &[queries(Role::QueryUp)], rank, false);
        }
        // One stored matrix has the rows of each head's keys and then values. Keys are needed turned.
        let (each, columns) = (plain + value_dim, Place::Columns { first: 0, every: 1 });
        for head in 0..heads {
            let shape = vec![heads * each, rank];
            let first_row = head * each;
            let key = (Product::HeadKey, rank, plain, first_row, columns);
            self.of_head(head, Role::HeadKey, key, shape.clone());
            let value = (Product::HeadValue, value_dim, rank, first_row + plain, Place::Rows);
            self.of_head(head, Role::HeadValue, value, shape);
        }
    }

    /// Adds a matrix of one head, which is part of a tensor with this shape.
    fn of_head(
        &mut self,
        head: usize,
        role: Role,
        (product, rows, cols, first_row, place): (Product, usize, usize, usize, Place),
        shape: Vec<usize>,
    ) {
        self.add(Part::new(role, rows), Kind::Matrix(product, 0), cols, &[]);
        let tensor = self.tensors.last_mut().unwrap_or_else(|| unreachable!("it was just added"));
        tensor.head = Some(head);
        for stored in &mut tensor.stored {
            (stored.shape, stored.first_row, stored.place) = (shape.clone(), first_row, place);
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
            self.product(Product::Router, &[Part::new(Role::Router, experts.count)], hidden, has_bias);
            for expert in 0..experts.count {
                self.expert = Some(expert);
                let inputs = [Role::ExpertGate, Role::ExpertUp].map(|role| Part::new(role, inner));
                self.product(Product::GateUp, &inputs, hidden, has_bias);
                self.product(Product::Down, &[Part::new(Role::ExpertDown, hidden)], inner, has_bias);
            }
            self.expert = None;
            self.beside_experts(experts);
        } else {
            let inputs = [Role::Gate, Role::Up].map(|role| Part::new(role, inner));
            let inputs = if network.is_gated { &inputs[..] } else { &inputs[1..] };
            self.product(Product::GateUp, inputs, hidden, has_bias);
            self.product(Product::Down, &[Part::new(Role::Down, hidden)], inner, has_bias);
        }
        if place.has_outputs() {
            self.norm(Role::FeedForwardOutputNorm, hidden);
        }
    }

    /// Tensors of a mixture other than its router and experts.
    fn beside_experts(&mut self, experts: ExpertsSpec) {
        if experts.has_correction {
            self.add(Part::new(Role::RouterCorrection, experts.count), Kind::Values, 1, &[]);
        }
        let Some(SharedSpec { inner_size, is_weighted }) = experts.shared else { return };
        let hidden = self.spec.hidden_size;
        let inputs = [Role::SharedGate, Role::SharedUp].map(|role| Part::new(role, inner_size));
        self.product(Product::GateUp, &inputs, hidden, false);
        self.product(Product::Down, &[Part::new(Role::SharedDown, hidden)], inner_size, false);
        if is_weighted {
            self.product(Product::Router, &[Part::new(Role::SharedRouter, 1)], hidden, false);
        }
    }

    fn norm(&mut self, role: Role, len: usize) {
        self.add(Part::new(role, len), Kind::Norm, 1, &[]);
        if self.spec.norm.kind == (NormKind::Layer { has_bias: true }) {
            self.add(Part::new(role, len), Kind::NormBias, 1, &[]);
        }
    }

    /// Adds the matrices and biases of a product.
    fn product(&mut self, product: Product, parts: &[Part], cols: usize, has_bias: bool) {
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
    fn add(&mut self, part: Part, kind: Kind, cols: usize, stack: &[Part]) {
        let stored: Vec<Stored> = (self.spec.names)(part.role)
            .iter()
            .flat_map(|name| self.stored(name, part, kind, cols, stack))
            .collect();
        let attention = &self.spec.attention;
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
        self.tensors.push(Tensor { name, layer, expert, head: None, role, kind, rows, cols, stored, order });
    }

    /// Locations of `part` in a tensor called `name`. Parts with the same name are consecutive rows of one
    /// tensor; if an expert's name has no `{}`, the tensor holds all experts.
    fn stored(&self, name: &str, part: Part, kind: Kind, cols: usize, stack: &[Part]) -> Vec<Stored> {
        let has_name = |other: &&Part| (self.spec.names)(other.role).contains(&name);
        let together = || stack.iter().filter(has_name);
        let rows_of = |parts: &mut dyn Iterator<Item = &Part>| parts.map(|part| part.rows).sum::<usize>();
        let all = rows_of(&mut together()).max(part.rows);
        let before = rows_of(&mut together().take_while(|other| other.role != part.role));
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
                vec![Stored { name, shape: of_rows(all), first_row: before, place: Place::Rows }]
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::model::config::ModelConfig;

    fn tensors(changes: &[(&str, serde_json::Value)]) -> Vec<Tensor> {
        let mut config = json!({
            "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 256,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
        });
        for (field, value) in changes {
            config[field] = value.clone();
        }
        all(&ModelConfig::parse(config.as_object().unwrap(), &Map::new()).unwrap().spec)
    }

    #[test]
    fn a_layer_is_listed_in_the_order_of_a_step() {
        let list = tensors(&[("attention_bias", json!(true))]);
        let of_first: Vec<_> = list
            .iter()
            .filter(|tensor| tensor.layer == Some(0))
            .map(|tensor| (tensor.name.strip_prefix("model.layers.0.").unwrap(), tensor.shape()))
            .collect();
        let expected: [(&str, &[usize]); 15] = [
            ("input_layernorm.weight", &[64]),
            ("self_attn.q_proj.weight", &[128, 64]),
            ("self_attn.q_proj.bias", &[128]),
            ("self_attn.k_proj.weight", &[64, 64]),
            ("self_attn.k_proj.bias", &[64]),
            ("self_attn.v_proj.weight", &[64, 64]),
            ("self_attn.v_proj.bias", &[64]),
            ("self_attn.q_norm.weight", &[32]),
            ("self_attn.k_norm.weight", &[32]),
            ("self_attn.o_proj.weight", &[64, 128]),
            ("self_attn.o_proj.bias", &[64]),
            ("post_attention_layernorm.weight", &[64]),
            ("mlp.gate_proj.weight", &[80, 64]),
            ("mlp.up_proj.weight", &[80, 64]),
            ("mlp.down_proj.weight", &[64, 80]),
        ];
        assert_eq!(of_first, expected.map(|(name, shape)| (name, shape.to_vec())));
        let outside: Vec<_> =
            list.iter().filter(|tensor| tensor.layer.is_none()).map(|it| &*it.name).collect();
        assert_eq!(outside, ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]);
    }

    #[test]
    fn experts_are_found_one_by_one_or_all_in_one_tensor() {
        let list = tensors(&[
            ("model_type", json!("mixtral")),
            ("num_local_experts", json!(3)),
            ("num_experts_per_tok", json!(2)),
        ]);
        let of = |role, expert| {
            list.iter().find(|it| (it.layer, it.expert, it.role) == (Some(1), Some(expert), role))
        };
        let up = &of(Role::ExpertUp, 2).unwrap().stored;
        let stored = |name: &str, shape: &[usize], first_row| Stored {
            name: name.into(),
            shape: shape.to_vec(),
            first_row,
            place: Place::Rows,
        };
        assert_eq!(up[0], stored("model.layers.1.block_sparse_moe.experts.2.w3.weight", &[80, 64], 0));
        assert_eq!(up[1], stored("model.layers.1.mlp.experts.gate_up_proj", &[3, 160, 64], 2 * 160 + 80));
        let down = &of(Role::ExpertDown, 1).unwrap().stored;
        assert_eq!(down[1], stored("model.layers.1.mlp.experts.down_proj", &[3, 64, 80], 64));
    }

    #[test]
    fn fused_projections_are_rows_of_one_tensor() {
        let list = tensors(&[("model_type", json!("phi3"))]);
        let of = |role| &list.iter().find(|it| it.layer == Some(0) && it.role == role).unwrap().stored[0];
        let rows = [Role::Query, Role::Key, Role::Value, Role::Gate, Role::Up].map(|role| {
            let stored = of(role);
            (stored.name.strip_prefix("model.layers.0.").unwrap(), stored.shape[0], stored.first_row)
        });
        let (qkv, gate_up) = ("self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight");
        assert_eq!(
            rows,
            [(qkv, 256, 0), (qkv, 256, 128), (qkv, 256, 192), (gate_up, 160, 0), (gate_up, 160, 80)]
        );
    }

    #[test]
    fn products_stack_what_reads_the_same_input() {
        let list = tensors(&[("attention_bias", json!(true)), ("tie_word_embeddings", json!(true))]);
        let products = products(&list);
        let shape = |rows, cols, has_bias| ProductShape { rows, cols, has_bias };
        let of_last = Product::OF_A_LAYER.map(|product| products[&(Some(1), product)]);
        let expected =
            [shape(256, 64, true), shape(64, 128, true), shape(160, 64, false), shape(64, 80, false)];
        assert_eq!(of_last, expected);
        assert_eq!(products.len(), 2 * Product::OF_A_LAYER.len(), "the embedding table is looked up");
        assert_eq!(head(&list).name, "model.embed_tokens.weight", "and multiplied with at the end");
        let firsts: Vec<_> = list
            .iter()
            .filter_map(|tensor| match tensor.kind {
                Kind::Matrix(Product::Qkv, first) if tensor.layer == Some(0) => Some(first),
                _ => None,
            })
            .collect();
        assert_eq!(firsts, [0, 128, 192]);
    }
}
