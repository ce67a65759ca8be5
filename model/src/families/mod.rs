//! Model families. Each converts its config.json to a [`Spec`], and consists of a file here and a line in
//! [`FAMILIES`].

mod bert;
mod cohere;
mod decoder;
mod deepseek;
mod deepseek_v32;
mod encoder;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod gte;
mod kimi_linear;
mod lfm2;
mod llama;
mod llama4;
mod minimax_m2;
mod ministral3;
mod mixtral;
mod modernbert;
mod names;
mod nemotron_h;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi3;
mod qwen;
mod qwen2_moe;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod starcoder2;
mod state_space;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::LoadError;
use super::fields::Fields;
use super::pooled_head::PooledHead;
use super::spec::Spec;

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// Reads and validates the family's fields.
    pub spec: fn(&Fields<'_>) -> Result<Spec, LoadError>,
    /// Sizes that its configurations may omit.
    pub sizes: &'static [(&'static str, u32)],
    /// Usual names of fields, and what its configurations call them instead.
    pub own_names: &'static [(&'static str, &'static str)],
    /// End of its models that classify.
    pub classifier: Classifier,
}

/// End of a model that classifies, from its fields, the width of rows, and the number of labels.
pub type Classifier = fn(&Fields<'_>, usize, usize) -> Result<PooledHead, LoadError>;

impl Family {
    const fn new(model_type: &'static str, spec: fn(&Fields<'_>) -> Result<Spec, LoadError>) -> Self {
        Self { model_type, spec, sizes: &[], own_names: &[], classifier: encoder::score }
    }
}

/// All supported families.
pub const FAMILIES: &[Family] = &[
    Family { classifier: encoder::classifier, ..Family::new("bert", bert::bert) },
    Family { classifier: encoder::roberta_classifier, ..Family::new("camembert", bert::roberta) },
    Family::new("cohere", cohere::cohere),
    Family::new("cohere2", cohere::cohere2),
    Family::new("deepseek_v2", deepseek::deepseek_v2),
    Family::new("deepseek_v3", deepseek::deepseek_v3),
    Family::new("deepseek_v32", deepseek_v32::deepseek_v32),
    Family::new("ernie4_5", ernie4_5::ernie4_5),
    Family::new("ernie4_5_moe", ernie4_5_moe::ernie4_5_moe),
    Family::new("exaone4", exaone4::exaone4),
    Family::new("gemma2", gemma2::gemma2),
    Family { sizes: gemma3::SIZES, ..Family::new("gemma3_text", gemma3::gemma3) },
    Family { sizes: gemma4::SIZES, ..Family::new("gemma4_text", gemma4::gemma4) },
    Family::new("glm", glm::glm),
    Family::new("glm4", glm::glm4),
    Family::new("glm4_moe", glm4_moe::glm4_moe),
    Family { sizes: glm4_moe_lite::SIZES, ..Family::new("glm4_moe_lite", glm4_moe_lite::glm4_moe_lite) },
    Family::new("gpt_oss", gpt_oss::gpt_oss),
    Family::new("granite", granite::granite),
    Family::new("granitemoe", granite::granitemoe),
    Family::new("granitemoehybrid", granite_hybrid::granitemoehybrid),
    Family { classifier: encoder::classifier, ..Family::new("gte", gte::gte) },
    Family::new("kimi_k2", deepseek::deepseek_v3),
    Family { own_names: kimi_linear::OWN_NAMES, ..Family::new("kimi_linear", kimi_linear::kimi_linear) },
    Family { sizes: lfm2::SIZES, ..Family::new("lfm2", lfm2::lfm2) },
    Family::new("lfm2_moe", lfm2::lfm2_moe),
    Family::new("llama", llama::llama),
    Family::new("llama4_text", llama4::llama4),
    Family::new("minimax_m2", minimax_m2::minimax_m2),
    Family::new("ministral3", ministral3::ministral3),
    Family::new("mistral", llama::mistral),
    Family::new("mixtral", mixtral::mixtral),
    Family { classifier: modernbert::classifier, ..Family::new("modernbert", modernbert::modernbert) },
    Family { sizes: nemotron_h::SIZES, ..Family::new("nemotron_h", nemotron_h::nemotron_h) },
    Family { classifier: encoder::classifier, ..Family::new("new", gte::new) },
    Family::new("olmo2", olmo2::olmo2),
    Family::new("olmo3", olmo3::olmo3),
    Family::new("olmoe", olmoe::olmoe),
    Family::new("phi3", phi3::phi3),
    Family::new("qwen2", qwen::qwen2),
    Family::new("qwen2_moe", qwen2_moe::qwen2_moe),
    Family::new("qwen3", qwen::qwen3),
    Family { sizes: qwen3_5::SIZES, ..Family::new("qwen3_5_text", qwen3_5::qwen3_5) },
    Family { sizes: qwen3_5::MOE_SIZES, ..Family::new("qwen3_5_moe_text", qwen3_5::qwen3_5_moe) },
    Family::new("qwen3_moe", qwen3_moe::qwen3_moe),
    Family::new("qwen3_next", qwen3_next::qwen3_next),
    Family { classifier: encoder::roberta_classifier, ..Family::new("roberta", bert::roberta) },
    Family::new("seed_oss", seed_oss::seed_oss),
    Family::new("smollm3", smollm3::smollm3),
    Family::new("starcoder2", starcoder2::starcoder2),
    Family { classifier: encoder::roberta_classifier, ..Family::new("xlm-roberta", bert::roberta) },
];

/// Fewest leading letters that a name must share with another to be suggested.
const NEAR_LETTERS: usize = 3;

/// The family named by `model_type`.
///
/// # Errors
/// If no family has that name.
pub fn find(fields: &Fields<'_>) -> Result<&'static Family, LoadError> {
    let name = fields.get("model_type").and_then(Value::as_str);
    let name = name.ok_or_else(|| fields.wrong("model_type", supported()))?;
    FAMILIES.iter().find(|family| family.model_type == name).ok_or_else(|| {
        let architecture = fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let architecture = architecture.map_or(String::new(), |architecture| format!(", {architecture}"));
        let shown: String = format!("{name}{architecture}").chars().take(200).collect();
        LoadError::Architecture {
            file: fields.file,
            model_type: shown,
            near: near(name),
            supported: supported(),
        }
    })
}

/// Names of all families, for messages.
fn supported() -> String {
    FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
}

/// Family whose name shares the longest prefix with `name`.
fn near(name: &str) -> Option<&'static str> {
    let shared = |family: &&Family| {
        let same = family.model_type.chars().zip(name.chars()).take_while(|(known, letter)| known == letter);
        same.filter(|(letter, _)| letter.is_alphanumeric()).count()
    };
    // Among equally near names, the shortest: it has no variant suffix.
    let nearest = FAMILIES.iter().max_by_key(|family| (shared(family), usize::MAX - family.model_type.len()));
    nearest.filter(|family| shared(family) >= NEAR_LETTERS).map(|family| family.model_type)
}
