//! Chosen algorithms on disk, one file per device and library version.

use std::collections::BTreeMap;

use super::key::GemmKey;
use super::plan::Algorithm;
use crate::cuda::Device;
use crate::cuda::cache::{Cache, file_name};

/// Chosen algorithms by key, spelled as [`GemmKey::to_line`].
#[derive(Debug)]
pub(super) struct Pinned {
    cache: Cache,
    file: String,
    algorithms: BTreeMap<String, Algorithm>,
}

impl Pinned {
    /// Loads what earlier processes chose on this kind of device with this version.
    pub(super) fn of_user(device: &Device, version: usize) -> Self {
        Self::load(Cache::of_user(), format!("blaslt-{}-{version}", file_name(&device.name)))
    }

    fn load(cache: Cache, file: String) -> Self {
        let text = cache.read(&file).and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let algorithms = text.lines().filter_map(parse).collect();
        Self { cache, file, algorithms }
    }

    pub(super) fn get(&self, key: &GemmKey) -> Option<Algorithm> {
        self.algorithms.get(&key.to_line()).copied()
    }

    /// Stores `algorithm` in memory and on disk, keeping what other processes have added since.
    pub(super) fn put(&mut self, key: GemmKey, algorithm: Algorithm) {
        let others = Self::load(self.cache.clone(), self.file.clone()).algorithms;
        for (key, algorithm) in others {
            self.algorithms.entry(key).or_insert(algorithm);
        }
        self.algorithms.insert(key.to_line(), algorithm);
        let lines = self.algorithms.iter().map(|(key, algorithm)| spell(key, algorithm));
        self.cache.write(&self.file, lines.collect::<String>().as_bytes());
    }
}

fn spell(key: &str, algorithm: &Algorithm) -> String {
    let data: Vec<String> = algorithm.data.iter().map(|word| format!("{word:x}")).collect();
    format!("{key} = {:x} {}\n", algorithm.workspace_bytes, data.join(" "))
}

fn parse(line: &str) -> Option<(String, Algorithm)> {
    let (key, algorithm) = line.split_once(" = ")?;
    let numbers: Option<Vec<u64>> =
        algorithm.split(' ').map(|word| u64::from_str_radix(word, 16).ok()).collect();
    let (workspace_bytes, data) = numbers?.split_first().map(|(first, rest)| (*first, rest.to_vec()))?;
    Some((
        key.to_owned(),
        Algorithm { data: data.try_into().ok()?, workspace_bytes: workspace_bytes as usize },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::blaslt::Scaling;

    #[test]
    fn choices_of_two_processes_are_both_kept() {
        let directory = std::env::temp_dir().join(format!("skein-pinned-{}", std::process::id()));
        let open = || Pinned::load(Cache::at(directory.clone()), "blaslt-test-130000".into());
        let key = |rows| GemmKey::new::<half::bf16, f32>(rows, 300, 64, Scaling::None, true);
        let algorithm = |first| Algorithm { data: [first, 1, 2, 3, 4, 5, 6, u64::MAX], workspace_bytes: 77 };
        let (mut one, mut other) = (open(), open());
        one.put(key(1), algorithm(1));
        other.put(key(2), algorithm(2));
        let later = open();
        assert_eq!((later.get(&key(1)), later.get(&key(2))), (Some(algorithm(1)), Some(algorithm(2))));
        assert_eq!(later.get(&key(3)), None);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn malformed_lines_are_ignored() {
        for line in ["", "a", "a = ", "a = 1 2", "a = 1 2 3 4 5 6 7 8 9 a", "a = x 2 3 4 5 6 7 8 9"] {
            assert!(parse(line).is_none(), "{line:?}");
        }
        assert!(parse("a = 1 2 3 4 5 6 7 8 9").is_some());
    }
}
