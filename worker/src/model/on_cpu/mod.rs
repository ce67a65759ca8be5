//! Llama (Touvron et al. 2023) and its kin: Mistral, Qwen2 with its biases, Qwen3 with its normalised heads.
//!
//! A pre-norm decoder: grouped-query attention with rotary positions, then a SwiGLU network, each added to the
//! residual stream.

pub mod pack;
pub mod packed_cache;
pub mod profile;

use std::ops::Range;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::attention::{self, Attention, Rows, attend};
use skein_kernels::cpu::embed::embed;
use skein_kernels::cpu::input::{Form, Input};
use skein_kernels::cpu::kv_cache::KvCache;
use skein_kernels::cpu::matmul::{Gated, Linear, Write, gated_matmul, matmul};
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::norm::{rms_norm_heads, rms_norm_into};
use skein_kernels::cpu::packed::Packed;
use skein_kernels::cpu::rope::{Projected, angles, inverse_frequencies, rotate_and_write};
use skein_kernels::gate::Gate;

use self::pack::Matrix;
use self::profile::{Part, Profile};
use crate::model::LoadError;
use crate::model::checkpoint::Weights;
use crate::model::config::ModelConfig;

/// The embedding's tensor, and the head's where it has one of its own.
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A model's weights and its forward pass.
pub struct Llama {
    config: ModelConfig,
    embedding: WeightMatrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Packed,
    /// Whether activations are rounded to bfloat16 where weights have it.
    bf16: bool,
    /// Rotary angles per position.
    frequencies: Vec<f32>,
    /// Bytes of the packed weights that a step reads.
    weight_bytes: u64,
}

struct Layer {
    attention_norm: Vec<f32>,
    q: Projection,
    k: Projection,
    v: Projection,
    /// `[head_dim]` each: normalise queries and keys head by head.
    qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    o: Projection,
    mlp_norm: Vec<f32>,
    gate: Projection,
    up: Projection,
    down: Projection,
}

/// Projections of a layer.
const PROJECTIONS: usize = 7;

struct Projection {
    weights: Packed,
    bias: Option<Vec<f32>>,
}

impl Projection {
    fn linear(&self) -> Linear<'_> {
        Linear { weights: &self.weights, bias: self.bias.as_deref() }
    }
}

/// The form of activations that all of `stack` take.
fn form(stack: &[Linear<'_>], bf16: bool) -> Form {
    let mut forms = stack.iter().map(|linear| linear.weights.layout().format.form(bf16));
    let first = forms.next().unwrap_or_default();
    if forms.all(|form| form == first) { first } else { Form::F32 } // integers are never mixed with others
}

/// One forward step's rows; see [`crate::backend::Batch`].
pub struct Step<'a> {
    /// `[rows]`
    pub tokens: &'a [u32],
    /// `[rows]`
    pub positions: &'a [u32],
    /// `[rows]`
    pub slots: &'a [u32],
    /// The rows by sequence.
    pub sequences: &'a [Rows<'a>],
    /// Rows whose logits are asked for, rising. All others end where the last layer has their keys and values.
    pub wanted: &'a [u32],
    /// The wanted rows by sequence, counted among themselves.
    pub wanted_sequences: &'a [Rows<'a>],
}

/// Activations, kept between steps. They grow to the largest step; memory that was never used costs none.
#[derive(Default)]
pub struct Activations {
    /// `[rows, hidden]`: the residual stream.
    x: Aligned<f32>,
    /// `[rows, hidden]` normalised, or `[rows, heads * head_dim]` attended: what is multiplied next.
    input: Input,
    /// `[rows, intermediate]`, likewise.
    gated: Input,
    /// `[rows, q | k | v]`
    qkv: Aligned<f32>,
    /// `[rows, heads * head_dim]`
    attended: Aligned<f32>,
    cos: Aligned<f32>,
    sin: Aligned<f32>,
    scores: attention::Scratch,
    /// Where the time goes; off unless asked for.
    pub(crate) profile: Profile,
}

