//! Hashes that distinguish models of the same name: over the configuration and samples of every tensor.

use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use super::LoadError;
use super::checkpoint::{ModelFile, Weights};
use super::fields::read_json;
use super::sentence_modules::Modules;

/// Fingerprint of the model in `dir`: equal for equal copies, regardless of sharding. XXH3-64.
///
/// # Errors
/// If the configuration or the weights cannot be read.
pub fn fingerprint(dir: &Path) -> Result<u64, LoadError> {
    of(dir, &Weights::open(dir)?)
}

fn of(dir: &Path, weights: &Weights) -> Result<u64, LoadError> {
    let config = match ModelFile::open(dir)? {
        Some(file) => serde_json::Value::Object(file.config()?).to_string().into_bytes(),
        None => read_json(&dir.join("config.json"))?,
    };
    let mut hash = Xxh3Default::new();
    hash.update(&config);
    if let Some(modules) = Modules::read(dir)? {
        hash.update(modules.content().as_bytes());
    }
    weights.sample(&mut |bytes| hash.update(bytes));
    Ok(hash.digest())
}

/// Identifies the files of the model in `dir`, mapped as `weights`, on this machine; it is the cache key of
/// packed weights. Modification times are included, so a weight changed in place changes it even outside the
/// samples.
///
/// # Errors
/// If the configuration cannot be read.
pub fn source(dir: &Path, weights: &Weights) -> Result<u64, LoadError> {
    let mut hash = Xxh3Default::new();
    hash.update(&of(dir, weights)?.to_le_bytes());
    weights.stamp(&mut |bytes| hash.update(bytes));
    Ok(hash.digest())
}

/// Fingerprint of a model computed with `arithmetic`, which describes everything besides the weights that
/// affects the bits of logits. Requests move only between workers that would draw the same tokens.
pub fn computed_with(fingerprint: u64, arithmetic: &str) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(&fingerprint.to_le_bytes());
    hash.update(arithmetic.as_bytes());
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> std::path::PathBuf {
        skein_golden::path(format!("models/{name}"))
    }

    #[test]
    fn one_changed_weight_or_setting_changes_it() {
        let copy = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(model("llama-gqa").join(file), copy.path().join(file)).unwrap();
        }
        let original = fingerprint(&model("llama-gqa")).unwrap();
        assert_eq!(fingerprint(copy.path()).unwrap(), original);
        assert_ne!(fingerprint(&model("llama-mha-tied")).unwrap(), original);

        let weights = copy.path().join("model.safetensors");
        let mut bytes = std::fs::read(&weights).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&weights, &bytes).unwrap();
        let changed = fingerprint(copy.path()).unwrap();
        assert_ne!(changed, original);

        let config = copy.path().join("config.json");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("rope_theta", "rope_thetb")).unwrap();
        assert_ne!(fingerprint(copy.path()).unwrap(), changed);
    }
}
