//! Compiles and caches the grammars of one model.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::cache::Cache;
use crate::error::Refused;
use crate::library::{Compiled, Library, VERSION};
use crate::limits::MAX_CACHE_BYTES;
use crate::source::Source;
use crate::token_bytes::TokenBytes;

/// Version of everything that affects which tokens are allowed: limits, options, notations. Increment it with
/// any of these.
const RULES: &str = "skein.grammar.2";

/// Loads the bytes of the model's tokens on first use.
type Load = Box<dyn Fn() -> Result<Arc<TokenBytes>, String> + Send + Sync>;

/// Compiler for the grammars of one model. The vocabulary is prepared for the first grammar only, because
/// most processes never need it.
pub struct Grammars {
    load: Load,
    vocab_size: u32,
    fingerprint: u64,
    library: OnceLock<Library>,
    cache: Mutex<Cache>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Compiler for a model with `vocab_size` tokens, whose bytes `load` returns. `tokenizer` is part of the
    /// [fingerprint](Self::fingerprint): the content of tokenizer.json, or a digest of a GGUF file's
    /// tokenizer.
    pub fn new(
        tokenizer: &[u8],
        vocab_size: u32,
        load: impl Fn() -> Result<Arc<TokenBytes>, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            load: Box::new(load),
            vocab_size,
            fingerprint: fingerprint(tokenizer),
            library: OnceLock::new(),
            cache: Mutex::new(Cache::new(MAX_CACHE_BYTES)),
        }
    }

    /// Equal in processes that allow the same tokens for the same sources. Never 0.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Compiles `source` or returns it from the cache. Takes milliseconds, and up to a second the first time:
    /// call it where blocking is allowed.
    ///
    /// # Errors
    /// [`Refused`] with the fault.
    pub fn compile(&self, source: &Source) -> Result<Arc<Compiled>, Refused> {
        if let Some(compiled) = self.cache().get(source.text()) {
            return Ok(compiled);
        }
        let compiled = Arc::new(self.library()?.compile(source)?);
        self.cache().insert(source.text(), compiled.clone());
        Ok(compiled)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn library(&self) -> Result<&Library, Refused> {
        if let Some(library) = self.library.get() {
            return Ok(library);
        }
        // A failure is not kept: for want of file descriptors, say, a file cannot be read now.
        let bytes = (self.load)().map_err(|reason| Refused::Unavailable { reason })?;
        let library = Library::new(&bytes, self.vocab_size)?;
        Ok(self.library.get_or_init(|| library))
    }
}

/// Largest tokenizer.json that is read, in bytes; public models have up to about 35 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// Hash of a tokenizer.json, by which a router recognises workers of a model with another tokenizer. Never 0.
pub fn tokenizer_fingerprint(tokenizer: &[u8]) -> u64 {
    xxh3_64(tokenizer).max(1)
}

fn fingerprint(tokenizer: &[u8]) -> u64 {
    let mut hash = Xxh3Default::new();
    for part in [RULES.as_bytes(), VERSION.as_bytes(), tokenizer] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.digest().max(1)
}
