//! The routes that take most requests, without a router in between: it clones and allocates tens of boxes for
//! each request. They pass the same functions in the same order as in [`router`](super::router()).

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::{BoxFuture, Either, ready};
use http::Method;
use tower::ServiceExt;

use super::http::around::around;
use super::http::keys::ApiKeys;
use super::http::rate_limits;
use super::openai::error::OpenAiError;
use super::openai::{chat, completions};
use crate::app::App;

/// Serves the direct routes.
#[derive(Clone)]
pub struct Direct {
    app: App,
    keys: ApiKeys,
}

/// A direct route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/chat/completions`.
    Chat,
}

impl Route {
    /// The direct route of a request, if any.
    fn of(request: &Request) -> Option<Self> {
        let routes = [Self::Completions, Self::Chat];
        let is_post = request.method() == Method::POST;
        routes.into_iter().find(|route| is_post && route.path() == request.uri().path())
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// Answers a request by its direct route, else by `router`. In a box, because a connection keeps room for its
/// answer's state.
pub fn answer(direct: Option<&Direct>, router: &Router, request: Request) -> BoxFuture<'static, Response> {
    match direct.zip(Route::of(&request)) {
        Some((direct, route)) => direct.clone().answer(route, request).boxed(),
        None => {
            let answered = router.clone().oneshot(request);
            answered.map(|answer| answer.unwrap_or_else(|never| match never {})).boxed()
        }
    }
}

impl Direct {
    /// `None` if pages of other origins are allowed: their answers have further headers.
    pub fn new(app: &App) -> Option<Self> {
        let has_origins = !app.config.allowed_origins.is_empty();
        (!has_origins).then(|| Self { app: app.clone(), keys: ApiKeys::of(&app.config) })
    }

    /// Answers a request to `route`.
    fn answer(self, route: Route, request: Request) -> impl Future<Output = Response> + Send + 'static {
        let Self { app, keys } = self;
        let handled = app.clone();
        let next = move |request: Request, id| {
            let tenant = match keys.tenant_of(&request) {
                Ok(tenant) => tenant,
                Err(refusal) => return Either::Left(ready(OpenAiError::refuse(&request, refusal))),
            };
            let (id, whose) = (Extension(id), Extension(tenant.clone()));
            let answered = match route {
                Route::Completions => Either::Left(completions::create(State(handled), id, whose, request)),
                Route::Chat => Either::Right(chat::create(State(handled), id, whose, request)),
            };
            Either::Right(answered.map(move |answer| {
                let mut answer = answer.into_response();
                if keys.has_limits() {
                    rate_limits::add_of(&mut answer, &tenant, false);
                }
                answer
            }))
        };
        around(app, route.path().into(), request, next)
    }
}
