//! The model that ships with Skein: beside the binary where an archive or a package installs it, else
//! embedded in the binary and unpacked once into the user's cache directory. So a single binary can serve
//! from any directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::exit::{Failure, MODEL};
use crate::settings::user_cache;

/// Name of its directory, which is also the name for clients.
const NAME: &str = "skein-7m";

macro_rules! shipped {
    ($file:literal) => {
        ($file, include_bytes!(concat!("../../models/skein-7m/", $file)).as_slice())
    };
}

/// Name and content of each file of the model's directory.
const FILES: [(&str, &[u8]); 5] = [
    shipped!("config.json"),
    shipped!("generation_config.json"),
    shipped!("model.safetensors"),
    shipped!("tokenizer.json"),
    shipped!("tokenizer_config.json"),
];

/// The model's directory; unpacks the model if it is not installed.
///
/// # Errors
/// If unpacking fails; exit code 3.
pub fn find() -> Result<PathBuf, Failure> {
    let binary = std::env::current_exe().unwrap_or_default();
    if let Some(place) = places(&binary).into_iter().find(|place| place.join("config.json").is_file()) {
        return Ok(place);
    }
    let advice = "name a model directory (skein serve DIR), or a directory to write to in XDG_CACHE_HOME";
    let cache = user_cache().ok_or_else(|| {
        Failure::new(
            MODEL,
            format!("the shipped model has no place to be unpacked to: HOME and XDG_CACHE_HOME are unset; {advice}"),
        )
    })?;
    let directory = cache.join("skein").join("models").join(env!("CARGO_PKG_VERSION")).join(NAME);
    unpack(&directory).map_err(|error| {
        let place = directory.display();
        Failure::new(MODEL, format!("cannot unpack the shipped model into {place}: {error}; {advice}"))
    })?;
    Ok(directory)
}

/// Where archives, packages and checkouts keep it: `models` in the binary's directory or a parent, and
/// `../share/skein/models`.
fn places(binary: &Path) -> Vec<PathBuf> {
    let above = binary.ancestors().skip(1);
    let beside = above.clone().map(|place| place.join("models").join(NAME));
    let shared = above.skip(1).take(1).map(|place| place.join("share/skein/models").join(NAME));
    beside.chain(shared).collect()
}

/// Writes the files that are missing or differ. Each appears whole, because other processes may unpack or
/// read them at the same time.
fn unpack(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, content) in FILES {
        let file = directory.join(name);
        if is_there(&file, content) {
            continue;
        }
        let draft = directory.join(format!(".{name}.{}", std::process::id()));
        let written = fs::write(&draft, content).and_then(|()| fs::rename(&draft, &file));
        written.inspect_err(|_| {
            // Remove the partial file, for example after a full disk.
            let _ = fs::remove_file(&draft);
        })?;
    }
    Ok(())
}

fn is_there(file: &Path, content: &[u8]) -> bool {
    let has_size = fs::metadata(file).is_ok_and(|found| found.len() == content.len() as u64);
    has_size && fs::read(file).is_ok_and(|found| found == content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_the_whole_model_and_damage_is_mended() {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let directory = cache.path().join("deep").join(NAME);
        unpack(&directory).expect("it is writable");
        let text = skein_router::text::model_text::ModelText::load(&directory, &[]).expect("it has text");
        assert_eq!(&*text.name(), NAME);
        assert!(crate::model::facts(&directory).parameters > 6_000_000);
        let weights = directory.join("model.safetensors");
        fs::write(&weights, "cut off").expect("it is ours");
        unpack(&directory).expect("it is writable");
        assert!(is_there(&weights, FILES[2].1));
        let names = fs::read_dir(&directory).expect("it is there").count();
        assert_eq!(names, FILES.len(), "no draft is left");
    }

    #[test]
    fn archives_and_packages_are_looked_through_first() {
        let places = places(Path::new("/opt/skein/bin/skein"));
        for expected in [
            "/opt/skein/bin/models/skein-7m",
            "/opt/skein/models/skein-7m",
            "/opt/skein/share/skein/models/skein-7m",
        ] {
            assert!(places.contains(&PathBuf::from(expected)), "{expected}: {places:?}");
        }
    }
}
