//! Rotary embeddings and their scaling.

use serde_json::{Map, Value as Json, json};

use super::Keys;
use crate::GgufError;

impl Keys<'_> {
    /// Sets the rotary embedding.
    pub(super) fn rope(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        if let Some(theta) = self.real("rope.freq_base")? {
            config.insert("rope_theta".into(), json!(theta));
        }
        let Some(context) = config["max_position_embeddings"].as_u64() else { return Ok(()) };
        if let Some(head_dim) = config.get("head_dim").and_then(Json::as_u64) {
            let rotated = self.whole("rope.dimension_count")?.unwrap_or(head_dim);
            config.insert("partial_rotary_factor".into(), json!(rotated as f64 / head_dim as f64));
        }
        let scaling = self.scaling(context)?;
        if !scaling.is_null() {
            config.insert("rope_scaling".into(), scaling);
        }
        Ok(())
    }

    /// Value of `rope_scaling`; null without scaling.
    fn scaling(&self, context: u64) -> Result<Json, GgufError> {
        let original = self.whole("rope.scaling.original_context_length")?;
        if self.has("rope_factors_long.weight") || self.has("rope_factors_short.weight") {
            return Ok(json!({
                "rope_type": "longrope",
                "long_factor": self.factors("rope_factors_long.weight")?,
                "short_factor": self.factors("rope_factors_short.weight")?,
                "attention_factor": self.real("rope.scaling.attn_factor")?,
                "original_max_position_embeddings": original.unwrap_or(context),
            }));
        }
        if self.has("rope_freqs.weight") {
            // The converters store Llama 3's scaling factors regardless of the context length.
            let factors = self.factors("rope_freqs.weight")?;
            return Ok(json!({
                "rope_type": "longrope", "long_factor": factors, "short_factor": factors,
                "attention_factor": 1.0, "original_max_position_embeddings": context,
            }));
        }
        let factor = match self.real("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.real("rope.scale_linear")?, // its name in old files
        };
        let kind = self.get("rope.scaling.type").map(|kind| kind.as_str().unwrap_or("?"));
        match (kind, factor) {
            (Some("none"), _) | (None, None) => Ok(Json::Null),
            (_, Some(1.0)) => Ok(Json::Null),
            (Some("linear") | None, Some(factor)) => Ok(json!({"rope_type": "linear", "factor": factor})),
            (Some("yarn"), Some(factor)) => self.yarn(factor, original.unwrap_or(context)),
            _ => Err(self.wrong("rope.scaling.type", "none, linear or yarn, with rope.scaling.factor")),
        }
    }

    fn yarn(&self, factor: f64, original: u64) -> Result<Json, GgufError> {
        let amplitude = match self.real("rope.scaling.attn_factor")? {
            Some(amplitude) => Some(amplitude),
            None => self.real("rope.scaling.yarn_attn_factor")?,
        };
        let mut scaling = json!({
            "rope_type": "yarn", "factor": factor,
            "attention_factor": amplitude,
            "original_max_position_embeddings": original,
            // The files do not record whether the range between the betas is rounded. GPT-OSS's is not.
            "truncate": self.name != "gpt-oss",
        });
        for (key, field) in
            [("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")]
        {
            if let Some(beta) = self.real(key)? {
                scaling[field] = json!(beta);
            }
        }
        // The converters multiply `mscale_all_dim` by a tenth, but not that of Ministral 3, which llama.cpp
        // does not read. It is `mscale`, too, in published models.
        let mscale = match self.real("rope.scaling.yarn_log_multiplier")? {
            _ if self.name == "mistral3" => Some(1.0),
            factor => factor.map(|factor| factor * 10.0),
        };
        if let Some(mscale) = mscale {
            (scaling["mscale"], scaling["mscale_all_dim"]) = (json!(mscale), json!(mscale));
        }
        Ok(scaling)
    }

    /// Reads the values of a small `f32` tensor.
    pub(super) fn factors(&self, name: &str) -> Result<Vec<f64>, GgufError> {
        const MOST: usize = 4096;
        let unsupported =
            || self.model.unsupported(format!("tensor {name} is not a list of up to {MOST} F32 values"));
        let tensor = self.model.tensor(name).ok_or_else(unsupported)?;
        if tensor.kind.name != "F32" || tensor.shape.len() != 1 || tensor.shape[0] > MOST {
            return Err(unsupported());
        }
        let bytes = self.model.bytes(name, 0..tensor.bytes.len()).ok_or_else(unsupported)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect())
    }
}
