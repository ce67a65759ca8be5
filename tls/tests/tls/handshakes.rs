//! Handshakes over loopback: what is accepted, what is refused, and what each side learns.

use std::fs;

use skein_tls::{
    AcceptError, ClientCertificates, ClientFiles, ClientTls, ClusterFiles, ClusterTls, IdentityFiles,
    ServerFiles, ServerTls, TlsError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::pki::{Dates, Pair, Pki};

fn identity(pair: &Pair) -> IdentityFiles {
    IdentityFiles { cert: pair.cert.clone(), key: pair.key.clone() }
}

fn server(pair: &Pair) -> ServerFiles {
    let client_certificates = ClientCertificates::Required;
    ServerFiles { identity: identity(pair), client_ca: None, client_certificates }
}

fn cluster(pki: &Pki, pair: &Pair) -> ClusterTls {
    ClusterTls::read(&ClusterFiles { ca: pki.ca(), identity: identity(pair) }).unwrap()
}

fn trusting(pki: &Pki, shown: Option<&Pair>) -> ClientTls {
    ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: shown.map(identity) }).unwrap()
}

/// A connection on which the server says `hello`: what the client reads, and why the server refuses.
async fn meet(
    server: &ServerTls,
    client: &ClientTls,
    host: &str,
) -> (Result<String, String>, Option<AcceptError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = server.accept(stream).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        Ok::<_, AcceptError>(())
    };
    let asked = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = client.connect(host, stream).await.map_err(|error| error.to_string())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
        Ok(text)
    };
    let (served, asked) = tokio::join!(served, asked);
    (asked, served.err())
}

#[tokio::test]
async fn a_server_is_believed_by_its_ca_and_its_host() {
    let (pki, other) = (Pki::new(), Pki::new());
    let shown =
        ServerTls::read(&server(&pki.issue("a", &["localhost", "127.0.0.1"], Dates::Always))).unwrap();
    for host in ["localhost", "127.0.0.1"] {
        assert_eq!(meet(&shown, &trusting(&pki, None), host).await.0.unwrap(), "hello");
    }
    for (client, host, expected) in [
        (trusting(&pki, None), "example.com", "for another name"),
        (trusting(&other, None), "localhost", "no trusted CA"),
        (ClientTls::of_system(), "localhost", "no trusted CA"),
    ] {
        let message = meet(&shown, &client, host).await.0.unwrap_err();
        assert!(message.contains(expected), "{host}: {message}");
    }
    let authority = ServerTls::read(&server(&pki.own_pair("ca-as-server"))).unwrap();
    let message = meet(&authority, &trusting(&pki, None), "localhost").await.0.unwrap_err();
    assert!(message.contains("certificate of a CA (CA:TRUE)"), "{message}");
    let client = trusting(&pki, None);
    assert!(client.server_name("[::1]").is_ok());
    let message = client.server_name("not a name").unwrap_err().to_string();
    assert!(message.contains("cannot be the name in a certificate"), "{message}");
}

#[tokio::test]
async fn a_server_with_a_client_ca_serves_only_its_clients() {
    let (pki, other) = (Pki::new(), Pki::new());
    let pair = pki.issue("server", &["localhost"], Dates::Always);
    let mut files = ServerFiles { client_ca: Some(pki.ca()), ..server(&pair) };
    let (ours, foreign) =
        (pki.issue("client", &[], Dates::Always), other.issue("client", &[], Dates::Always));
    let required = ServerTls::read(&files).unwrap();
    let with = trusting(&pki, Some(&ours));
    assert_eq!(meet(&required, &with, "localhost").await.0.unwrap(), "hello");
    for client in [trusting(&pki, None), trusting(&pki, Some(&foreign))] {
        let (read, refused) = meet(&required, &client, "localhost").await;
        assert!(read.is_err() && matches!(refused, Some(AcceptError::Failed(_))), "{read:?} {refused:?}");
    }
    files.client_certificates = ClientCertificates::Optional;
    let optional = ServerTls::read(&files).unwrap();
    assert_eq!(meet(&optional, &trusting(&pki, None), "localhost").await.0.unwrap(), "hello");
    assert!(meet(&optional, &trusting(&pki, Some(&foreign)), "localhost").await.0.is_err());
}

#[tokio::test]
async fn nodes_recognise_each_other_by_ca_and_name_whatever_their_address() {
    let pki = Pki::new();
    let (one, two) = (cluster(&pki, &pki.node("one")), cluster(&pki, &pki.node("two")));
    assert_eq!(meet(&one.server, &two.client, "192.0.2.1").await.0.unwrap(), "hello");
    let stranger = pki.issue("web", &["localhost", "127.0.0.1"], Dates::Always);
    // The CA has issued it, but not to a node.
    let as_client = trusting(&pki, Some(&stranger)).expecting("skein-cluster");
    assert!(meet(&one.server, &as_client, "localhost").await.0.is_err());
    let as_server = ServerTls::read(&server(&stranger)).unwrap();
    let message = meet(&as_server, &one.client, "localhost").await.0.unwrap_err();
    assert!(message.contains("for another name"), "{message}");
    let read = ClusterTls::read(&ClusterFiles { ca: pki.ca(), identity: identity(&stranger) });
    assert!(matches!(read, Err(TlsError::NotOfCluster { .. })), "{read:?}");
    let other = Pki::new();
    // Its issuer is not the CA that it is given.
    let read = ClusterTls::read(&ClusterFiles { ca: other.ca(), identity: identity(&pki.node("three")) });
    assert!(matches!(read, Err(TlsError::NotIssued { .. })), "{read:?}");
    let (read, _) = meet(&one.server, &cluster(&other, &other.node("one")).client, "localhost").await;
    assert!(read.unwrap_err().contains("no trusted CA"));
}