impl Llama {
    /// Finds and checks every weight of the model; `pack` packs what steps multiply with, in that order: the layers' matrices,
    /// then the head. The embedding is not among them, even where it is the head: its rows are looked up where they lie.
    /// `bf16`: activations are rounded to bfloat16 where weights have it.
    ///
    /// # Errors
    /// A weight that is missing or has another shape; those of `pack`.
    pub fn load(
        config: ModelConfig,
        weights: &Weights,
        bf16: bool,
        pack: impl FnOnce(&[Matrix]) -> Result<Vec<Packed>, LoadError>,
    ) -> Result<Self, LoadError> {
        let (vocab, hidden) = (config.vocab_size as usize, config.hidden_size);
        let embedding = weights.matrix(EMBEDDING, vocab, hidden)?;
        let mut matrices = Vec::new();
        let mut vectors = Vec::new();
        for layer in 0..config.layers {
            vectors.push(Vectors::load(&config, weights, layer)?);
            for (name, rows, cols, _) in projections(&config) {
                let tensor = format!("model.layers.{layer}.{name}.weight");
                let weights = weights.matrix(&tensor, rows, cols)?;
                matrices.push(Matrix { tensor, weights, is_head: false });
            }
        }
        let (tensor, head) = match config.tie_word_embeddings {
            true => (EMBEDDING, embedding.clone()),
            false => (HEAD, weights.matrix(HEAD, vocab, hidden)?),
        };
        matrices.push(Matrix { tensor: tensor.to_owned(), weights: head, is_head: true });
        let norm = weights.vector("model.norm.weight", hidden)?;
        let packed = pack(&matrices)?;
        assert_eq!(packed.len(), matrices.len(), "every matrix is packed");
        let weight_bytes = packed.iter().map(|packed| packed.read_bytes() as u64).sum();
        let mut packed = packed.into_iter();
        let mut next = || packed.next().unwrap_or_else(|| unreachable!("they were counted"));
        let layers =
            vectors.into_iter().map(|vectors| Layer::new(vectors, std::array::from_fn(|_| next()))).collect();
        let head = next();
        let frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling);
        Ok(Self { config, embedding, layers, norm, head, bf16, frequencies, weight_bytes })
    }

    /// Bytes of weights that every step reads.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sets memory for steps of up to `rows` rows aside.
    pub fn activations(&self, rows: usize) -> Activations {
        let mut activations = Activations::default();
        activations.grow(&self.config, rows);
        activations
    }

    /// Runs all layers over `step`, writing its keys and values to `cache`. What is left are the wanted rows, for
    /// [`Llama::logits`].
    pub fn forward(
        &self,
        cpu: &mut Cpu,
        step: &Step<'_>,
        cache: &mut KvCache,
        activations: &mut Activations,
    ) {
        let c = &self.config;
        let rows = step.tokens.len();
        activations.grow(c, rows);
        let Activations { x, input, gated, qkv, attended, cos, sin, scores, profile } = activations;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let qkv_width = q_width + 2 * kv_width;
        let mut x = &mut x[..rows * c.hidden_size];
        let (mut qkv, mut attended) = (&mut qkv[..rows * qkv_width], &mut attended[..rows * q_width]);
        let mut sequences = step.sequences;
        let (cos, sin) = (&mut cos[..rows * c.head_dim / 2], &mut sin[..rows * c.head_dim / 2]);
        let scale = 1.0 / (c.head_dim as f32).sqrt();

        profile.start();
        embed(cpu, &self.embedding, step.tokens, 1.0, x);
        angles(cpu, &self.frequencies, step.positions, cos, sin);
        profile.mark(Part::Embed);
        for (i, layer) in self.layers.iter().enumerate() {
            let stack = [layer.q.linear(), layer.k.linear(), layer.v.linear()];
            rms_norm_into(cpu, x, &layer.attention_norm, c.rms_norm_eps, form(&stack, self.bf16), input);
            profile.mark(Part::Encode);
            matmul(cpu, input, &stack, qkv, Write::Set);
            profile.mark(Part::Products);
            if let Some((q_norm, k_norm)) = &layer.qk_norm {
                rms_norm_heads(cpu, qkv, qkv_width, 0..c.heads, q_norm, c.rms_norm_eps);
                rms_norm_heads(cpu, qkv, qkv_width, c.heads..c.heads + c.kv_heads, k_norm, c.rms_norm_eps);
            }
            let slots = step.slots;
            rotate_and_write(cpu, cache, i, Projected { qkv, heads: c.heads, cos, sin, slots });
            if i + 1 == self.layers.len() && step.wanted.len() < rows {
                // Nobody reads what this layer makes of the others.
                x = keep_rows(x, step.wanted, c.hidden_size);
                qkv = keep_rows(qkv, step.wanted, qkv_width);
                attended = &mut attended[..step.wanted.len() * q_width];
                sequences = step.wanted_sequences;
            }
            profile.mark(Part::Cache);
            let (stride, heads) = (qkv_width, c.heads);
            let query = Attention {
                cache,
                layer: i,
                q: qkv,
                stride,
                heads,
                scale,
                window: None,
                softcap: None,
                sinks: None,
            };
            attend(cpu, &query, sequences, attended, scores);
            profile.mark(Part::Attention);
            let stack = [layer.o.linear()];
            input.set(cpu, form(&stack, self.bf16), attended, q_width);
            profile.mark(Part::Encode);
            matmul(cpu, input, &stack, x, Write::Add);
            profile.mark(Part::Products);

            let [gate, up, down] = [&layer.gate, &layer.up, &layer.down].map(Projection::linear);
            let gate_form = form(&[gate, up], self.bf16);
            rms_norm_into(cpu, x, &layer.mlp_norm, c.rms_norm_eps, gate_form, input);
            profile.mark(Part::Encode);
            let both = Gated { by: Gate::Silu, gate, up };
            gated_matmul(cpu, input, both, form(&[down], self.bf16), gated);
            profile.mark(Part::Products);
            matmul(cpu, gated, &[down], x, Write::Add);
            profile.mark(Part::Products);
        }
    }

    /// Logits of some of the last step's wanted rows: `[rows, vocab]`.
    pub fn logits(
        &self,
        cpu: &mut Cpu,
        rows: Range<usize>,
        activations: &mut Activations,
        logits: &mut [f32],
    ) {
        let Activations { x, input, profile, .. } = activations;
        let hidden = self.config.hidden_size;
        let x = &x[rows.start * hidden..rows.end * hidden];
        let stack = [(&self.head).into()];
        profile.start();
        rms_norm_into(cpu, x, &self.norm, self.config.rms_norm_eps, form(&stack, self.bf16), input);
        profile.mark(Part::Encode);
        matmul(cpu, input, &stack, logits, Write::Set);
        profile.mark(Part::Head);
    }
}

