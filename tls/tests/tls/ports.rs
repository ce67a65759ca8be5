//! One port for clients and nodes.

use skein_tls::{
    AcceptError, Accepted, ClientFiles, ClientTls, ClusterFiles, ClusterTls, IdentityFiles, PortTls,
    ServerFiles, ServerTls,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::pki::{Dates, Pair, Pki};

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

/// What the port says to a client with TLS, or without: whether it is a node.
async fn meet(port: &PortTls, client: Option<&ClientTls>) -> Result<(String, bool), AcceptError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = async {
        let (stream, _) = listener.accept().await.unwrap();
        let Accepted { mut wire, is_node } = port.accept(stream).await?;
        wire.write_all(b"hello").await?;
        wire.shutdown().await?;
        Ok::<_, AcceptError>(is_node)
    };
    let asked = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut text = String::new();
        match client {
            Some(client) => {
                let Ok(mut stream) = client.connect("localhost", stream).await else { return text };
                let _ = stream.read_to_string(&mut text).await;
            }
            None => {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
                let _ = stream.read_to_string(&mut text).await;
            }
        }
        text
    };
    let (served, asked) = tokio::join!(served, asked);
    Ok((asked, served?))
}

#[tokio::test]
async fn nodes_and_clients_share_a_port() {
    let (cluster, web) = (Pki::new(), Pki::new());
    let (own, peer, shown) = (node(&cluster, "own"), node(&cluster, "peer"), public(&web));
    let browser = ClientTls::read(&ClientFiles { ca: Some(web.ca()), identity: None }).unwrap();
    let stranger = ClientTls::read(&ClientFiles { ca: Some(cluster.ca()), identity: None }).unwrap();
    let stranger = stranger.expecting("skein-cluster");
    let hello = |is_node| Some(("hello".to_owned(), is_node));

    let both = PortTls { clients: Some(shown), nodes: Some(own.server), plain_clients: true };
    assert_eq!(meet(&both, Some(&browser)).await.ok(), hello(false));
    assert_eq!(meet(&both, Some(&peer.client)).await.ok(), hello(true));
    assert!(matches!(meet(&both, Some(&stranger)).await, Err(AcceptError::Failed(_))));
    assert!(matches!(meet(&both, None).await, Err(AcceptError::Plain { http: true })));

    let nodes_beside_plain = PortTls { clients: None, ..both.clone() };
    assert_eq!(meet(&nodes_beside_plain, None).await.ok(), hello(false));
    assert_eq!(meet(&nodes_beside_plain, Some(&peer.client)).await.ok(), hello(true));
    assert!(meet(&nodes_beside_plain, Some(&stranger)).await.is_err());

    let nodes_only = PortTls { plain_clients: false, ..nodes_beside_plain.clone() };
    assert!(matches!(meet(&nodes_only, None).await, Err(AcceptError::Plain { http: true })));
    assert_eq!(meet(&nodes_only, Some(&peer.client)).await.ok(), hello(true));

    assert_eq!(meet(&PortTls::default(), None).await.ok(), hello(false));
    let https = [&both, &nodes_beside_plain, &nodes_only].map(PortTls::is_https);
    assert_eq!(https, [true, false, true]);
}
