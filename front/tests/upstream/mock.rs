//! A server that speaks the OpenAI API, on a plain socket, so that every fault of a server and of its
//! connections can be scripted.
//!
//! Its model says `t0 t1 t2 …` and continues an answer that it is given, so a client can tell whether
//! anything was lost or repeated.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// What the server does with a request for generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// Answers as it should.
    Answer,
    /// Breaks the connection after this many events.
    Cut(usize),
    /// Breaks it in the middle of the next event.
    CutWithin(usize),
    /// Ends the stream properly after this many events, without an end of the answer.
    EndEarly(usize),
    /// Reports a failure of its engine after this many events.
    EngineFails(usize),
    /// Says nothing more after this many events.
    Stall(usize),
    /// Answers, and tells the counts of tokens: prompt, cached, output.
    Tell(u64, u64, u64),
    /// Closes the connection in the middle of a body with a length.
    CutBody,
    /// Answers with this status.
    Status(u16),
    /// Answers with something that is not HTTP.
    Garbage,
    /// Answers with an endless head.
    EndlessHead,
    /// Answers with a body of this many bytes.
    Huge(usize),
    /// Sends exactly this.
    Raw(&'static str),
    /// Sends exactly this and closes the connection.
    RawAndClose(&'static str),
}

/// What the server says about its health.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Health {
    Good,
    Bad,
    /// No such path.
    Absent,
    /// No answer at all, like a stopped process.
    Silent,
}

#[derive(Debug)]
pub struct State {
    pub acts: Mutex<VecDeque<Act>>,
    pub health: Mutex<Health>,
    pub models: Mutex<Vec<&'static str>>,
    /// Heads and bodies of the requests for generation.
    pub calls: Mutex<Vec<(String, Value)>>,
    /// Streams that their reader has left.
    pub left: AtomicUsize,
    pub running: AtomicUsize,
    pub connections: AtomicUsize,
    /// Bytes of [`Act::Huge`] that the system took.
    pub sent: AtomicUsize,
    /// Pause before each event.
    pub pause: Duration,
}

pub struct Mock {
    pub address: SocketAddr,
    pub state: Arc<State>,
    end: CancellationToken,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mock {
    pub async fn start() -> Self {
        Self::paced(Duration::ZERO).await
    }

    pub async fn paced(pause: Duration) -> Self {
        let state = State {
            acts: Mutex::default(),
            health: Mutex::new(Health::Good),
            models: Mutex::new(vec!["m"]),
            calls: Mutex::default(),
            left: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            pause,
        };
        Self::at(([127, 0, 0, 1], 0).into(), Arc::new(state)).await
    }

    async fn at(address: SocketAddr, state: Arc<State>) -> Self {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let (address, end) = (listener.local_addr().expect("it is bound"), CancellationToken::new());
        let (accepting, shared) = (end.clone(), state.clone());
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    () = accepting.cancelled() => return,
                    accepted = listener.accept() => accepted.expect("it accepts").0,
                };
                let (state, ending) = (shared.clone(), accepting.clone());
                tokio::spawn(async move {
                    state.connections.fetch_add(1, Ordering::SeqCst);
                    tokio::select! {
                        () = ending.cancelled() => {}
                        _ = serve(stream, &state) => {}
                    }
                });
            }
        });
        Self { address, state, end }
    }

    /// Closes everything, like a process that was killed.
    pub async fn kill(&self) {
        self.end.cancel();
        while TcpStream::connect(self.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn restart(&mut self) {
        *self = Self::at(self.address, self.state.clone()).await;
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn plan(&self, acts: &[Act]) {
        lock(&self.state.acts).extend(acts);
    }

    pub fn set_health(&self, health: Health) {
        *lock(&self.state.health) = health;
    }

    pub fn calls(&self) -> Vec<(String, Value)> {
        lock(&self.state.calls).clone()
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Counts what runs, also if it is dropped.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(mut stream: TcpStream, state: &State) -> Option<()> {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            (stream.read_buf(&mut buffer).await.ok()? > 0).then_some(())?;
        };
        let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        while buffer.len() < end + length {
            (stream.read_buf(&mut buffer).await.ok()? > 0).then_some(())?;
        }
        let body: Vec<u8> = buffer.drain(..end + length).skip(end).collect();
        if head.starts_with("get /health") {
            let health = *lock(&state.health);
            match health {
                Health::Good => whole(&mut stream, 200, "").await?,
                Health::Bad => whole(&mut stream, 503, "").await?,
                Health::Absent => whole(&mut stream, 404, "").await?,
                Health::Silent => std::future::pending().await,
            }
        } else if head.starts_with("get /v1/models") {
            let data: Vec<Value> =
                lock(&state.models).iter().map(|id| json!({"id": id, "object": "model"})).collect();
            whole(&mut stream, 200, &json!({"object": "list", "data": data}).to_string()).await?;
        } else {
            state.running.fetch_add(1, Ordering::SeqCst);
            let _running = Running(&state.running);
            let body = serde_json::from_slice(&body).unwrap_or_default();
            lock(&state.calls).push((head, body));
            let body = lock(&state.calls).last().expect("one was pushed").clone();
            let act = lock(&state.acts).pop_front().unwrap_or(Act::Answer);
            generate(&mut stream, state, &body.0, &body.1, act).await?;
        }
    }
}

async fn whole(stream: &mut TcpStream, status: u16, body: &str) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: keep-alive\r\n\
         x-private: 1\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()
}

/// Tokens that the answer has already, and those that it should get.
fn tokens(head: &str, body: &Value) -> std::ops::Range<u64> {
    let had = if head.contains("/chat/") {
        let last = body["messages"].as_array().and_then(|messages| messages.last());
        last.filter(|last| last["role"] == "assistant")
            .map_or("", |last| last["content"].as_str().unwrap_or(""))
    } else {
        body["prompt"].as_str().and_then(|prompt| prompt.split_once('|')).map_or("", |(_, had)| had)
    };
    let from = had.split(' ').filter(|word| !word.is_empty()).count() as u64;
    from..from + body["max_tokens"].as_u64().unwrap_or(4)
}

async fn generate(stream: &mut TcpStream, state: &State, head: &str, body: &Value, act: Act) -> Option<()> {
    match act {
        Act::Status(status) => {
            let error = json!({"error": {"message": format!("mock {status}"), "code": status}});
            return whole(stream, status, &error.to_string()).await;
        }
        Act::Garbage => {
            stream.write_all(b"220 smtp ready\r\n\r\nhello").await.ok()?;
            return None;
        }
        Act::EndlessHead => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await.ok()?;
            loop {
                stream.write_all(format!("x-more: {}\r\n", "y".repeat(500)).as_bytes()).await.ok()?;
            }
        }
        Act::Huge(bytes) => {
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n").as_bytes())
                .await
                .ok()?;
            let part = vec![b'z'; 1 << 16];
            for at in (0..bytes).step_by(part.len()) {
                let part = &part[..part.len().min(bytes - at)];
                stream.write_all(part).await.ok()?;
                state.sent.fetch_add(part.len(), Ordering::SeqCst);
            }
            return Some(());
        }
        Act::Raw(bytes) => return stream.write_all(bytes.as_bytes()).await.ok(),
        Act::RawAndClose(bytes) => {
            stream.write_all(bytes.as_bytes()).await.ok()?;
            stream.shutdown().await.ok()?;
            return None;
        }
        Act::CutBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").await.ok()?;
            return None;
        }
        _ => {}
    }
    let usage = match act {
        Act::Tell(prompt, cached, output) => json!({
            "prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached},
        }),
        _ => Value::Null,
    };
    let range = tokens(head, body);
    if body["stream"] != true {
        if act == Act::Stall(0) {
            return gone(stream, state).await;
        }
        let text: String = range.map(|token| format!("t{token} ")).collect();
        let message = json!({"role": "assistant", "content": text});
        let answer = json!({"choices": [{"text": text, "message": message}], "usage": usage});
        return whole(stream, 200, &answer.to_string()).await;
    }
    let usage = (!usage.is_null()).then(|| format!("data: {}\n\n", json!({"choices": [], "usage": usage})));
    stream_out(stream, state, head.contains("/chat/"), range, act, usage).await
}

