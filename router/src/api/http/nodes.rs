//! Which callers are gateways of this router's cluster: those with a node's certificate, or with the
//! cluster's secret. They need no API key for `skein.worker.v1`, and for nothing else do they count as nodes.

use axum::body::Body;
use axum::response::Response;
use http::Request;
use http::header::AUTHORIZATION;
use skein_node::supervisor::Secret;
use tonic::Status;

use crate::config::RouterConfig;

/// Paths for gateways.
const FOR_NODES: &str = "/skein.worker.v1.Worker/";

/// Mark of a request from a node of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Node;

/// Recognises nodes.
#[derive(Debug, Clone)]
pub struct NodeCheck {
    secret: Option<Secret>,
    /// Whether strangers are refused. With API keys they are refused in any case, without a node's
    /// certificate or secret an API that is open to all is open to them, too.
    only_nodes: bool,
    /// Where the API is served a second time.
    root_path: String,
}

impl NodeCheck {
    /// As the router is configured.
    pub fn of(config: &RouterConfig) -> Self {
        let secret = config.cluster_secret.clone();
        let has_cluster = secret.is_some() || config.tls.nodes.is_some();
        let only_nodes = has_cluster && config.api_keys.is_empty();
        Self { secret, only_nodes, root_path: config.root_path.clone() }
    }

    /// Leaves the mark [`Node`] on requests of nodes to paths for nodes, and on no others. Returns the
    /// refusal of a stranger, if only nodes may call that path.
    pub fn refusal<B>(&self, request: &mut Request<B>) -> Option<Response> {
        // A connection has one peer, so every request of a node has the mark.
        let by_certificate = request.extensions_mut().remove::<Node>().is_some();
        let path = request.uri().path();
        let below = path.strip_prefix(&*self.root_path).unwrap_or(path);
        if !path.starts_with(FOR_NODES) && !below.starts_with(FOR_NODES) {
            return None;
        }
        if by_certificate || self.has_secret(request) {
            request.extensions_mut().insert(Node);
            return None;
        }
        if !self.only_nodes {
            return None;
        }
        let refusal = Status::unauthenticated(
            "this router accepts only gateways of its cluster: give both the same --cluster-secret-file, or \
             certificates of the same --cluster-ca",
        );
        Some(refusal.into_http::<Body>())
    }

    fn has_secret<B>(&self, request: &Request<B>) -> bool {
        let Some(secret) = &self.secret else { return false };
        let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        secret.is(given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use skein_tls::PortTls;

    use super::*;
    use crate::testing;

    const SECRET: &str = "0123456789abcdef";
    const PATH: &str = "/skein.worker.v1.Worker/Info";

    #[test]
    fn nodes_are_known_by_certificate_or_secret_and_only_on_their_paths() {
        let secret = Some(Secret::given(SECRET).unwrap());
        let open = RouterConfig { tls: PortTls::default(), ..testing::config() };
        let locked = RouterConfig { cluster_secret: secret, ..open.clone() };
        let with_keys = RouterConfig { api_keys: vec!["sesame".to_owned()], ..locked.clone() };
        let bearer = |token: &str| Some(format!("Bearer {token}"));
        let check = |config: &RouterConfig, path: &str, token: Option<String>, certificate, expected| {
            let mut request = Request::builder().uri(path);
            if let Some(token) = &token {
                request = request.header(AUTHORIZATION, token);
            }
            let mut request = request.body(()).unwrap();
            if certificate {
                request.extensions_mut().insert(Node);
            }
            let passed = NodeCheck::of(config).refusal(&mut request).is_none();
            let found = passed.then(|| request.extensions().get::<Node>().is_some());
            assert_eq!(found, expected, "{path} {token:?} {certificate}");
        };
        check(&open, PATH, None, false, Some(false));
        let below = RouterConfig { root_path: "/llm".to_owned(), ..locked.clone() };
        check(&below, PATH, None, false, None);
        check(&below, &format!("/llm{PATH}"), None, false, None);
        check(&locked, PATH, None, false, None);
        check(&locked, PATH, bearer("0123456789abcdeX"), false, None);
        check(&locked, PATH, bearer(SECRET), false, Some(true));
        check(&locked, PATH, None, true, Some(true));
        check(&with_keys, PATH, bearer("sesame"), false, Some(false));
        check(&with_keys, PATH, bearer(SECRET), false, Some(true));
        for (token, certificate) in [(None, true), (bearer(SECRET), false)] {
            check(&locked, "/v1/models", token, certificate, Some(false));
        }
    }
}
