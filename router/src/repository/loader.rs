//! What a repository needs of whoever starts and ends workers.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use futures::future::BoxFuture;
use skein_proto::pooling::PooledKind;
use skein_text::model_text::{Facts, ModelText};

use super::residency::KeepAlive;
use crate::app::App;

/// A model that can be loaded.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Names that clients may use, at least one; answers carry the first.
    pub names: Vec<Arc<str>>,
    /// Memory that its workers take, in bytes.
    pub bytes: u64,
    /// Longest sequence by the plan of its workers, in tokens.
    pub max_model_len: u32,
    /// What vectors it gives; `None` = it generates.
    pub pooled: Option<PooledKind>,
    /// How long it stays in memory without requests.
    pub keep_alive: KeepAlive,
    /// Whether it is loaded at the start.
    pub at_start: bool,
    /// What is known of it on disk.
    pub facts: Facts,
}

impl Entry {
    /// The name that answers carry.
    pub fn name(&self) -> Arc<str> {
        self.names.first().cloned().unwrap_or_else(|| Arc::from("model"))
    }
}

/// A model in memory.
pub struct LoadedModel {
    /// Serves its requests.
    pub app: App,
    /// The same over HTTP.
    pub routes: Arc<dyn Routes>,
    /// Ends its workers.
    pub end: BoxFuture<'static, ()>,
    /// Completes with the reason once its workers cannot be started again; with `None` when they were ended.
    pub lost: BoxFuture<'static, Option<String>>,
}

/// A model's routes over HTTP.
pub trait Routes: Send + Sync + 'static {
    /// Answers a request.
    fn answer(&self, request: Request) -> BoxFuture<'static, Response>;
}

/// Loads models.
pub trait Loader: Send + Sync + 'static {
    /// The tokenizer and chat template of the model of this number, without its workers.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn text(&self, model: usize) -> BoxFuture<'static, Result<ModelText, String>>;

    /// Loads the model of this number among the entries; answers once it can serve.
    ///
    /// # Errors
    /// Why it cannot be loaded; then none of its workers runs.
    fn load(&self, model: usize) -> BoxFuture<'static, Result<LoadedModel, String>>;
}

/// How long a model that could not be loaded is not tried again: each try takes seconds of a processor.
pub const FAILED_FOR: Duration = Duration::from_secs(10);
