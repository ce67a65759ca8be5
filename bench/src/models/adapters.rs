//! Writes LoRA adapters with random weights for a model, in PEFT's format.

use std::io::Write;
use std::path::Path;

use half::bf16;
use serde_json::{Map, Value, json};
use skein_model::config::ModelConfig;
use skein_model::tensors::{self, Kind, Role, Tensor};
use skein_node::random::SplitMix64;

use super::error::MakeAdaptersError;

/// Weights are uniform in ± this: with rank 8 to 16 and `alpha / rank = 2`, changes are about as large as the
/// weights of [`super::make_model()`].
const HALF_WIDTH: f32 = 0.1;

/// Matrices that adapters change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// Queries, keys, values and the attention's output.
    Attention,
    /// Those and the feed-forward network.
    All,
}

/// Writes `count` adapters of rank `rank` for the model in `model` to `out/a0`, `out/a1` and so on.
///
/// # Errors
/// If the model cannot be read or a file cannot be written.
pub fn make_adapters(
    model: &Path,
    out: &Path,
    count: usize,
    rank: usize,
    targets: Targets,
) -> Result<(), MakeAdaptersError> {
    let all = tensors::all(&ModelConfig::from_dir(model)?.spec);
    let mut matrices: Vec<(&str, [usize; 2])> = Vec::new();
    for tensor in all.iter().filter(|tensor| is_target(tensor, targets)) {
        let (stored, inputs) = (&tensor.stored[0], tensor.cols);
        let module = stored.name.trim_end_matches(".weight");
        // Fused projections are one module.
        if matrices.last().is_none_or(|(last, _)| *last != module) {
            matrices.push((module, [stored.shape[0], inputs]));
        }
    }
    for nth in 0..count {
        let directory = out.join(format!("a{nth}"));
        let failed = |source| MakeAdaptersError::Write { path: directory.clone(), source };
        write(&directory, &matrices, rank, nth as u64).map_err(failed)?;
    }
    Ok(())
}

fn is_target(tensor: &Tensor, targets: Targets) -> bool {
    let is_matrix = matches!(tensor.kind, Kind::Matrix(..));
    match tensor.role {
        _ if !is_matrix => false,
        Role::Query | Role::Key | Role::Value | Role::AttentionOutput => true,
        Role::Gate | Role::Up | Role::Down => targets == Targets::All,
        _ => false,
    }
}

fn write(directory: &Path, matrices: &[(&str, [usize; 2])], rank: usize, seed: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let suffix = |module: &str| module.rsplit('.').next().unwrap_or(module).to_owned();
    let mut modules: Vec<String> = matrices.iter().map(|(module, _)| suffix(module)).collect();
    modules.sort_unstable();
    modules.dedup();
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": modules,
    });
    std::fs::write(directory.join("adapter_config.json"), config.to_string())?;
    let (mut header, mut offset, mut values) = (Map::new(), 0, 0);
    for (module, [outputs, inputs]) in matrices {
        for (kind, shape) in [("lora_A", [rank, *inputs]), ("lora_B", [*outputs, rank])] {
            let end = offset + 2 * shape[0] * shape[1];
            let name = format!("base_model.model.{module}.{kind}.weight");
            let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]});
            header.insert(name, entry);
            (offset, values) = (end, values + shape[0] * shape[1]);
        }
    }
    let mut text = Value::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let file = std::fs::File::create(directory.join("adapter_model.safetensors"))?;
    let mut file = std::io::BufWriter::new(file);
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(text.as_bytes())?;
    let mut random = SplitMix64::new(seed.wrapping_add(1));
    for _ in 0..values {
        let unit = (random.next_u64() >> 40) as f32 / (1_u64 << 24) as f32;
        file.write_all(&bf16::from_f32((2.0 * unit - 1.0) * HALF_WIDTH).to_le_bytes())?;
    }
    file.flush()
}
