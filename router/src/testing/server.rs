//! A router's server over a script, and clients that only write and read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Say, Script, delta, model_text};
use crate::app::App;
use crate::config::RouterConfig;
use crate::serve::serve;

pub(crate) struct Server {
    pub app: App,
    pub address: SocketAddr,
    /// Tells it to drain.
    pub stop: oneshot::Sender<()>,
    pub served: JoinHandle<io::Result<()>>,
}

impl Server {
    pub async fn start(script: Script, config: RouterConfig) -> Self {
        let app = App::new(Arc::new(model_text()), Arc::new(script), config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, app.clone(), async {
            let _ = stopped.await;
        }));
        Self { app, address, stop, served }
    }

    /// A new connection with `request` sent.
    pub async fn send(&self, request: &str) -> TcpStream {
        send(self.address, request).await
    }
}

/// A token, and then nothing.
pub(crate) fn endless() -> Script {
    Script { say: vec![Say::Delta(delta(0, "a")), Say::Hang], ..Script::default() }
}

pub(crate) async fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads until the server closes the connection or `end` arrives.
pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(end) {
        match stream.read(&mut buffer).await.unwrap() {
            0 => break,
            count => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
        }
    }
    text
}
