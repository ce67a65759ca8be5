//! DeepSeek-V3.2 (DeepSeek-AI 2025): DeepSeek-V3 whose attention reads the `index_topk` positions that an
//! indexer scores best. In a sequence of at most as many tokens it reads all of them, as V3's does: so far it
//! is served, and the indexer is not used.

use serde_json::Value;

use super::deepseek::{V3_INNER, deepseek_v3, grouped_experts_of_v3, with_experts_by_type};
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::spec::Spec;

// Default of transformers' `DeepseekV32Config`.
const TOP: usize = 2048;

pub fn deepseek_v32(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = deepseek_v3(fields)?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(V3_INNER))?;
    let experts = grouped_experts_of_v3(fields, inner_size)?;
    with_experts_by_type(fields, &mut spec, (experts, inner_size))?;
    if !fields.is_absent("layer_types") {
        let types = fields.get("layer_types").and_then(Value::as_array);
        if types.is_none_or(|types| types.iter().any(|kind| kind != "indexed_attention")) {
            return Err(fields.wrong("layer_types", "indexed_attention for each layer".into()));
        }
    }
    spec.dense_up_to = Some(fields.size("index_topk", MAX_POSITIONS, Some(TOP))? as u32);
    Ok(spec)
}
