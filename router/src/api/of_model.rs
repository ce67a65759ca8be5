//! The HTTP routes of a model behind a server of several.

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures::future::BoxFuture;

use super::direct::{self, Direct};
use crate::app::App;
use crate::repository::Routes;

/// A model's routes over HTTP.
pub struct ModelRoutes {
    router: Router,
    direct: Option<Direct>,
}

impl ModelRoutes {
    /// Those of `app`. The server of several models has the gRPC services itself.
    pub fn of(app: &App) -> Self {
        let router = super::router(app.clone(), Router::new(), Router::new());
        Self { router, direct: Direct::new(app) }
    }
}

impl Routes for ModelRoutes {
    fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        direct::answer(self.direct.as_ref(), &self.router, request)
    }
}
