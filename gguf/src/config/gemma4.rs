//! Gemma 4: heads, KV heads and networks that differ by layer.

use serde_json::{Map, Value as Json, json};

use super::{Keys, MAX_LAYERS};
use crate::GgufError;
use crate::metadata::Value;

/// RoPE theta of layers with a window, if a file omits it.
const LOCAL_THETA: f64 = 10_000.0;

/// Which layers have a window, and from which on they read the keys and values of earlier ones.
struct Layers {
    is_local: Vec<bool>,
    first_shared: usize,
}

impl Keys<'_> {
    /// Number of layers, checked: lists have an entry for each.
    fn layers(&self) -> Result<usize, GgufError> {
        let count = self.needed("block_count")?;
        let most = || self.wrong("block_count", &format!("a whole number from 1 to {MAX_LAYERS}"));
        (1..=MAX_LAYERS).contains(&count).then_some(count as usize).ok_or_else(most)
    }

    /// Reads an integer for each of `layers` layers; one counts for all of them.
    fn of_each_layer(&self, key: &str, layers: usize) -> Result<Vec<u64>, GgufError> {
        let wrong = || self.wrong(key, &format!("a whole number, or a list of {layers}, one for each layer"));
        let value = self.get(key).ok_or_else(wrong)?;
        let Some(list) = value.as_array() else {
            return value.as_u64().map(|number| vec![number; layers]).ok_or_else(wrong);
        };
        let numbers: Option<Vec<_>> = list.values().and_then(|values| values.map(Value::as_u64).collect());
        numbers.filter(|numbers| numbers.len() == layers).ok_or_else(wrong)
    }

    /// Outputs of the dense networks, which are twice as many in layers that share keys and values.
    pub(super) fn gemma4_inner_size(&self) -> Result<u64, GgufError> {
        let sizes = self.of_each_layer("feed_forward_length", self.layers()?)?;
        Ok(sizes[0])
    }

    /// KV heads of the first layer. `per_layer_config` has those of each.
    pub(super) fn gemma4_kv_heads(&self) -> Result<u64, GgufError> {
        Ok(self.of_each_layer("attention.head_count_kv", self.layers()?)?[0])
    }

    pub(super) fn gemma4(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let layers = self.gemma4_layers()?;
        let shared = layers.is_local.len() - layers.first_shared;
        let kinds = |is_local: &bool| if *is_local { "sliding_attention" } else { "full_attention" };
        let own = &layers.is_local[..layers.first_shared];
        let has_values = |layer: usize| self.has(&format!("blk.{layer}.attn_v.weight"));
        let mut global = own.iter().enumerate().filter(|(_, is_local)| !**is_local).map(|(layer, _)| layer);
        let has_keys_as_values = global.any(|layer| !has_values(layer));
        let table = self.model.tensor("per_layer_token_embd.weight").and_then(|table| table.shape.first());
        let width = self.whole("embedding_length_per_layer_input")?.unwrap_or(0);
        for (field, value) in [
            ("layer_types", json!(layers.is_local.iter().map(kinds).collect::<Vec<_>>())),
            ("sliding_window", json!(self.needed("attention.sliding_window")?)),
            ("num_kv_shared_layers", json!(shared)),
            ("use_double_wide_mlp", json!(self.has_double_networks(&layers)?)),
            ("attention_k_eq_v", json!(has_keys_as_values)),
            ("per_layer_config", self.heads_by_layer(&layers)?),
            ("hidden_size_per_layer_input", json!(width)),
            ("vocab_size_per_layer_input", json!(table)),
            ("final_logit_softcapping", json!(self.real("final_logit_softcapping")?)),
            ("rope_parameters", self.both_ropes()?),
        ] {
            config.insert(field.into(), value);
        }
        Ok(())
    }

    fn gemma4_layers(&self) -> Result<Layers, GgufError> {
        const WINDOWED: &str = "attention.sliding_window_pattern";
        let count = self.layers()?;
        let list = self.get(WINDOWED).and_then(Value::as_array).filter(|list| list.len() == count);
        let flags: Option<Vec<_>> = list.and_then(|list| list.values()?.map(Value::as_bool).collect());
        let wrong = || self.wrong(WINDOWED, &format!("a list of {count} booleans, one for each layer"));
        let is_local = flags.ok_or_else(wrong)?;
        let shared = self.whole("attention.shared_kv_layers")?.unwrap_or(0);
        let first = usize::try_from(shared).ok().and_then(|shared| count.checked_sub(shared));
        let allowed = || self.wrong("attention.shared_kv_layers", &format!("at most {count}"));
        Ok(Layers { is_local, first_shared: first.ok_or_else(allowed)? })
    }

    /// Whether layers without keys and values have networks of twice the size.
    fn has_double_networks(&self, layers: &Layers) -> Result<bool, GgufError> {
        const KEY: &str = "feed_forward_length";
        let sizes = self.of_each_layer(KEY, layers.is_local.len())?;
        let (own, shared) = sizes.split_at(layers.first_shared);
        let is = |part: &[u64], size: u64| part.iter().all(|each| *each == size);
        let double = sizes[0].saturating_mul(2);
        match (is(own, sizes[0]), is(shared, sizes[0]), is(shared, double)) {
            (true, true, _) => Ok(false),
            (true, _, true) => Ok(true),
            _ => {
                let from = layers.first_shared;
                Err(self.wrong(KEY, &format!("one number, or twice it in the layers from {from} on")))
            }
        }
    }

    /// Size of heads and number of KV heads of each layer.
    fn heads_by_layer(&self, layers: &Layers) -> Result<Json, GgufError> {
        const KV_HEADS: &str = "attention.head_count_kv";
        let kv_heads = self.of_each_layer(KV_HEADS, layers.is_local.len())?;
        let size = |end: &str| {
            let (key, value) = (format!("attention.key_length{end}"), format!("attention.value_length{end}"));
            let size = self.needed(&key)?;
            if self.whole(&value)?.is_some_and(|other| other != size) {
                return Err(self.wrong(&value, &format!("equal to {key}, {size}")));
            }
            Ok(size)
        };
        let (global, local) = (size("")?, size("_swa")?);
        let mut by_layer = Map::new();
        for (layer, (is_local, own)) in layers.is_local.iter().zip(&kv_heads).enumerate() {
            let same = layers.is_local.iter().zip(&kv_heads).find(|(other, _)| *other == is_local);
            if same.is_some_and(|(_, first)| first != own) {
                let allowed = "equal in all layers with a window, and in all without one";
                return Err(self.wrong(KV_HEADS, allowed));
            }
            let head_dim = if *is_local { local } else { global };
            by_layer.insert(layer.to_string(), json!({"head_dim": head_dim, "num_key_value_heads": own}));
        }
        Ok(by_layer.into())
    }

    /// Rotations of layers with and without a window. A tensor of factors says which pairs of the latter
    /// rotate: 1 for those, and a very large number for the others.
    fn both_ropes(&self) -> Result<Json, GgufError> {
        const FACTORS: &str = "rope_freqs.weight";
        let local = self.real("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
        let local = json!({"rope_type": "default", "rope_theta": local});
        let mut global = json!({"rope_type": "proportional", "rope_theta": self.real("rope.freq_base")?});
        let scaling = self.get("rope.scaling.type").and_then(Value::as_str);
        if scaling.is_some_and(|kind| kind != "none") {
            return Err(self.wrong("rope.scaling.type", "none"));
        }
        if self.whole("rope.dimension_count_swa")? != self.whole("attention.key_length_swa")?
            && self.get("rope.dimension_count_swa").is_some()
        {
            return Err(self.wrong("rope.dimension_count_swa", "equal to attention.key_length_swa"));
        }
        if self.has(FACTORS) {
            let factors = self.factors(FACTORS)?;
            let rotated = factors.iter().take_while(|factor| **factor == 1.0).count();
            let pairs = self.needed("attention.key_length")? / 2;
            let is_rest_still = factors[rotated..].iter().all(|factor| *factor >= 1e20);
            if !is_rest_still || factors.len() as u64 != pairs {
                let what =
                    format!("{FACTORS} with other values than {pairs}, first 1 and then at least 1e20");
                return Err(self.model.unsupported(what));
            }
            let share = rotated as f64 / pairs as f64;
            // Rounded up, so that this share of all pairs is no fewer.
            global["partial_rotary_factor"] = json!(if share < 1.0 { share.next_up() } else { share });
        } else {
            global["partial_rotary_factor"] = json!(1.0);
        }
        Ok(json!({"full_attention": global, "sliding_attention": local}))
    }
}
