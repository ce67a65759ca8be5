//! Weights mapped from GGUF files.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};
use skein_gguf::{GgufModel, ROTATES_ADJACENT, TensorInfo, is_gguf};
use skein_kernels::cpu::blocks::BlockType;
use skein_kernels::cpu::matrix::Storage;
use skein_sys::mapped::Bytes;

use crate::LoadError;
use crate::spec::{Fused, Published, Spec};
use crate::state_spec::{Mixer, StateSpec, StoredState};
use crate::tensors::Role;

/// Bytes that `sample` takes from the start, middle and end of a tensor.
const SAMPLE_BYTES: usize = 64;

/// Architectures whose converters tile the value heads of states.
const TILED: [&str; 2] = ["qwen35", "qwen35moe"];

/// A model stored as a GGUF file.
pub struct ModelFile(GgufModel);

impl ModelFile {
    /// Opens the model at `path` if it is a file rather than a directory.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Option<Self>, LoadError> {
        if is_gguf(path) { Ok(Some(Self(GgufModel::open(path)?))) } else { Ok(None) }
    }

    /// Equivalent of config.json.
    ///
    /// # Errors
    /// If the model is unsupported.
    pub fn config(&self) -> Result<Map<String, Value>, LoadError> {
        Ok(self.0.config()?)
    }

    /// Equivalent of tokenizer.json; `None` if the tokenizer is unsupported.
    pub fn tokenizer(&self) -> Option<Vec<u8>> {
        self.0.tokenizer().ok()
    }

    /// Digest of the tokenizer; `None` if it is unsupported.
    pub fn tokenizer_digest(&self) -> Option<u64> {
        self.0.tokenizer_digest()
    }

    /// How it makes a vector of a prompt, as a number of llama.cpp's `llama_pooling_type`; `None` if it does
    /// not.
    pub fn pooling_type(&self) -> Option<u64> {
        let architecture = self.0.get("general.architecture").and_then(skein_gguf::Value::as_str)?;
        self.0.get(&format!("{architecture}.pooling_type"))?.as_u64().filter(|kind| *kind != 0)
    }

    /// Adapts a spec of [`ModelFile::config`] to the file's tensors.
    pub fn adapt(&self, spec: &mut Spec) {
        let architecture = self.0.get("general.architecture").and_then(skein_gguf::Value::as_str);
        let (names_of, pairs, state) = (spec.names, spec.attention.pairs, spec.state);
        spec.published = Some(Published { names: names_of, pairs, state });
        spec.attention.pairs.is_interleaved = architecture.is_some_and(|it| ROTATES_ADJACENT.contains(&it));
        // Converters have already added the offset to the weights.
        spec.norm.offset = 0.0;
        for layer in &mut spec.layers {
            if let Some(experts) = &mut layer.feed_forward.experts {
                experts.fused = Fused::Outputs;
            }
        }
        if let Some(StateSpec::Space(space)) = &mut spec.state {
            space.has_negative_rates = true;
        }
        let with_state = spec.layers.iter().position(|layer| layer.mixer == Mixer::State);
        if let (Some(StateSpec::Delta(delta)), Some(layer)) = (&mut spec.state, with_state) {
            let has = |tensor: &str| self.0.tensor(&format!("blk.{layer}.{tensor}.weight")).is_some();
            delta.stored = StoredState {
                has_grouped_inputs: has("ssm_in"),
                has_grouped_rates: has("ssm_ba"),
                is_tiled: architecture.is_some_and(|it| TILED.contains(&it)),
                has_negative_rates: true,
            };
        }
        if let Some(StateSpec::KeyedDelta(delta)) = &mut spec.state {
            delta.has_negative_rates = true;
        }
        let has = |tensor: &str| self.0.tensor(&format!("blk.0.{tensor}.weight")).is_some();
        let has_fused_gate =
            spec.layers.first().is_some_and(|layer| layer.feed_forward.is_gated) && !has("ffn_gate");
        let has_one_part = spec.layers.iter().any(|layer| layer.mixer == Mixer::None);
        spec.names = match (has("attn_qkv") && spec.state.is_none(), has_fused_gate) {
            _ if has_one_part => one_norm_names,
            (true, _) => fused_names,
            (false, true) => gate_in_up,
            (false, false) => names,
        };
    }
}