/// Moves some rows of `values`, `[any, width]`, to its start; `rows` rise. Those alone are left.
fn keep_rows<'a>(values: &'a mut [f32], rows: &[u32], width: usize) -> &'a mut [f32] {
    for (to, from) in rows.iter().map(|row| *row as usize).enumerate() {
        values.copy_within(from * width..(from + 1) * width, to * width);
    }
    &mut values[..rows.len() * width]
}

/// The projections of a layer in the order of a step: tensor, outputs, inputs, whether there is a bias.
fn projections(config: &ModelConfig) -> [(&'static str, usize, usize, bool); PROJECTIONS] {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (q_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    [
        ("self_attn.q_proj", q_width, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_width, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_width, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_width, config.o_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ]
}

/// What a layer has beside its matrices.
struct Vectors {
    attention_norm: Vec<f32>,
    qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    mlp_norm: Vec<f32>,
    /// Of [`projections`].
    biases: [Option<Vec<f32>>; PROJECTIONS],
}

impl Vectors {
    fn load(config: &ModelConfig, weights: &Weights, layer: usize) -> Result<Self, LoadError> {
        let vector = |name: &str, len| weights.vector(&format!("model.layers.{layer}.{name}"), len);
        let norm = |name: &str, len| vector(&format!("{name}.weight"), len);
        let head_norm = |name: &str| norm(name, config.head_dim);
        let qk_norm = || Ok((head_norm("self_attn.q_norm")?, head_norm("self_attn.k_norm")?));
        let mut biases = [const { None }; PROJECTIONS];
        for (bias, (name, rows, _, has_bias)) in biases.iter_mut().zip(projections(config)) {
            *bias = has_bias.then(|| vector(&format!("{name}.bias"), rows)).transpose()?;
        }
        Ok(Self {
            attention_norm: norm("input_layernorm", config.hidden_size)?,
            qk_norm: config.qk_norm.then(qk_norm).transpose()?,
            mlp_norm: norm("post_attention_layernorm", config.hidden_size)?,
            biases,
        })
    }
}

impl Layer {
    /// With its matrices, in the order of [`projections`].
    fn new(vectors: Vectors, weights: [Packed; PROJECTIONS]) -> Self {
        let Vectors { attention_norm, qk_norm, mlp_norm, mut biases } = vectors;
        let mut bias = biases.iter_mut().map(Option::take);
        let [q, k, v, o, gate, up, down] =
            weights.map(|weights| Projection { weights, bias: bias.next().flatten() });
        Self { attention_norm, q, k, v, qk_norm, o, mlp_norm, gate, up, down }
    }
}

impl Activations {
    fn grow(&mut self, c: &ModelConfig, rows: usize) {
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        for (values, width) in [
            (&mut self.x, c.hidden_size),
            (&mut self.qkv, q_width + 2 * kv_width),
            (&mut self.attended, q_width),
            (&mut self.cos, c.head_dim / 2),
            (&mut self.sin, c.head_dim / 2),
        ] {
            values.grow(rows * width);
        }
    }
}
