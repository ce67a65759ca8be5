//! Routes with their descriptions. The only way for a room of the API to serve a path over HTTP.

use axum::Router;
use axum::routing::MethodRouter;

use super::operation::{Access, Operation, Part};
use crate::app::App;

/// Routes, and what the document says of each.
#[derive(Clone)]
pub struct Room<S = App> {
    part: &'static Part,
    /// The routes.
    pub router: Router<S>,
    /// Their operations.
    pub operations: Vec<Operation>,
}

impl<S: Clone + Send + Sync + 'static> Room<S> {
    /// No routes of `part` yet.
    pub fn new(part: &'static Part) -> Self {
        Self { part, router: Router::new(), operations: Vec::new() }
    }

    /// Serves `path` by `handlers`, which are described by `operations`, one for each method.
    pub fn route(
        mut self,
        path: &'static str,
        handlers: MethodRouter<S>,
        operations: impl IntoIterator<Item = Operation>,
    ) -> Self {
        self.router = self.router.route(path, handlers);
        for operation in operations {
            let path =
                if operation.path.is_empty() { path.replace("{*", "{") } else { operation.path.clone() };
            self.operations.push(Operation { path, part: Some(self.part), ..operation });
        }
        self
    }

    /// Serves `path` as another path that is described.
    pub fn same(mut self, path: &'static str, as_path: &str, handlers: MethodRouter<S>) -> Self {
        assert!(
            self.operations.iter().any(|operation| operation.path == as_path),
            "{as_path} is described before {path}"
        );
        self.router = self.router.route(path, handlers);
        self
    }

    /// Adds the routes of `other`, which may be of another part of the API.
    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.operations.extend(other.operations);
        self
    }

    /// Says who may call these routes.
    pub fn access(mut self, access: Access) -> Self {
        self.operations.iter_mut().for_each(|operation| operation.access = access);
        self
    }

    /// Changes the routes, for example by a layer.
    pub fn with(mut self, change: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        self.router = change(self.router);
        self
    }
}
