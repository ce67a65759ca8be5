//! How a collector is reached: plain, which the exporter does by itself, or by TLS from our files.

use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use skein_tls::ClientTls;
use tonic::transport::{Channel, Endpoint as GrpcEndpoint};
use tower::Service;

use super::error::StartError;
use super::export::EXPORT_TIMEOUT;
use super::options::{Endpoint, Protocol};
use crate::certificates;

/// Time for a connection, its handshake included; below [`EXPORT_TIMEOUT`], so that its error is the one
/// reported.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Protocol of gRPC, offered by ALPN.
const GRPC: &[&[u8]] = &[b"h2"];

/// A way to a collector.
pub(super) enum Way {
    PlainGrpc,
    PlainHttp,
    Grpc(Channel),
    Http(Box<HyperClient<Encrypted>>),
}

impl Way {
    /// Opens no connection. Needs the runtime that will.
    pub fn to(endpoint: &Endpoint) -> Result<Self, StartError> {
        match (endpoint.protocol, endpoint.is_https()) {
            (Protocol::Grpc, false) => Ok(Self::PlainGrpc),
            (Protocol::Http, false) => Ok(Self::PlainHttp),
            (Protocol::Grpc, true) => {
                let way = Encrypted::new(endpoint, GRPC)?;
                Ok(Self::Grpc(channel(endpoint, way)?))
            }
            (Protocol::Http, true) => {
                let client = HyperClient::new(Encrypted::new(endpoint, &[])?, EXPORT_TIMEOUT, None);
                Ok(Self::Http(Box::new(client)))
            }
        }
    }
}

/// tonic refuses `https` with a connector of another, so that only the origin, which requests name, has it.
fn channel(endpoint: &Endpoint, way: Encrypted) -> Result<Channel, StartError> {
    let origin: Uri = endpoint.url.parse().map_err(|error| endpoint.unusable(error))?;
    let plain = with_scheme(&origin, Scheme::HTTP).map_err(|error| endpoint.unusable(error))?;
    let to = GrpcEndpoint::from(plain).origin(origin).timeout(EXPORT_TIMEOUT);
    Ok(to.connect_timeout(CONNECT_TIMEOUT).connect_with_connector_lazy(way))
}

/// `of` with another scheme, and with the port that `https` means if it names none.
fn with_scheme(of: &Uri, scheme: Scheme) -> Result<Uri, http::Error> {
    let mut parts = of.clone().into_parts();
    if let (Some(authority), None) = (of.authority(), of.port()) {
        parts.authority = Some(format!("{authority}:443").parse()?);
    }
    parts.scheme = Some(scheme);
    Ok(Uri::from_parts(parts)?)
}

/// Connects by TCP and TLS. Changed files are read for the next connection; connections to collectors are
/// few, and the thread that opens them serves no request.
#[derive(Debug, Clone)]
pub(super) struct Encrypted {
    plain: HttpConnector,
    tls: ClientTls,
}

impl Encrypted {
    fn new(endpoint: &Endpoint, protocols: &'static [&'static [u8]]) -> Result<Self, StartError> {
        let tls = ClientTls::read(&endpoint.tls).map_err(|error| endpoint.unusable(error))?;
        if endpoint.tls.identity.is_some() {
            let shown = tls.clone();
            certificates::watch("otlp-cert", move || {
                // A connection may live long, and files be renewed meanwhile. A bad one is named by the next
                // connection.
                let _ = shown.reload();
                shown.certificate()
            });
        }
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Ok(Self { plain, tls: tls.offering(protocols) })
    }
}

impl Service<Uri> for Encrypted {
    type Response = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
    type Error = <HttpsConnector<HttpConnector> as Service<Uri>>::Error;
    type Future = <HttpsConnector<HttpConnector> as Service<Uri>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.plain.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        if let Err(error) = self.tls.reload() {
            tracing::warn!(%error, "new certificates for the OTLP collector cannot be used; the old ones stay");
        }
        let mut way = HttpsConnector::from((self.plain.clone(), self.tls.current()));
        // One that names no host fails there.
        way.call(with_scheme(&to, Scheme::HTTPS).unwrap_or(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_port_means_that_of_https() {
        let check = |from: &str, expected: &str| {
            let from: Uri = from.parse().expect("a URI");
            assert_eq!(with_scheme(&from, Scheme::HTTP).expect("it stays one").to_string(), expected);
        };
        check("https://collector", "http://collector:443/");
        check("https://collector:4317/", "http://collector:4317/");
        check("https://[::1]/v1/traces", "http://[::1]:443/v1/traces");
    }
}
