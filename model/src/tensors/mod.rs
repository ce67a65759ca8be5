//! The only list of a model's tensors: names, shapes and roles. Packing, upload, dummy weights, costs and the
//! memory plan use it.

mod list;
mod numbers;
mod place;
mod state;
mod stored_matrix;

use std::collections::HashMap;

use skein_kernels::leaves;

pub use super::role::{Product, Role};
use super::spec::Spec;
pub use list::{all, embedding, layer_embedding};
pub use place::Place;
pub use stored_matrix::{Columns, ColumnsOf, Stored, StoredMatrix};

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
    /// Column in the checkpoint of each input of a matrix; `None` if the order is the same. Such a matrix is
    /// not divided by its inputs.
    pub input_order: Option<Vec<usize>>,
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
            Kind::Matrix(Product::AttentionOutput, _) if self.role == Role::StateOutput => {
                leaves::count(self.cols, spec.state.map_or(1, |state| state.output_unit()))
            }
            Kind::Matrix(Product::AttentionOutput, _) => {
                let attention = self.layer.map_or(&spec.attention, |layer| spec.attention_of(layer));
                leaves::count(self.cols, attention.value_dim())
            }
            Kind::Matrix(Product::Down, _) => leaves::count(self.cols, 1),
            _ => 1,
        }
    }

    /// What is added to the stored weights of a norm before use. The norm of a state's output has none.
    pub fn norm_offset(&self, spec: &Spec) -> f32 {
        if self.kind == Kind::Norm && self.role != Role::StateNorm { spec.norm.offset } else { 0.0 }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
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

/// [`head`], if the model of `spec` computes logits.
pub fn logits_head<'a>(spec: &Spec, tensors: &'a [Tensor]) -> Option<&'a Tensor> {
    spec.pooled.is_none().then(|| head(tensors))
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

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::config::ModelConfig;

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
