//! A port with TLS before a server without it. The crate `front`, whose tests need little of this one,
//! includes this file.

use std::net::SocketAddr;

use skein_tls::ServerTls;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Decrypts what arrives at a new port, whose address it returns, and passes it on to `inner`.
///
/// # Panics
/// If loopback has no free port.
pub async fn decrypt(tls: ServerTls, inner: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(mut decrypted) = tls.accept(stream).await else { return };
                let Ok(mut plain) = TcpStream::connect(inner).await else { return };
                // A client that disconnects does not fail the test.
                let _ = copy_bidirectional(&mut decrypted, &mut plain).await;
            });
        }
    });
    (address, task)
}
