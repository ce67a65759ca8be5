//! A hub over TLS with a certificate from the environment.

use skein_hub::{Environment, Hub, HubError, ModelName, Need, Revision, Watch};
use skein_tests::pki::{Dates, Pair, Pki};
use skein_tls::{ClientCertificates, IdentityFiles, ServerFiles, ServerTls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Answers every request over TLS with a distinctive refusal.
async fn serve(listener: TcpListener, tls: ServerTls) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(mut stream) = tls.accept(stream).await else { continue };
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        let answer = "HTTP/1.1 401 Unauthorized\r\nX-Error-Code: GatedRepo\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

#[tokio::test]
async fn certificates_are_checked_against_the_named_roots() {
    let pki = Pki::new();
    let Pair { cert, key } = pki.issue("hub", &["localhost"], Dates::Always);
    let tls = ServerTls::read(&ServerFiles {
        identity: IdentityFiles { cert, key },
        client_ca: None,
        client_certificates: ClientCertificates::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(serve(listener, tls.unwrap()));
    let cache = tempfile::tempdir().unwrap();
    let roots = pki.ca();

    // The only test of this process, so nothing else reads the variable. The test runs itself twice, with and
    // without it.
    let is_child = std::env::var("TEST_TLS_ENDPOINT").is_ok();
    let endpoint = std::env::var("TEST_TLS_ENDPOINT").unwrap_or(endpoint);
    if !is_child {
        for (has_roots, expected) in [(true, "is gated"), (false, "is not trusted (")] {
            let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--nocapture"]).env("TEST_TLS_ENDPOINT", &endpoint).env_remove("SSL_CERT_DIR");
            child.env(
                "SSL_CERT_FILE",
                if has_roots { roots.as_path() } else { std::path::Path::new("/nowhere") },
            );
            let output = child.output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains(expected), "roots: {has_roots}: {said}");
        }
        return;
    }
    let variable = |name: &str| match name {
        "HF_ENDPOINT" => Some(endpoint.clone()),
        "HF_HUB_CACHE" => cache.path().to_str().map(str::to_owned),
        _ => None,
    };
    let hub = Hub::new(Environment::read(variable).unwrap());
    let (name, main) = (ModelName::parse("org/model").unwrap(), Revision::main());
    let watch = Watch { progress: &|_| {}, accepts: &|_| Ok(()) };
    let error: HubError = hub.pull(&name, &main, Need::All, &watch).await.unwrap_err();
    println!("{error}");
}
