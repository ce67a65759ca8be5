//! A server that answers at once with the same bytes.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Tokens of a stream, and of each part of it that is written at once.
const TOKENS: usize = 64;
const AT_ONCE: usize = 16;

/// Starts a server on a free port.
pub async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn serve(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let answer = whole(
        r#"{"id":"c","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#,
    );
    let list = whole(r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#);
    let parts = parts();
    let mut buffer = Vec::with_capacity(64 << 10);
    loop {
        let length = super::client::message(&mut stream, &mut buffer).await?;
        let head = &buffer[..length.min(64)];
        if head.starts_with(b"GET") {
            stream.write_all(list.as_bytes()).await.ok()?;
        } else if buffer[..length].ends_with(b"\"stream\":true}") {
            for part in &parts {
                stream.write_all(part.as_bytes()).await.ok()?;
            }
        } else {
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
        buffer.drain(..length);
    }
}

fn whole(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// The stream as it is written.
fn parts() -> Vec<String> {
    let event = r#"data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":" word","finish_reason":null}]}"#;
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let part = (0..AT_ONCE).map(|_| chunk(&format!("{event}\n\n"))).collect::<String>();
    let mut parts = vec![part; TOKENS / AT_ONCE];
    parts[0].insert_str(
        0,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    if let Some(last) = parts.last_mut() {
        last.push_str(&chunk("data: [DONE]\n\n"));
        last.push_str("0\r\n\r\n");
    }
    parts
}
