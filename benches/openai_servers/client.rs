//! The client: connections that send a request as soon as the last answer has ended.

use std::net::SocketAddr;
use std::time::Duration;

use skein_node::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const CONNECTIONS: usize = 64;
/// Different requests of a load.
const REQUESTS: usize = 512;

/// Requests of one kind.
pub struct Load {
    /// Name in the table.
    pub name: String,
    requests: Vec<String>,
}

/// What a run has measured.
pub struct Measured {
    /// Answers that arrived whole.
    pub answers: u64,
    seconds: f64,
}

impl Measured {
    /// Answers per second.
    pub fn per_second(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

impl Load {
    /// Answers of one token to prompts of `bytes`, whose first half all share.
    pub fn one_token(bytes: usize) -> Self {
        Self::of(format!("one token, prompts of {bytes} B"), bytes, "")
    }

    /// Streams of 64 tokens.
    pub fn stream() -> Self {
        Self::of("streams of 64 tokens".to_owned(), 128, ",\"stream\":true")
    }

    fn of(name: String, bytes: usize, fields: &str) -> Self {
        let request = |nth: usize| {
            let (shared, own) = ("shared ".repeat(bytes / 14), format!("{nth} own ").repeat(bytes / 14));
            let prompt: String = format!("{shared}{own}").chars().take(bytes).collect();
            let body = format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":64{fields}}}"#);
            format!(
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                 authorization: Bearer none\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        Self { name, requests: (0..REQUESTS).map(request).collect() }
    }
}

/// Sends `load` to `servers` for `time`.
pub async fn run(load: &Load, servers: &[SocketAddr], time: Duration) -> Measured {
    let (began, mut tasks) = (clock::now(), JoinSet::new());
    for connection in 0..CONNECTIONS {
        let (server, requests) = (servers[connection % servers.len()], load.requests.clone());
        tasks.spawn(async move {
            let mut answers = 0;
            let mut stream = TcpStream::connect(server).await.expect("the server listens");
            stream.set_nodelay(true).expect("the option exists");
            let mut buffer = Vec::with_capacity(64 << 10);
            while clock::now().since(began) < time {
                let request = &requests[(answers as usize * CONNECTIONS + connection) % requests.len()];
                stream.write_all(request.as_bytes()).await.expect("the server reads");
                let length = message(&mut stream, &mut buffer).await.expect("the server answers");
                assert!(
                    buffer.starts_with(b"HTTP/1.1 200"),
                    "{}",
                    String::from_utf8_lossy(&buffer[..length])
                );
                buffer.drain(..length);
                answers += 1;
            }
            answers
        });
    }
    let answers = tasks.join_all().await.iter().sum();
    Measured { answers, seconds: clock::now().since(began).as_secs_f64() }
}

/// Reads a whole HTTP message into `buffer` and returns its length; `None` at the end of the connection.
pub async fn message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<usize> {
    loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4) {
            let head = std::str::from_utf8(&buffer[..end]).ok()?;
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if head.contains("chunked") {
                while !buffer.ends_with(b"\r\n0\r\n\r\n") {
                    (stream.read_buf(buffer).await.ok()? > 0).then_some(())?;
                }
                return Some(buffer.len());
            }
            let all = end + length.unwrap_or(0);
            while buffer.len() < all {
                (stream.read_buf(buffer).await.ok()? > 0).then_some(())?;
            }
            return Some(all);
        }
        (stream.read_buf(buffer).await.ok()? > 0).then_some(())?;
    }
}

/// Waits until a request succeeds.
pub async fn wait_until_ready(router: SocketAddr) {
    loop {
        let mut buffer = Vec::new();
        if let Ok(mut stream) = TcpStream::connect(router).await {
            let sent = stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let answered = message(&mut stream, &mut buffer).await;
            if sent.is_ok() && answered.is_some() && buffer.starts_with(b"HTTP/1.1 200") {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
