//! Cache of compiled grammars by their text. Bounded in bytes; evicts the least recently used.

use std::collections::HashMap;
use std::sync::Arc;

use crate::library::Compiled;

#[derive(Debug)]
pub struct Cache {
    entries: HashMap<String, Entry>,
    /// Total size of the entries, in bytes.
    bytes: usize,
    limit: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    compiled: Arc<Compiled>,
    bytes: usize,
    last_use: u64,
}

impl Cache {
    pub fn new(limit: usize) -> Self {
        Self { entries: HashMap::new(), bytes: 0, limit, uses: 0 }
    }

    pub fn get(&mut self, text: &str) -> Option<Arc<Compiled>> {
        self.uses += 1;
        let entry = self.entries.get_mut(text)?;
        entry.last_use = self.uses;
        Some(entry.compiled.clone())
    }

    /// Adds `compiled`, unless it is larger than the limit.
    pub fn insert(&mut self, text: &str, compiled: Arc<Compiled>) {
        let bytes = compiled.bytes() + text.len();
        if bytes > self.limit || self.entries.contains_key(text) {
            return;
        }
        while self.bytes + bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(text, _)| text.clone()) else { break };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |entry| entry.bytes);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.entries.insert(text.to_owned(), Entry { compiled, bytes, last_use: self.uses });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Library, Source, token_bytes::TokenBytes};

    #[test]
    fn the_least_recently_used_goes_first_and_bytes_are_bounded() {
        let library = Library::new(&TokenBytes::of_bytes(), 256).unwrap();
        let compile = |text: &str| Arc::new(library.compile(&Source::choice(&[text]).unwrap()).unwrap());
        let (a, b, c) = (compile("a"), compile("b"), compile("c"));
        let mut cache = Cache::new(2 * (a.bytes() + b.bytes()) / 2 + 2);
        cache.insert("a", a);
        cache.insert("b", b);
        assert!(cache.get("a").is_some());
        cache.insert("c", c);
        assert!(cache.get("a").is_some() && cache.get("b").is_none() && cache.get("c").is_some());
        assert!(cache.bytes <= cache.limit);
        Cache::new(1).insert("a", compile("a"));
    }
}
