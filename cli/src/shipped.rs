//! The model that ships with Skein: beside the binary where an archive or a package installs it, else
//! embedded in the binary and unpacked once into the user's cache directory. So a single binary can serve
//! from any directory.

use std::path::{Path, PathBuf};

use skein_shipped::{NAME, WEIGHTS};

use crate::exit::{Failure, MODEL};
use crate::settings::user_cache;

/// The model's directory; unpacks the model if it is not installed.
///
/// # Errors
/// If unpacking fails; exit code 3.
pub fn find() -> Result<PathBuf, Failure> {
    let binary = std::env::current_exe().unwrap_or_default();
    if let Some(place) = places(&binary).into_iter().find(|place| place.join(WEIGHTS).is_file()) {
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
    skein_shipped::unpack(&directory).map_err(|error| {
        let place = directory.display();
        Failure::new(MODEL, format!("cannot unpack the shipped model into {place}: {error}; {advice}"))
    })?;
    Ok(directory)
}

/// Where archives and packages keep it: `models` in the binary's directory or a parent, and
/// `../share/skein/models`. A checkout has it without its weights.
fn places(binary: &Path) -> Vec<PathBuf> {
    let above = binary.ancestors().skip(1);
    let beside = above.clone().map(|place| place.join("models").join(NAME));
    let shared = above.skip(1).take(1).map(|place| place.join("share/skein/models").join(NAME));
    beside.chain(shared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_can_be_served() {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let directory = cache.path().join(NAME);
        skein_shipped::unpack(&directory).expect("it is writable");
        let text = skein_text::model_text::ModelText::load(&directory, &[]).expect("it has text");
        assert_eq!(&*text.name(), NAME);
        assert!(crate::model::facts(&directory).parameters > 6_000_000);
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
