//! What every API adds to its routes: the key check, and refusals of unknown paths and methods in its own
//! form.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, map_request_with_state};

use super::error::Refuse;
use super::keys::{ApiKeys, KeyCheck, require_key};
use super::rate_limits;
use crate::refusal::Refusal;

/// The complete API of `routes`: other methods are refused, and all of it needs a key.
pub fn guarded<S>(routes: Router<S>, keys: &ApiKeys, refuse: Refuse) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let check = KeyCheck { keys: keys.clone(), refuse };
    let routes = known_methods(routes, refuse);
    let routes = if keys.has_limits() { routes.layer(from_fn(rate_limits::show)) } else { routes };
    routes.layer(map_request_with_state(check, require_key))
}

/// The routes, with a refusal of other methods.
pub fn known_methods<S>(routes: Router<S>, refuse: Refuse) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    routes.method_not_allowed_fallback(async move |request: Request| {
        let message = format!("{} is not allowed on `{}`.", request.method(), shown_path(&request));
        refuse(&request, Refusal::MethodNotAllowed(message))
    })
}

/// Refuses a request to a path that does not exist.
pub fn not_found(request: &Request, refuse: Refuse) -> axum::response::Response {
    let message = format!("There is no path `{}` here.", shown_path(request));
    refuse(request, Refusal::NotFound(message))
}

fn shown_path(request: &Request) -> String {
    request.uri().path().chars().take(200).collect()
}
