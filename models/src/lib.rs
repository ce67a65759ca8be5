//! The model that ships with Skein: its files, embedded, with the weights packed. Knows no command line and
//! no place to unpack to.

pub mod packed;

use std::fs;
use std::io;
use std::path::Path;

/// Name of the model's directory, which is also the name for clients.
pub const NAME: &str = "skein-7m";
/// Its weights, as transformers reads them.
pub const WEIGHTS: &str = "model.safetensors";

macro_rules! shipped {
    ($file:literal) => {
        ($file, include_bytes!(concat!("../skein-7m/", $file)).as_slice())
    };
}

/// Name and content of each other file of the model's directory.
const FILES: [(&str, &[u8]); 4] = [
    shipped!("config.json"),
    shipped!("generation_config.json"),
    shipped!("tokenizer.json"),
    shipped!("tokenizer_config.json"),
];
const PACKED: &[u8] = include_bytes!("../skein-7m/model.safetensors.packed");

/// Writes the model's files that are missing or differ. Each appears whole, because other processes may
/// unpack or read them at the same time.
///
/// # Errors
/// If a file cannot be written.
pub fn unpack(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, content) in FILES {
        if read_if_long(&directory.join(name), content.len()).is_none_or(|found| found != content) {
            write(directory, name, content)?;
        }
    }
    let found = packed::len(PACKED).and_then(|len| read_if_long(&directory.join(WEIGHTS), len));
    if found.is_some_and(|found| packed::is_of(PACKED, &found)) {
        return Ok(());
    }
    write(directory, WEIGHTS, &packed::unpack(PACKED).ok_or(io::ErrorKind::InvalidData)?)
}

/// Writes only the tokenizer's files, whatever is there.
///
/// # Errors
/// If a file cannot be written.
pub fn unpack_tokenizer(directory: &Path) -> io::Result<()> {
    let mut of_tokenizer = FILES.iter().filter(|(name, _)| name.starts_with("tokenizer"));
    of_tokenizer.try_for_each(|(name, content)| write(directory, name, content))
}

/// The content of `file` if it has `len` bytes.
fn read_if_long(file: &Path, len: usize) -> Option<Vec<u8>> {
    let has_len = fs::metadata(file).is_ok_and(|found| found.len() == len as u64);
    has_len.then(|| fs::read(file).ok())?
}

fn write(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let draft = directory.join(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&draft, content).and_then(|()| fs::rename(&draft, directory.join(name)));
    written.inspect_err(|_| {
        // Remove the partial file, for example after a full disk.
        let _ = fs::remove_file(&draft);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_the_whole_model_and_damage_is_mended() {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let directory = cache.path().join("deep").join(NAME);
        unpack(&directory).expect("it is writable");
        let weights = directory.join(WEIGHTS);
        let whole = fs::read(&weights).expect("it is written");
        assert!(packed::is_of(PACKED, &whole) && whole.len() > 13_000_000);
        let mut damaged = whole.clone();
        damaged[5_000_000] ^= 0x10;
        for content in [&damaged[..], b"cut off"] {
            fs::write(&weights, content).expect("it is ours");
            unpack(&directory).expect("it is writable");
            assert!(fs::read(&weights).expect("it is written") == whole);
        }
        let names = fs::read_dir(&directory).expect("it is there").count();
        assert_eq!(names, FILES.len() + 1, "no draft is left");
    }
}
