//! What every request passes on its way to a route: its trace, receipts, its id, and the count of answers.
//! They are functions around the next one and one layer in all: a router keeps each layer in a box, which
//! every request clones together with all boxes inside it.

use std::borrow::Cow;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::request_id::RequestId;
use super::{metrics, receipts, request_id, span};
use crate::app::App;

/// Answers a request to `route` by `next`, which gets the request's id. A chain of combinators: async
/// functions would keep room for the request at each step.
pub fn around<F: Future<Output = Response>>(
    app: App,
    route: Cow<'static, str>,
    request: Request,
    next: impl FnOnce(Request, RequestId) -> F,
) -> impl Future<Output = Response> {
    let counted = |request, id| metrics::count(app, route, request, |request| next(request, id));
    span::trace(request, |request| receipts::give(request, |request| request_id::name(request, counted)))
}

/// [`around`] as a layer: handlers find the id in the extensions. Unknown paths and methods are counted
/// together.
pub async fn layer(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.map_or(Cow::Borrowed("none"), Cow::Owned);
    let with_id = |mut request: Request, id| {
        request.extensions_mut().insert(id);
        next.run(request)
    };
    around(app, route, request, with_id).await
}
