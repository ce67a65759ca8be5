//! Nemotron-H, whose layers are a mixer or a network by lists of one number for each layer.

use serde_json::{Map, Value as Json, json};

use super::Keys;
use crate::GgufError;

/// Architecture whose networks are mixtures of experts.
const WITH_EXPERTS: &str = "nemotron_h_moe";
/// `expert_gating_func` of the only way in which experts are chosen, by sigmoids.
const SIGMOID: u64 = 2;

impl Keys<'_> {
    /// Sets the kinds of the first `layers` layers and the width of a dense network. Returns how many KV
    /// heads the layers that attend have.
    ///
    /// As in llama.cpp, a layer with a network's width is a network, one of the others with KV heads attends,
    /// and the rest have a state.
    pub(super) fn kinds(
        &self,
        layers: u64,
        config: &mut Map<String, Json>,
    ) -> Result<Option<u64>, GgufError> {
        let of_heads = self.first_of_list("attention.head_count_kv", layers)?;
        let of_networks = self.first_of_list("feed_forward_length", layers)?;
        let network = if self.name == WITH_EXPERTS { "moe" } else { "mlp" };
        let kind = |(heads, inner): (&u64, &u64)| match (heads, inner) {
            (_, 1..) => network,
            (1.., 0) => "full_attention",
            (0, 0) => "linear_attention",
        };
        let kinds: Vec<&str> = of_heads.iter().zip(&of_networks).map(kind).collect();
        let is_network = |layer: usize| of_networks[layer] > 0;
        let inner = (0..kinds.len()).find(|layer| is_network(*layer)).map(|layer| of_networks[layer]);
        if of_networks.iter().any(|other| *other > 0 && Some(*other) != inner) {
            return Err(self.wrong("feed_forward_length", "one number for all layers with a network"));
        }
        let heads =
            || of_heads.iter().enumerate().filter(|(layer, heads)| **heads > 0 && !is_network(*layer));
        let some = heads().map(|(_, heads)| *heads).next();
        if heads().any(|(_, other)| Some(*other) != some) {
            return Err(self.wrong("attention.head_count_kv", "one number for all layers that attend"));
        }
        match inner {
            Some(inner) => drop(config.insert("intermediate_size".into(), json!(inner))),
            None => drop(config.remove("intermediate_size")),
        }
        config.insert("layers_block_type".into(), json!(kinds));
        Ok(some)
    }

    /// Numbers of the first `layers` layers, in a list of all.
    fn first_of_list(&self, key: &str, layers: u64) -> Result<Vec<u64>, GgufError> {
        let list = self.get(key).and_then(|value| value.as_array()?.values());
        let numbers: Option<Vec<u64>> = list.and_then(|list| list.map(|number| number.as_u64()).collect());
        let layers = usize::try_from(layers).ok();
        let numbers = layers.zip(numbers).and_then(|(layers, numbers)| Some(numbers.get(..layers)?.to_vec()));
        numbers.ok_or_else(|| self.wrong(key, "a list with a whole number for each layer"))
    }

    /// Sizes of its state, experts and biases.
    pub(super) fn nemotron_h(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let (heads, all) = (self.needed("ssm.time_step_rank")?, self.needed("ssm.inner_size")?);
        if heads == 0 || !all.is_multiple_of(heads) {
            return Err(self.wrong("ssm.inner_size", "a multiple of ssm.time_step_rank"));
        }
        let kinds = config["layers_block_type"].as_array().cloned().unwrap_or_default();
        let has_bias = |kind: &str, tensor: &str| {
            let layer = kinds.iter().position(|it| it == kind);
            layer.is_some_and(|layer| self.has(&format!("blk.{layer}.{tensor}.bias")))
        };
        for (field, value) in [
            ("mamba_num_heads", json!(heads)),
            ("mamba_head_dim", json!(all / heads)),
            ("n_groups", json!(self.needed("ssm.group_count")?)),
            ("ssm_state_size", json!(self.needed("ssm.state_size")?)),
            ("conv_kernel", json!(self.needed("ssm.conv_kernel")?)),
            ("use_conv_bias", json!(has_bias("linear_attention", "ssm_conv1d"))),
            ("mlp_bias", json!(has_bias("mlp", "ffn_up"))),
            ("attention_bias", json!(has_bias("full_attention", "attn_q"))),
        ] {
            config.insert(field.into(), value);
        }
        Ok(())
    }

    /// Its experts, `count` in a layer.
    pub(super) fn experts_of_nemotron_h(
        &self,
        count: u64,
        config: &mut Map<String, Json>,
    ) -> Result<(), GgufError> {
        if self.whole("expert_gating_func")?.is_some_and(|kind| kind != SIGMOID) {
            return Err(self.wrong("expert_gating_func", "2 (sigmoid)"));
        }
        let groups = self.whole("expert_group_count")?.unwrap_or(1);
        for (field, value) in [
            ("n_routed_experts", json!(count)),
            ("n_shared_experts", json!(self.whole("expert_shared_count")?.unwrap_or(1))),
            ("moe_intermediate_size", json!(self.needed("expert_feed_forward_length")?)),
            ("moe_shared_expert_intermediate_size", json!(self.needed("expert_shared_feed_forward_length")?)),
            ("moe_latent_size", json!(self.whole("moe_latent_size")?.filter(|size| *size > 0))),
            ("routed_scaling_factor", json!(self.real("expert_weights_scale")?.unwrap_or(1.0))),
            ("norm_topk_prob", json!(self.flag("expert_weights_norm")?)),
            ("n_group", json!(groups)),
            ("topk_group", json!(self.whole("expert_group_used_count")?.unwrap_or(groups))),
        ] {
            config.insert(field.into(), value);
        }
        Ok(())
    }
}
