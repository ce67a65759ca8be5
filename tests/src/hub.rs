//! A server that implements the hub's protocol, with a second server for large files, as at the hub. On
//! request it truncates answers, corrupts bytes, is slow, or omits what mirrors omit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::digest;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::seeded::SeededRng;

/// Longest request head, in bytes.
const MAX_HEAD: u64 = 16 << 10;
/// Most times in a row that a file is truncated, because clients give up at some number.
const CUTS_IN_A_ROW: u32 = 5;
/// Size of one write, in bytes.
const PIECE: usize = 16 << 10;

/// A published model.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Hash of its commit.
    pub commit: String,
    /// Files of that commit.
    pub files: Vec<File>,
    /// Token that may read the model; `None` = public.
    pub token: Option<String>,
}

/// A file of a model.
#[derive(Debug, Clone)]
pub struct File {
    /// Name in the repository.
    pub name: String,
    /// Bytes of the file.
    pub content: Vec<u8>,
    /// Its checksum: SHA-256 of a large file, git's SHA-1 of a small one.
    pub etag: String,
}

impl File {
    /// A file stored in the second server and identified by its SHA-256.
    pub fn large(name: &str, content: Vec<u8>) -> Self {
        let etag = hex(digest::digest(&digest::SHA256, &content).as_ref());
        Self { name: name.to_owned(), content, etag }
    }

    /// A file stored in git and identified by git's hash.
    pub fn small(name: &str, content: impl Into<Vec<u8>>) -> Self {
        let content = content.into();
        let blob = [format!("blob {}\0", content.len()).as_bytes(), &content].concat();
        let etag = hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref());
        Self { name: name.to_owned(), content, etag }
    }

    fn is_large(&self) -> bool {
        self.etag.len() == 64
    }
}

/// Faults that the server injects.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// How many contents of a thousand are truncated at a random byte.
    pub cut: usize,
    /// How many contents of a thousand have a corrupted byte.
    pub corrupted: usize,
    /// Number of requests that are first answered with 503.
    pub busy: u32,
    /// Pause after every 16 KiB of content.
    pub pause: Duration,
    /// Whether `Range` headers are ignored.
    pub ignores_ranges: bool,
    /// Whether the listing omits checksums and sizes.
    pub has_bare_listing: bool,
}

/// A request for content, with what was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Name of the requested file.
    pub file: String,
    /// Position of the first byte.
    pub start: u64,
    /// Number of bytes that were written.
    pub bytes: u64,
}

#[derive(Debug)]
struct State {
    models: BTreeMap<String, Model>,
    faults: Faults,
    rng: SeededRng,
    /// How many times in a row each file was truncated.
    cuts: BTreeMap<String, u32>,
    sent: Vec<Sent>,
    requests: Vec<String>,
    tokens_at_store: usize,
}