/// Tensor names of a role, without layer and suffix.
fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["token_embd"],
        Role::Positions => &["position_embd"],
        Role::TokenTypes => &["token_types"],
        Role::EmbeddingNorm => &["token_embd_norm"],
        Role::AttentionNorm => &["attn_norm"],
        Role::Query | Role::QueryGate => &["attn_q"],
        Role::Key => &["attn_k"],
        Role::Value => &["attn_v"],
        Role::QueryNorm => &["attn_q_norm", "attn_q_a_norm"],
        Role::KeyNorm => &["attn_k_norm"],
        Role::QueryDown => &["attn_q_a"],
        Role::QueryUp => &["attn_q_b"],
        Role::Latent => &["attn_kv_a_mqa"],
        Role::LatentNorm => &["attn_kv_a_norm"],
        Role::HeadKey => &["attn_k_b", "attn_kv_b"],
        Role::HeadValue => &["attn_v_b", "attn_kv_b"],
        Role::Sinks => &["attn_sinks"],
        Role::AttentionOutput => &["attn_output"],
        Role::AttentionOutputNorm => &["post_attention_norm"],
        // Old files have all in one tensor.
        Role::StateInputGate => &["shortconv.in_proj"],
        Role::StateQuery => &["attn_qkv", "ssm_in", "attn_q"],
        Role::StateKey => &["attn_qkv", "ssm_in", "attn_k"],
        Role::StateValue => &["attn_qkv", "ssm_in", "shortconv.in_proj", "attn_v"],
        Role::StateGateDown => &["ssm_g_a"],
        Role::StateDecayDown => &["ssm_f_a"],
        Role::StateQueryTaps => &["ssm_conv1d_q.weight"],
        Role::StateKeyTaps => &["ssm_conv1d_k.weight"],
        Role::StateValueTaps => &["ssm_conv1d_v.weight"],
        Role::StateGate => &["attn_gate", "ssm_in", "shortconv.in_proj", "ssm_g_b"],
        Role::StateBeta => &["ssm_beta", "ssm_ba"],
        Role::StateDecay => &["ssm_alpha", "ssm_ba", "ssm_in", "ssm_f_b"],
        Role::StateTaps => &["ssm_conv1d.weight", "shortconv.conv.weight"],
        Role::StateTapsBias => &["shortconv.conv.bias", "ssm_conv1d.bias"],
        Role::StateSkip => &["ssm_d"],
        Role::StateDecayRate => &["ssm_a"],
        Role::StateDecayBias => &["ssm_dt.bias"],
        Role::StateNorm => &["ssm_norm"],
        Role::StateOutput => &["ssm_out", "shortconv.out_proj", "attn_output"],
        // Architectures without a norm on the attention's output call the next norm so.
        Role::FeedForwardNorm => &["ffn_norm", "post_attention_norm"],
        Role::Router => &["ffn_gate_inp"],
        Role::Gate => &["ffn_gate"],
        Role::Up => &["ffn_up"],
        Role::Down => &["ffn_down"],
        Role::ExpertLatent => &["ffn_latent_down"],
        Role::ExpertLatentOutput => &["ffn_latent_up"],
        Role::ExpertGate => &["ffn_gate_exps", "ffn_gate_up_exps"],
        Role::ExpertUp => &["ffn_up_exps", "ffn_gate_up_exps"],
        Role::ExpertDown => &["ffn_down_exps"],
        Role::RouterCorrection => &["exp_probs_b.bias"],
        // A network beside the experts of Gemma 4 has the names of one without experts.
        Role::SharedGate => &["ffn_gate_shexp", "ffn_gate"],
        Role::SharedUp => &["ffn_up_shexp", "ffn_up"],
        Role::SharedDown => &["ffn_down_shexp", "ffn_down"],
        Role::SharedRouter => &["ffn_gate_inp_shexp"],
        Role::FeedForwardOutputNorm => &["post_ffw_norm"],
        Role::LayerEmbedding => &["per_layer_token_embd"],
        Role::LayerInput => &["per_layer_model_proj"],
        Role::LayerInputNorm => &["per_layer_proj_norm"],
        Role::LayerInputGate => &["inp_gate"],
        Role::LayerInputOutput => &["proj"],
        Role::LayerInputOutputNorm => &["post_norm"],
        Role::LayerScale => &["layer_output_scale"],
        Role::RouterScale => &["ffn_gate_inp.scale"],
        Role::ExpertScales => &["ffn_down_exps.scale"],
        Role::ExpertNorm => &["pre_ffw_norm_2"],
        Role::ExpertOutputNorm => &["post_ffw_norm_2"],
        Role::SharedOutputNorm => &["post_ffw_norm_1"],
        // LFM2 calls it the norm of embeddings.
        Role::LastNorm => &["output_norm", "token_embd_norm"],
        Role::Head => &["output"],
    }
}

