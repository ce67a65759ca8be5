//! Golden files by name, for tests. Weights that are noise are not stored: a directory with `weights.json`
//! has a recipe instead, and [`path`] makes a complete copy in the target directory, once. `README.md`
//! beside this crate describes the files and the recipes; `weights.py` there makes the same bytes.
//!
//! Knows no models: only files, tensors of bytes, and a generator.

mod copy;
mod generator;
mod recipe;

use std::path::{Path, PathBuf};

/// Why a directory cannot be completed.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The recipe is not one.
    #[error("{}: {what}; {REMAKE}", path.display())]
    Recipe {
        /// The recipe's directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Advice about a directory whose recipe gives something else than recorded.
const REMAKE: &str = "restore the directory (git checkout), or remake it as tests/golden/README.md says";

/// The file or directory `name` under `tests/golden`, complete: in the repository if nothing of it is drawn,
/// else in the target directory.
///
/// # Panics
/// If it has a recipe that does not give the recorded bytes.
pub fn path(name: impl AsRef<Path>) -> PathBuf {
    complete(&root().join(name)).unwrap_or_else(|error| panic!("golden files: {error}"))
}

/// The GGUF file of the model `name`.
///
/// # Panics
/// As [`path`].
pub fn gguf(name: &str) -> PathBuf {
    path(format!("gguf/models/{name}/{name}.gguf"))
}

/// The directory of the model that ships with Skein, complete.
///
/// # Panics
/// If its packed weights are damaged.
pub fn shipped() -> PathBuf {
    let stored = root().join("../../models").join(skein_shipped::NAME);
    copy::of(&stored).unwrap_or_else(|error| panic!("the shipped model: {error}"))
}

/// Names of the directories in `room`, in order: `models`, `quantised`, `adapters`.
///
/// # Panics
/// If there is no such directory.
pub fn names(room: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(room)).expect("a directory of golden files");
    let entries = entries.map(|entry| entry.expect("an entry of a directory"));
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("names are plain"))
        .collect();
    names.sort_unstable();
    names
}

/// Where golden files are stored.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `stored` itself, or its counterpart in the complete copy of the directory above it that has a recipe.
fn complete(stored: &Path) -> Result<PathBuf, GoldenError> {
    let above = stored.ancestors().take_while(|place| place.starts_with(root()));
    let Some(directory) = above.into_iter().find(|place| place.join(copy::RECIPE).is_file()) else {
        return Ok(stored.to_owned());
    };
    let inside = stored.strip_prefix(directory).expect("it is an ancestor");
    let copy = copy::of(directory)?;
    Ok(if inside.as_os_str().is_empty() { copy } else { copy.join(inside) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every directory with a recipe below `place`.
    fn recipes(place: &Path, found: &mut Vec<PathBuf>) {
        if place.join(copy::RECIPE).is_file() {
            found.push(place.to_owned());
        }
        for entry in std::fs::read_dir(place).expect("a directory") {
            let entry = entry.expect("an entry").path();
            if entry.is_dir() {
                recipes(&entry, found);
            }
        }
    }

    #[test]
    fn every_recipe_gives_the_recorded_bytes() {
        let mut found = Vec::new();
        recipes(&root(), &mut found);
        assert!(found.len() >= 90, "{} recipes", found.len());
        for directory in found {
            let parts = copy::build(&directory).unwrap_or_else(|error| panic!("{error}"));
            assert!(!parts.is_empty(), "{}", directory.display());
        }
    }

    #[test]
    fn a_copy_has_the_stored_files_and_the_weights_but_no_recipe() {
        let copy = path("models/mixtral");
        assert!(!copy.starts_with(root()) && copy.ends_with("mixtral"), "{}", copy.display());
        assert_eq!(path("models/mixtral/config.json"), copy.join("config.json"));
        let mut names: Vec<_> = std::fs::read_dir(&copy)
            .expect("it is made")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort_unstable();
        let expected = [
            "config.json",
            "goldens.json",
            "goldens.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(names, expected);
        assert_eq!(path("formats.json"), root().join("formats.json"), "nothing of it is drawn");
    }

    #[test]
    fn the_shipped_model_is_complete() {
        let copy = shipped();
        for (name, least) in
            [("model.safetensors", 13_000_000), ("tokenizer.json", 200_000), ("held_out.bin", 16_000)]
        {
            let len = std::fs::metadata(copy.join(name)).expect("it is there").len();
            assert!(copy.ends_with("skein-7m") && len > least, "{name}: {len}");
        }
    }

    #[test]
    fn a_recipe_that_gives_other_bytes_is_an_error_that_says_what_to_do() {
        let place = copy::kept().join(format!("corrupted-{}", std::process::id()));
        let check = |change: &dyn Fn(String) -> String, words: &[&str]| {
            std::fs::create_dir_all(&place).expect("a directory");
            let recipe =
                std::fs::read_to_string(root().join("models/qwen2").join(copy::RECIPE)).expect("a recipe");
            std::fs::write(place.join(copy::RECIPE), change(recipe)).expect("a file");
            let said = copy::of(&place).expect_err("it is refused").to_string();
            words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
            std::fs::remove_dir_all(&place).expect("it is ours");
        };
        let remake = "git checkout";
        check(&|recipe| recipe.replace("\"seed\":", "\"seed\":1"), &["model.safetensors", "sha256", remake]);
        check(&|recipe| recipe[..recipe.len() / 2].to_owned(), &["EOF", remake]);
        check(&|recipe| recipe.replace("\"F16\"", "\"F17\""), &["F17", remake]);
        check(&|recipe| recipe.replacen("{\"normal\":", "{\"cauchy\":", 1), &["cauchy", remake]);
        let literal = |recipe: String| {
            let start = recipe.find("{\"normal\"").expect("a drawn tensor");
            let end = start + recipe[start..].find('}').expect("its end") + 1;
            recipe.replace(&recipe[start..end], "\"literal\"")
        };
        check(&literal, &["literal", remake]);
    }
}
