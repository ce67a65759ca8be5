//! The API over TLS: clients, gateways by their certificate or secret, and what others are told.

use std::sync::Arc;

use skein_node::supervisor::Secret;
use skein_tls::{
    ClientFiles, ClientTls, ClusterFiles, ClusterTls, IdentityFiles, PortTls, ServerFiles, ServerTls,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::pki::{Dates, Pair, Pki};
use crate::app::App;
use crate::config::RouterConfig;
use crate::links::transport::{Connector, Grpc};
use crate::testing::{self, Script};

const LIVE: &str = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

fn identity(pair: &Pair) -> IdentityFiles {
    IdentityFiles { cert: pair.cert.clone(), key: pair.key.clone() }
}

fn node(pki: &Pki, name: &str) -> ClusterTls {
    ClusterTls::read(&ClusterFiles { ca: pki.ca(), identity: identity(&pki.node(name)) }).unwrap()
}

fn public(pki: &Pki) -> ServerTls {
    let identity = identity(&pki.issue("public", &["localhost"], Dates::Always));
    ServerTls::read(&ServerFiles { identity, client_ca: None, client_certificates: Default::default() })
        .unwrap()
}

/// Trusts the CA, and shows nothing.
fn browser(pki: &Pki) -> ClientTls {
    ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: None }).unwrap()
}

async fn start(config: RouterConfig) -> String {
    let app = App::new(Arc::new(testing::model_text()), Arc::new(Script::default()), config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(crate::serve::serve(listener, app, std::future::pending()));
    format!("localhost:{port}")
}

async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    stream.write_all(LIVE.as_bytes()).await.unwrap();
    let mut text = String::new();
    // A server may close without the end that TLS has.
    let _ = stream.read_to_string(&mut text).await;
    text
}

async fn info(way: Grpc, address: &str) -> Result<(), String> {
    let transport = way.connect(address).await?;
    transport.info().await.map(drop).map_err(|status| status.message().to_owned())
}

#[tokio::test]
async fn clients_speak_https_and_grpc_on_one_port_and_plain_ones_are_told() {
    let pki = Pki::new();
    let tls = PortTls { clients: Some(public(&pki)), ..PortTls::default() };
    let address = start(RouterConfig { tls, ..testing::config() }).await;
    // Handshakes that never end delay nobody.
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&[22, 3, 1]).await.unwrap();
        silent.push(stream);
    }
    let stream = TcpStream::connect(&address).await.unwrap();
    let answer = get(browser(&pki).connect("localhost", stream).await.unwrap()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    info(Grpc::default().with_tls(browser(&pki).offering(&[b"h2"])), &address).await.unwrap();
    let told = get(TcpStream::connect(&address).await.unwrap()).await;
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("https://"), "{told}");
    // TLS to a port without it.
    let plain = start(testing::config()).await;
    let stream = TcpStream::connect(&plain).await.unwrap();
    let error = browser(&pki).connect("localhost", stream).await.unwrap_err().to_string();
    assert!(error.contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn gateways_are_known_by_certificate_or_secret_and_need_no_key() {
    let (cluster, web) = (Pki::new(), Pki::new());
    let (own, gateway) = (node(&cluster, "router"), node(&cluster, "gateway"));
    let secret = Secret::given("0123456789abcdef").unwrap();
    let tls = PortTls { clients: Some(public(&web)), nodes: Some(own.server), plain_clients: true };
    let keys = vec!["sesame".to_owned()];
    let cluster_secret = Some(secret.clone());
    let guarded = RouterConfig { tls, cluster_secret, api_keys: keys, ..testing::config() };
    let open = RouterConfig { api_keys: Vec::new(), ..guarded.clone() };
    let as_node = || Grpc::default().with_tls(gateway.client.clone());
    let as_client = || Grpc::default().with_tls(browser(&web).offering(&[b"h2"]));
    for (config, stranger) in [(guarded, "API key"), (open, "--cluster-secret-file")] {
        let address = start(config).await;
        info(as_node(), &address).await.unwrap();
        info(as_client().with_key(secret.expose()).unwrap(), &address).await.unwrap();
        let refused = info(as_client(), &address).await.unwrap_err();
        assert!(refused.contains(stranger), "{refused}");
        // Asks for the cluster's name, without a certificate of it.
        let poses = ClientTls::read(&ClientFiles { ca: Some(cluster.ca()), identity: None }).unwrap();
        let poses = Grpc::default().with_tls(poses.offering(&[b"h2"]).expecting("skein-cluster"));
        info(poses, &address).await.unwrap_err();
    }
}

#[tokio::test]
async fn without_a_certificate_for_clients_a_router_serves_them_plainly_beside_nodes() {
    let pki = Pki::new();
    let (own, gateway) = (node(&pki, "router"), node(&pki, "gateway"));
    let tls = PortTls { clients: None, nodes: Some(own.server), plain_clients: true };
    let address = start(RouterConfig { tls, ..testing::config() }).await;
    assert!(get(TcpStream::connect(&address).await.unwrap()).await.starts_with("HTTP/1.1 200"));
    info(Grpc::default().with_tls(gateway.client), &address).await.unwrap();
    let refused = info(Grpc::default(), &address).await.unwrap_err();
    assert!(refused.contains("only gateways of its cluster"), "{refused}");
}
