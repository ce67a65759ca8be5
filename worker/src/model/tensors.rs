//! The one list of a model's tensors: names, shapes and roles. Packing, upload, dummy weights, costs and the
//! memory plan use it, and nothing else describes a checkpoint's content.

use std::collections::HashMap;

use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::leaves;

use super::LoadError;
use super::checkpoint::Weights;
use super::spec::{AttentionSpec, FeedForwardSpec, Spec};

/// Role of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // named as in the papers
pub enum Role {
    Embedding,
    AttentionNorm,
    Query,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    AttentionOutput,
    AttentionOutputNorm,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
    FeedForwardOutputNorm,
    LastNorm,
    Head,
}

impl Role {
    /// Number of roles.
    pub const COUNT: usize = Self::Head as usize + 1;
}

/// Matrices that read the same input. A device may stack them and multiply once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// Query, key, value.
    Qkv,
    /// The attention output projection.
    AttentionOutput,
    /// Gate and up.
    GateUp,
    /// The down projection.
    Down,
    /// The head, which gives logits.
    Logits,
}

impl Product {
    /// The products of a layer, in the order of a step.
    pub const OF_A_LAYER: [Self; 4] = [Self::Qkv, Self::AttentionOutput, Self::GateUp, Self::Down];
}

/// How a tensor is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The embedding table: rows are looked up, and it is also the head of a tied model.
    Table,
    /// A matrix of a product; its first row is this output of the product.
    Matrix(Product, usize),
    /// Bias of the matrix with the same role.
    Bias(Product, usize),
    /// Weights of a normalisation, stored without [`super::spec::NormSpec::offset`].
    Norm,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Index of its layer; `None` outside the layers.
    pub layer: Option<usize>,
    /// Role in the model.
    pub role: Role,
    /// How it is used.
    pub kind: Kind,
    /// Outputs of a matrix, or values of a vector.
    pub rows: usize,
    /// Inputs of a matrix; 1 for a vector.
    pub cols: usize,
}

impl Tensor {
    /// Shape in the checkpoint.
    pub fn shape(&self) -> Vec<usize> {
        match self.kind {
            Kind::Table | Kind::Matrix(..) => vec![self.rows, self.cols],
            Kind::Bias(..) | Kind::Norm => vec![self.rows],
        }
    }

    /// Leaves of the sums over its inputs: several if ranks may share the matrix by its inputs, which they
    /// divide by whole heads.
    pub fn leaves(&self, spec: &Spec) -> usize {
        match self.kind {
            Kind::Matrix(Product::AttentionOutput, _) => leaves::count(self.cols, spec.attention.head_dim),
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

    /// Finds it in `weights`: a matrix, or a vector as one row.
    ///
    /// # Errors
    /// If it is missing, or has another type or shape.
    pub fn find(&self, weights: &Weights) -> Result<WeightMatrix, LoadError> {
        match self.kind {
            Kind::Table | Kind::Matrix(..) => weights.matrix(&self.name, self.rows, self.cols),
            Kind::Bias(..) | Kind::Norm => weights.row(&self.name, self.rows),
        }
    }

    /// The values of a vector as they are applied: norms with their offset.
    ///
    /// # Errors
    /// Those of [`Tensor::find`].
    pub fn read(&self, spec: &Spec, weights: &Weights) -> Result<Vec<f32>, LoadError> {
        let mut values = weights.vector(&self.name, self.rows)?;
        if self.kind == Kind::Norm && spec.norm.offset != 0.0 {
            values.iter_mut().for_each(|value| *value += spec.norm.offset);
        }
        Ok(values)
    }
}

/// All tensors of a model, in the order of a forward pass.
pub fn all(spec: &Spec) -> Vec<Tensor> {
    let mut list = List { spec, layer: None, tensors: Vec::new() };
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
        list.add(Role::Head, Kind::Matrix(Product::Logits, 0), vocab, hidden);
    }
    list.tensors
}

/// The embedding table, whose type is taken as the checkpoint's.
pub fn embedding(spec: &Spec) -> Tensor {
    let mut list = List { spec, layer: None, tensors: Vec::new() };
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
            Kind::Table | Kind::Norm => {}
        }
    }
    products
}

/// The list being built.
struct List<'a> {
    spec: &'a Spec,
    layer: Option<usize>,
    tensors: Vec<Tensor>,
}

impl List<'_> {
    fn embedding(&mut self) {
        self.add(Role::Embedding, Kind::Table, self.spec.vocab_size as usize, self.spec.hidden_size);
    }

    fn attention(&mut self, attention: &AttentionSpec) {
        let (q_width, kv_width, hidden) = (attention.q_width(), attention.kv_width(), self.spec.hidden_size);
        self.norm(Role::AttentionNorm, hidden);
        let inputs = [(Role::Query, q_width), (Role::Key, kv_width), (Role::Value, kv_width)];
        self.product(Product::Qkv, &inputs, hidden, attention.has_bias);
        if attention.has_qk_norm {
            self.norm(Role::QueryNorm, attention.head_dim);
            self.norm(Role::KeyNorm, attention.head_dim);
        }
        let output = [(Role::AttentionOutput, hidden)];
        self.product(Product::AttentionOutput, &output, q_width, attention.has_output_bias);
        self.output_norm(Role::AttentionOutputNorm);
    }

    fn feed_forward(&mut self, network: &FeedForwardSpec) {
        let (inner, hidden) = (network.inner_size, self.spec.hidden_size);
        self.norm(Role::FeedForwardNorm, hidden);
        self.product(Product::GateUp, &[(Role::Gate, inner), (Role::Up, inner)], hidden, network.has_bias);
        self.product(Product::Down, &[(Role::Down, hidden)], inner, network.has_bias);
        self.output_norm(Role::FeedForwardOutputNorm);
    }

    fn output_norm(&mut self, role: Role) {
        if self.spec.norm.is_sandwich {
            self.norm(role, self.spec.hidden_size);
        }
    }

    fn norm(&mut self, role: Role, len: usize) {
        self.add(role, Kind::Norm, len, 1);
    }

    /// Adds matrices of these outputs, with their biases.
    fn product(&mut self, product: Product, parts: &[(Role, usize)], cols: usize, has_bias: bool) {
        let mut first = 0;
        for &(role, rows) in parts {
            self.add(role, Kind::Matrix(product, first), rows, cols);
            if has_bias {
                self.add(role, Kind::Bias(product, first), rows, 1);
            }
            first += rows;
        }
    }

    fn add(&mut self, role: Role, kind: Kind, rows: usize, cols: usize) {
        let end = if matches!(kind, Kind::Bias(..)) { "bias" } else { "weight" };
        let name = (self.spec.name)(role);
        let name = match self.layer {
            Some(layer) => format!("model.layers.{layer}.{name}.{end}"),
            None => format!("{name}.{end}"),
        };
        self.tensors.push(Tensor { name, layer: self.layer, role, kind, rows, cols });
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