/// Like [`names`], for models whose layers have one part, and so one norm.
fn one_norm_names(role: Role) -> &'static [&'static str] {
    match role {
        Role::FeedForwardNorm => &["attn_norm"],
        role => names(role),
    }
}

/// Like [`names`], for models whose projection up contains the gate.
fn gate_in_up(role: Role) -> &'static [&'static str] {
    match role {
        Role::Gate | Role::Up => &["ffn_up"],
        role => names(role),
    }
}

/// Like [`gate_in_up`], for models whose queries, keys and values are one projection, too.
fn fused_names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Query | Role::Key | Role::Value => &["attn_qkv"],
        role => gate_in_up(role),
    }
}

/// Converts a name of [`names`] to the name in the file.
fn file_name(name: &str) -> String {
    let name = match name.strip_prefix("model.layers.") {
        Some(of_layer) => format!("blk.{of_layer}"),
        None => name.to_owned(),
    };
    match name.strip_suffix("_bias") {
        Some(matrices) => format!("{matrices}.bias"),
        None if [".weight", ".bias", ".scale", ".ssm_a", ".ssm_d"].iter().any(|end| name.ends_with(end)) => {
            name
        }
        None => format!("{name}.weight"),
    }
}

/// The weights of a model in GGUF files.
pub struct Weights(ModelFile);

impl Weights {
    pub fn new(file: ModelFile) -> Self {
        Self(file)
    }

    fn model(&self) -> &GgufModel {
        &self.0.0
    }

    pub fn will_need(&self) {
        self.model().maps().for_each(|map| map.will_need());
    }

    pub fn release(&self) {
        self.model().maps().for_each(|map| map.release());
    }

    pub fn stamp(&self, take: &mut dyn FnMut(&[u8])) {
        for map in self.model().maps() {
            let metadata = map.file().and_then(|file| file.metadata().ok());
            let written = metadata.and_then(|metadata| metadata.modified().ok());
            take(format!("{} {written:?}\n", map.len()).as_bytes());
        }
    }

    pub fn sample(&self, take: &mut dyn FnMut(&[u8])) {
        let mut tensors: Vec<&TensorInfo> = self.model().tensors().collect();
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for TensorInfo { name, kind, shape, bytes } in tensors {
            take(format!("{name} {} {shape:?}", kind.name).as_bytes());
            let len = bytes.len();
            for at in [0, len / 2, len.saturating_sub(SAMPLE_BYTES)] {
                if let Some(part) = self.model().bytes(name, at..len.min(at + SAMPLE_BYTES)) {
                    take(&part);
                }
            }
        }
    }

    pub fn file_bytes(&self) -> u64 {
        self.model().maps().map(|map| map.len() as u64).sum()
    }

