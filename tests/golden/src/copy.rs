//! Complete copies of directories, in the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ring::digest::{Context, SHA256, digest};
use skein_shipped::WEIGHTS;

use crate::GoldenError;
use crate::recipe::Recipe;

/// Its presence says that a directory's weights are made.
pub const RECIPE: &str = "weights.json";
/// Bytes that no recipe gives, deflated.
const LITERALS: &str = "weights.bin";
/// The shipped model's weights, as stored.
const PACKED: &str = "model.safetensors.packed";

/// Where copies are kept. A build of another profile has its own.
pub fn kept() -> PathBuf {
    Path::new(env!("OUT_DIR")).join("complete")
}

/// The complete copy of `directory`. Its place is named by a hash of everything stored, so a copy is never
/// outdated; it appears whole, because test processes make it at the same time.
pub fn of(directory: &Path) -> Result<PathBuf, GoldenError> {
    let stored = stored(directory)?;
    let mut hash = Context::new(&SHA256);
    for (name, content) in &stored {
        hash.update(format!("{name} {}\n", content.len()).as_bytes());
        hash.update(content);
    }
    let key = &hex(hash.finish().as_ref())[..16];
    let (place, name) = (kept().join(key), directory.file_name().unwrap_or_default());
    if place.is_dir() {
        return Ok(place.join(name));
    }
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = kept().join(format!(".{key}.{}.{number}", std::process::id()));
    let inside = draft.join(name);
    let files = build(directory)?;
    fs::create_dir_all(&inside).map_err(|source| GoldenError::File { path: inside.clone(), source })?;
    let others = stored.into_iter().filter(|(name, _)| ![RECIPE, LITERALS, PACKED].contains(&name.as_str()));
    for (name, content) in others.chain(files) {
        let path = inside.join(name);
        let above = path.parent().unwrap_or(&inside);
        fs::create_dir_all(above).map_err(|source| GoldenError::File { path: path.clone(), source })?;
        fs::write(&path, content).map_err(|source| GoldenError::File { path, source })?;
    }
    if let Err(source) = fs::rename(&draft, &place) {
        let _ = fs::remove_dir_all(&draft);
        // Another process was first.
        if !place.is_dir() {
            return Err(GoldenError::File { path: place, source });
        }
    }
    Ok(place.join(name))
}

/// The weight files of `directory` by name, checked.
pub fn build(directory: &Path) -> Result<Vec<(String, Vec<u8>)>, GoldenError> {
    let wrong = |what: String| GoldenError::Recipe { path: directory.to_owned(), what };
    let packed = directory.join(PACKED);
    if packed.is_file() {
        let weights = skein_shipped::packed::unpack(&read(&packed)?);
        return Ok(vec![(WEIGHTS.to_owned(), weights.ok_or_else(|| wrong(format!("{PACKED} is damaged")))?)]);
    }
    let recipe = read(&directory.join(RECIPE))?;
    let recipe: Recipe =
        serde_json::from_slice(&recipe).map_err(|error| wrong(format!("{RECIPE}: {error}")))?;
    let packed = directory.join(LITERALS);
    let packed = if packed.is_file() { read(&packed)? } else { Vec::new() };
    let literals = if packed.is_empty() {
        Vec::new()
    } else {
        miniz_oxide::inflate::decompress_to_vec(&packed)
            .map_err(|error| wrong(format!("{LITERALS}: {error}")))?
    };
    let of_other = |file: &str| {
        let path = crate::complete(&crate::root().join(file)).map_err(|error| error.to_string())?;
        read(&path).map_err(|error| error.to_string())
    };
    let files = recipe.build(&literals, &of_other).map_err(wrong)?;
    for (file, content) in &files {
        let (got, name) = (hex(digest(&SHA256, content).as_ref()), &file.name);
        if got != file.sha256 {
            return Err(wrong(format!("{name} has the sha256 {got}, not the recorded {}", file.sha256)));
        }
    }
    Ok(files.into_iter().map(|(file, content)| (file.name.clone(), content)).collect())
}

/// The stored files of `directory` and of those in it, by their paths there.
fn stored(directory: &Path) -> Result<Vec<(String, Vec<u8>)>, GoldenError> {
    let mut files = Vec::new();
    add_stored(directory, "", &mut files)?;
    files.sort_unstable();
    Ok(files)
}

/// Adds the stored files of `directory`, whose paths start with `above`.
fn add_stored(directory: &Path, above: &str, files: &mut Vec<(String, Vec<u8>)>) -> Result<(), GoldenError> {
    let wrong = |source| GoldenError::File { path: directory.to_owned(), source };
    for entry in fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let name = format!("{above}{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            add_stored(&path, &format!("{name}/"), files)?;
        } else if path.file_name() != Some(WEIGHTS.as_ref()) {
            // Weights that somebody unpacked in place are made again.
            files.push((name, read(&path)?));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, GoldenError> {
    fs::read(path).map_err(|source| GoldenError::File { path: path.to_owned(), source })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