/// A running hub.
#[derive(Debug)]
pub struct FakeHub {
    /// URL of the hub: `http://127.0.0.1:port`.
    pub endpoint: String,
    state: Arc<Mutex<State>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl FakeHub {
    /// Starts a hub that publishes `models`, by name.
    pub async fn start(seed: u64, models: impl IntoIterator<Item = (String, Model)>) -> Self {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (front, store) = (bind().await.expect("loopback has a port"), bind().await.expect("another one"));
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        let (endpoint, at) = (format!("http://{}", address(&front)), address(&store));
        let state = State {
            models: models.into_iter().collect(),
            faults: Faults::default(),
            rng: SeededRng::new(seed),
            cuts: BTreeMap::new(),
            sent: Vec::new(),
            requests: Vec::new(),
            tokens_at_store: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let tasks = vec![listen(front, at, true, &state), listen(store, at, false, &state)];
        Self { endpoint, state, tasks }
    }

    /// Sets the faults of the following requests.
    pub fn misbehave(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// Replaces the published models.
    pub fn publish(&self, models: impl IntoIterator<Item = (String, Model)>) {
        lock(&self.state).models = models.into_iter().collect();
    }

    /// Returns the contents that were sent since the last call.
    pub fn take_sent(&self) -> Vec<Sent> {
        std::mem::take(&mut lock(&self.state).sent)
    }

    /// Waits until content has been sent since [`FakeHub::take_sent`]; false if none is sent in time.
    pub async fn wait_for_content(&self) -> bool {
        for _ in 0..2000 {
            if lock(&self.state).sent.iter().any(|sent| sent.bytes > 0) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// Returns the requests since the last call, as `GET /path`.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).requests)
    }

    /// Number of requests to the second server that carried a token. It must be 0.
    pub fn tokens_at_store(&self) -> usize {
        lock(&self.state).tokens_at_store
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock(state: &Arc<Mutex<State>>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(
    listener: TcpListener,
    store: SocketAddr,
    is_front: bool,
    state: &Arc<Mutex<State>>,
) -> JoinHandle<()> {
    let state = Arc::clone(state);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let state = Arc::clone(&state);
            // Each connection serves one request; a client that disconnects ends it.
            tokio::spawn(async move { serve(stream, store, is_front, &state).await });
        }
    })
}

struct Request {
    method: String,
    path: String,
    from: u64,
    token: Option<String>,
}

struct Reply {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// File that the body belongs to, and the body's position in it.
    content: Option<(String, u64)>,
}

impl Reply {
    fn new(status: &'static str, headers: Vec<(&'static str, String)>, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers, body: body.into(), content: None }
    }
}

async fn serve(
    stream: TcpStream,
    store: SocketAddr,
    is_front: bool,
    state: &Arc<Mutex<State>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let request = read_request(&mut stream).await?;
    let reply = {
        let mut state = lock(state);
        state.requests.push(format!("{} {}", request.method, request.path));
        state.tokens_at_store += usize::from(!is_front && request.token.is_some());
        if state.faults.busy > 0 {
            state.faults.busy -= 1;
            Reply::new("503 Service Unavailable", vec![("Retry-After", "0".to_owned())], "")
        } else {
            answer(&state, &request, store, is_front)
        }
    };
    let mut head = format!("HTTP/1.1 {}\r\nConnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| *name == "Content-Length") {
        let _ = write!(head, "Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await.ok()?;
    if request.method != "HEAD" {
        send(&mut stream, reply, state).await?;
    }
    stream.shutdown().await.ok()
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = stream.take(MAX_HEAD).lines();
    let first = lines.next_line().await.ok()??;
    let mut words = first.split(' ').map(str::to_owned);
    let mut request = Request { method: words.next()?, path: words.next()?, from: 0, token: None };
    while let Some(line) = lines.next_line().await.ok()?.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("range", range) => {
                request.from = range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()?
            }
            ("authorization", token) => request.token = Some(token.strip_prefix("Bearer ")?.to_owned()),
            _ => {}
        }
    }
    Some(request)
}

/// Writes the body with the injected faults, and records what was written.
async fn send(stream: &mut BufReader<TcpStream>, mut reply: Reply, state: &Arc<Mutex<State>>) -> Option<()> {
    let (pause, sent) = {
        let mut state = lock(state);
        let State { faults, rng, cuts, .. } = &mut *state;
        if reply.content.is_some() && !reply.body.is_empty() {
            let length = reply.body.len();
            if rng.below(1000) < faults.corrupted {
                reply.body[rng.below(length)] ^= 0x40;
            }
            let in_a_row = reply.content.as_ref().map(|(file, _)| cuts.entry(file.clone()).or_default());
            if let Some(in_a_row) = in_a_row {
                let is_cut = *in_a_row < CUTS_IN_A_ROW && rng.below(1000) < faults.cut;
                *in_a_row = if is_cut { *in_a_row + 1 } else { 0 };
                if is_cut {
                    reply.body.truncate(rng.below(length));
                }
            }
        }
        let pause = faults.pause;
        let sent = reply.content.map(|(file, start)| {
            state.sent.push(Sent { file, start, bytes: 0 });
            state.sent.len() - 1
        });
        (pause, sent)
    };
    for piece in reply.body.chunks(PIECE) {
        stream.write_all(piece).await.ok()?;
        stream.flush().await.ok()?;
        if let Some(sent) = sent
            && let Some(sent) = lock(state).sent.get_mut(sent)
        {
            sent.bytes += piece.len() as u64;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    Some(())
}

fn answer(state: &State, request: &Request, store: SocketAddr, is_front: bool) -> Reply {
    let path = request.path.split('?').next().unwrap_or_default();
    let not_found = || refused("404 Not Found", "EntryNotFound", "no such entry");
    if !is_front {
        let found = path.strip_prefix("/store/").and_then(|etag| {
            state.models.values().flat_map(|model| &model.files).find(|file| file.etag == etag)
        });
        return found.map_or_else(not_found, |file| content(state, file, request.from));
    }
    if let Some(rest) = path.strip_prefix("/api/models/") {
        let Some((name, revision)) = rest.split_once("/revision/") else { return not_found() };
        // The old name of a renamed model is a redirect.
        if let Some(name) = name.strip_prefix("old-") {
            let to = format!("/api/models/{name}/revision/{revision}?blobs=true");
            return Reply::new("307 Temporary Redirect", vec![("Location", to)], "");
        }
        return match granted(state, name, request) {
            Err(reply) => reply,
            Ok(model) if revision != "main" && revision != model.commit => {
                refused("404 Not Found", "RevisionNotFound", "no such revision")
            }
            Ok(model) => Reply::new("200 OK", Vec::new(), listing(model, state.faults.has_bare_listing)),
        };
    }
    let Some((name, rest)) = path.trim_start_matches('/').split_once("/resolve/") else { return not_found() };
    let model = match granted(state, name, request) {
        Ok(model) => model,
        Err(reply) => return reply,
    };
    let file = rest.split_once('/').and_then(|(_, file)| model.files.iter().find(|known| known.name == file));
    match file {
        None => not_found(),
        Some(file) if file.is_large() => {
            let headers = vec![
                ("Location", format!("http://{store}/store/{}?signature=secret", file.etag)),
                ("X-Linked-ETag", format!("\"{}\"", file.etag)),
                ("X-Linked-Size", file.content.len().to_string()),
                ("ETag", "\"of the pointer\"".to_owned()),
            ];
            Reply::new("302 Found", headers, "")
        }
        Some(file) => content(state, file, request.from),
    }
}

/// Checks that a request may read the model `name`. A private model looks like one that does not exist, as at
/// the hub.
fn granted<'a>(state: &'a State, name: &str, request: &Request) -> Result<&'a Model, Reply> {
    let model = state.models.get(name).or_else(|| state.models.get(name.trim_start_matches("old-")));
    let model = model.ok_or_else(|| refused("401 Unauthorized", "RepoNotFound", "no such model"))?;
    match (&model.token, &request.token) {
        (None, _) => Ok(model),
        (Some(needed), Some(given)) if needed == given => Ok(model),
        (Some(_), Some(given)) if given == "expired" => {
            Err(refused("401 Unauthorized", "", "invalid credentials"))
        }
        (Some(_), Some(_)) => Err(refused("403 Forbidden", "GatedRepo", "not in the authorized list")),
        (Some(_), None) => Err(refused("401 Unauthorized", "GatedRepo", "you must be authenticated")),
    }
}

fn refused(status: &'static str, code: &str, message: &str) -> Reply {
    let mut headers = vec![("X-Error-Message", message.to_owned())];
    if !code.is_empty() {
        headers.push(("X-Error-Code", code.to_owned()));
    }
    Reply::new(status, headers, message)
}

fn listing(model: &Model, is_bare: bool) -> String {
    let siblings = model.files.iter().map(|file| {
        let (name, size) = (&file.name, file.content.len());
        let lfs = serde_json::json!({"sha256": file.etag, "size": size, "pointerSize": 134});
        match (is_bare, file.is_large()) {
            (true, _) => serde_json::json!({"rfilename": name}),
            (false, true) => {
                serde_json::json!({"rfilename": name, "blobId": "0".repeat(40), "size": size, "lfs": lfs})
            }
            (false, false) => serde_json::json!({"rfilename": name, "blobId": file.etag, "size": size}),
        }
    });
    serde_json::json!({"sha": model.commit, "siblings": siblings.collect::<Vec<_>>()}).to_string()
}

fn content(state: &State, file: &File, from: u64) -> Reply {
    let length = file.content.len() as u64;
    let etag = ("ETag", format!("\"{}\"", file.etag));
    let start = if state.faults.ignores_ranges { 0 } else { from };
    if start > 0 && start >= length {
        return Reply::new("416 Range Not Satisfiable", vec![etag], "");
    }
    let (status, headers) = if start > 0 {
        (
            "206 Partial Content",
            vec![etag, ("Content-Range", format!("bytes {start}-{}/{length}", length - 1))],
        )
    } else {
        ("200 OK", vec![etag])
    };
    let mut headers = headers;
    headers.push(("Content-Length", (length - start).to_string()));
    let body = file.content[start as usize..].to_vec();
    Reply { status, headers, body, content: Some((file.name.clone(), start)) }
}