async fn stream_out(
    stream: &mut TcpStream,
    state: &State,
    is_chat: bool,
    range: std::ops::Range<u64>,
    act: Act,
    usage: Option<String>,
) -> Option<()> {
    if act == Act::Stall(0) {
        return gone(stream, state).await;
    }
    let id = format!("id-{}", lock(&state.calls).len());
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.ok()?;
    let chunk = |choice: Value| format!("data: {}\n\n", json!({"id": id, "choices": [choice]}));
    let mut events = Vec::new();
    if is_chat {
        events.push(chunk(json!({"index": 0, "delta": {"role": "assistant", "content": ""}})));
    }
    let role = events.len();
    for token in range {
        let text = format!("t{token} ");
        events.push(chunk(match is_chat {
            true => json!({"index": 0, "delta": {"content": text}, "finish_reason": null}),
            false => json!({"index": 0, "text": text, "finish_reason": null}),
        }));
    }
    events.push(chunk(json!({"index": 0, "delta": {}, "text": "", "finish_reason": "length"})));
    events.extend(usage);
    events.push("data: [DONE]\n\n".to_owned());
    for (at, event) in events.iter().enumerate() {
        tokio::time::sleep(state.pause).await;
        let nth = at.wrapping_sub(role);
        match act {
            Act::Cut(after) if nth == after => return None,
            Act::CutWithin(after) if nth == after => {
                part(stream, state, &event[..event.len() / 2]).await?;
                return None;
            }
            Act::EndEarly(after) if nth == after => break,
            Act::EngineFails(after) if nth == after => {
                let error = json!({"error": {"message": "died", "type": "InternalServerError", "code": 500}});
                part(stream, state, &format!("data: {error}\n\ndata: [DONE]\n\n")).await?;
                break;
            }
            Act::Stall(after) if nth == after => return gone(stream, state).await,
            _ => part(stream, state, event).await?,
        }
    }
    stream.write_all(b"0\r\n\r\n").await.ok()
}

async fn part(stream: &mut TcpStream, state: &State, text: &str) -> Option<()> {
    let sent = stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await;
    if sent.is_err() {
        state.left.fetch_add(1, Ordering::SeqCst);
    }
    sent.ok()
}

/// Waits until the reader leaves.
async fn gone(stream: &mut TcpStream, state: &State) -> Option<()> {
    let mut nothing = [0; 16];
    while stream.read(&mut nothing).await.is_ok_and(|count| count > 0) {}
    state.left.fetch_add(1, Ordering::SeqCst);
    None
}