#[tokio::test]
async fn an_expired_client_is_refused() {
    let pki = Pki::new();
    let pair = pki.issue("server", &["localhost"], Dates::Always);
    let required = ServerTls::read(&ServerFiles { client_ca: Some(pki.ca()), ..server(&pair) }).unwrap();
    let expired = pki.issue("client", &[], Dates::Past);
    let read = ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: Some(identity(&expired)) });
    assert!(matches!(read, Err(TlsError::Expired { .. })));
    // A client that does not look at its own dates.
    let roots = fs::read(pki.ca()).unwrap();
    let (cert, key) = (fs::read(&expired.cert).unwrap(), fs::read(&expired.key).unwrap());
    let (read, refused) = meet_raw(&required, &roots, &cert, &key).await;
    assert!(read.is_err(), "{read:?}");
    assert!(refused.unwrap().to_string().contains("xpired"));
}

/// As `meet`, with a client of rustls alone.
async fn meet_raw(
    server: &ServerTls,
    roots: &[u8],
    cert: &[u8],
    key: &[u8],
) -> (Result<String, String>, Option<AcceptError>) {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let mut store = rustls::RootCertStore::empty();
    store.add(CertificateDer::from_pem_slice(roots).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(cert).unwrap()],
            PrivateKeyDer::from_pem_slice(key).unwrap(),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = async {
        let (stream, _) = listener.accept().await.unwrap();
        server.accept(stream).await.map(drop)
    };
    let asked = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
        Ok(text)
    };
    let (served, asked) = tokio::join!(served, asked);
    (asked, served.err())
}

#[tokio::test]
async fn plain_http_is_told_to_use_https() {
    let pki = Pki::new();
    let shown = ServerTls::read(&server(&pki.issue("a", &["localhost"], Dates::Always))).unwrap();
    for (sent, http) in [("GET / HTTP/1.1\r\nhost: x\r\n\r\n", true), ("\0\0\0", false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = async {
            let (stream, _) = listener.accept().await.unwrap();
            shown.accept(stream).await.map(drop).unwrap_err()
        };
        let asked = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut text = String::new();
            // Without an answer the connection may be reset.
            let _ = stream.read_to_string(&mut text).await;
            text
        };
        let (error, text) = tokio::join!(served, asked);
        assert!(matches!(error, AcceptError::Plain { http: found } if found == http), "{error}");
        assert_eq!(text.starts_with("HTTP/1.1 400 "), http, "{text}");
        if http {
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
            assert!(body.contains("https://"), "{body}");
        }
    }
}

#[tokio::test]
async fn a_silent_client_is_dropped_in_time() {
    let pki = Pki::new();
    let shown = ServerTls::read(&server(&pki.issue("a", &["localhost"], Dates::Always))).unwrap();
    for sent in [&b""[..], &[22, 3, 1]] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(sent).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        tokio::time::pause();
        let error = shown.accept(stream).await.map(drop).unwrap_err();
        tokio::time::resume();
        assert!(matches!(error, AcceptError::TooSlow), "{error}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_a_bad_one_for_none() {
    let (pki, other) = (Pki::new(), Pki::new());
    let pair = pki.issue("server", &["localhost"], Dates::Always);
    let shown = ServerTls::read(&server(&pair)).unwrap();
    let clone = shown.clone();
    assert!(!shown.reload().unwrap(), "nothing has changed");
    let before = trusting(&pki, None);

    // The certificate is replaced first, and the key a moment later.
    let new = other.issue("server", &["localhost"], Dates::UntilYear(3999));
    fs::copy(&new.cert, &pair.cert).unwrap();
    assert!(matches!(shown.reload(), Err(TlsError::KeyMismatch { .. })));
    assert_eq!(meet(&shown, &before, "localhost").await.0.unwrap(), "hello");
    fs::copy(&new.key, &pair.key).unwrap();
    let ends_before = shown.certificate().not_after;
    assert!(shown.reload().unwrap());
    assert_ne!(clone.certificate().not_after, ends_before, "what is told is what is shown");
    let after = trusting(&other, None);
    assert_eq!(meet(&clone, &after, "localhost").await.0.unwrap(), "hello");
    assert!(meet(&clone, &before, "localhost").await.0.is_err());

    fs::write(&pair.cert, "").unwrap();
    assert!(matches!(shown.reload(), Err(TlsError::NoCertificate { .. })));
    fs::remove_file(&pair.cert).unwrap();
    assert!(matches!(shown.reload(), Err(TlsError::Unreadable { .. })));
    assert_eq!(meet(&shown, &after, "localhost").await.0.unwrap(), "hello");

    // A client follows a new CA in the same way.
    assert!(!before.reload().unwrap());
    fs::copy(other.ca(), pki.ca()).unwrap();
    assert!(before.reload().unwrap());
    assert_eq!(meet(&shown, &before, "localhost").await.0.unwrap(), "hello");
}