    pub fn others_of_layers<'a>(&self, used: impl Iterator<Item = &'a str>) -> Vec<&str> {
        let used: HashSet<String> = used.map(file_name).collect();
        let names = self.model().tensors().map(|tensor| tensor.name.as_str());
        // Layers for further tokens, which nothing uses, have an own part; the rest of old rotations follows
        // from others.
        let is_known = |name: &str| name.contains(".nextn.") || name.contains(".attn_rot_embd");
        let mut others: Vec<&str> = names
            .filter(|name| name.starts_with("blk.") && !used.contains(*name) && !is_known(name))
            .collect();
        others.sort_unstable();
        others
    }

    pub fn contains(&self, name: &str) -> bool {
        self.model().tensor(&file_name(name)).is_some()
    }

    pub fn rows(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Storage, LoadError> {
        let name = file_name(name);
        let Some(tensor) = self.model().tensor(&name) else {
            let (expected, dir) = (format!("{shape:?}"), self.model().path().to_owned());
            return Err(LoadError::MissingTensor { tensor: name, expected, dir });
        };
        let path = || self.model().path_of(&name).unwrap_or(self.model().path()).to_owned();
        let got = tensor.kind.name;
        if !served().any(|kind| kind == got) {
            let supported = served().collect::<Vec<_>>().join(", ");
            return Err(LoadError::TensorType { path: path(), got, supported, tensor: name });
        }
        self.storage(tensor, shape, rows).ok_or_else(|| LoadError::WrongTensor {
            path: path(),
            got: format!("{got} {:?}", tensor.shape),
            expected: format!("{shape:?}"),
            tensor: name.clone(),
        })
    }

    /// Bytes of a range of a tensor's rows, if type, shape and range are supported.
    fn storage(&self, tensor: &TensorInfo, shape: &[usize], rows: Range<usize>) -> Option<Storage> {
        let outer = if shape.len() > 1 { &shape[..shape.len() - 1] } else { shape };
        let all: usize = outer.iter().product();
        // A matrix of one row is a vector in these files.
        let is_same = tensor.shape == shape || shape.first() == Some(&1) && tensor.shape == shape[1..];
        if !is_same || rows.end > all || all == 0 {
            return None;
        }
        let row_bytes = tensor.bytes.len() / all;
        let bytes = self.model().bytes(&tensor.name, rows.start * row_bytes..rows.end * row_bytes)?;
        stored(tensor.kind.name, bytes)
    }
}

/// Bytes as values of the type `kind`, if supported.
fn stored(kind: &str, bytes: Bytes) -> Option<Storage> {
    match kind {
        "F32" => Some(Storage::F32(bytes)),
        "F16" => Some(Storage::F16(bytes)),
        "BF16" => Some(Storage::Bf16(bytes)),
        _ => {
            let kind = BlockType::ALL.into_iter().find(|known| known.name() == kind)?;
            Some(Storage::Blocks(kind, bytes))
        }
    }
}

/// Names of the types that can be served.
fn served() -> impl Iterator<Item = &'static str> {
    ["F32", "F16", "BF16"].into_iter().chain(BlockType::ALL.iter().map(|kind| kind.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_file() {
        for (name, expected) in [
            ("model.layers.12.attn_q.weight", "blk.12.attn_q.weight"),
            ("model.layers.0.ffn_up_exps", "blk.0.ffn_up_exps.weight"),
            ("model.layers.0.ffn_up_exps_bias", "blk.0.ffn_up_exps.bias"),
            ("model.layers.3.attn_q.bias", "blk.3.attn_q.bias"),
            ("token_embd.weight", "token_embd.weight"),
            ("model.layers.2.ssm_a", "blk.2.ssm_a"),
            ("model.layers.2.ssm_d", "blk.2.ssm_d"),
            ("model.layers.2.ssm_dt.bias", "blk.2.ssm_dt.bias"),
            ("model.layers.1.ffn_gate_inp.scale", "blk.1.ffn_gate_inp.scale"),
            ("model.layers.1.layer_output_scale", "blk.1.layer_output_scale.weight"),
        ] {
            assert_eq!(file_name(name), expected);
        }
    }

    #[test]
    fn sizes_of_types_are_those_of_the_kernels() {
        for kind in BlockType::ALL {
            let known =
                (0..64).filter_map(skein_gguf::TensorType::of).find(|known| known.name == kind.name());
            let known = known.unwrap_or_else(|| panic!("{} is a type of files", kind.name()));
            assert_eq!(
                (known.values, known.bytes),
                (kind.form().values, kind.form().bytes),
                "{}",
                kind.name()
            );
        }
    }
}
