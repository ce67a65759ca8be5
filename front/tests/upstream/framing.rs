//! Where a message ends, on both sides: whatever a server or a client sends, the next request on a connection
//! gets its own answer (RFC 9112, section 6.3).

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::mock::Act;
use super::{Scene, TIMEOUT, config};

/// A connection to the router that reads each answer to exactly where its own framing ends it.
struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// What the client sees of an answer.
#[derive(Debug, PartialEq)]
struct Seen {
    head: String,
    body: String,
}

impl Seen {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let value = lines.find(|(its, _)| *its == name).map(|(_, value)| value);
        assert!(lines.all(|(its, _)| its != name), "{name} twice: {}", self.head);
        value
    }
}

impl Client {
    async fn to(scene: &Scene) -> Self {
        let stream = TcpStream::connect(scene.address).await.expect("the harness works");
        Self { stream, bytes: Vec::new() }
    }

    async fn send(&mut self, request: &str) {
        self.stream.write_all(request.as_bytes()).await.expect("the router reads");
    }

    async fn post(&mut self, name: &str) {
        let body = json!({"model": "m", "prompt": format!("{name}|"), "max_tokens": 1}).to_string();
        let length = body.len();
        self.send(&format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    }

    /// The next bytes until `end`, or `None` if the connection is closed before it.
    async fn until(&mut self, end: impl Fn(&[u8]) -> Option<usize>) -> Option<String> {
        loop {
            if let Some(at) = end(&self.bytes) {
                return Some(self.bytes.drain(..at).map(char::from).collect());
            }
            let read = tokio::time::timeout(TIMEOUT, self.stream.read_buf(&mut self.bytes));
            if read.await.expect("in time").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        self.until(|bytes| Some(bytes.windows(2).position(|two| two == b"\r\n")? + 2)).await
    }

    /// One answer; `None` if the connection was closed within it.
    async fn answer(&mut self) -> Option<Seen> {
        let head =
            self.until(|bytes| Some(bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4)).await?;
        let mut seen = Seen { head, body: String::new() };
        assert!(seen.head.starts_with("HTTP/1.1 "), "{}", seen.head);
        let length = seen.header("content-length").map(|length| length.parse::<usize>().expect("a number"));
        match (length, seen.header("transfer-encoding")) {
            (Some(length), None) => {
                seen.body = self.until(|bytes| (bytes.len() >= length).then_some(length)).await?;
            }
            (None, Some("chunked")) => loop {
                let line = self.line().await?;
                let size = usize::from_str_radix(line.trim_end(), 16).expect("a size");
                let part = self.until(|bytes| (bytes.len() >= size + 2).then_some(size + 2)).await?;
                seen.body.push_str(part.strip_suffix("\r\n").expect("a chunk's end"));
                if size == 0 {
                    break;
                }
            },
            (None, None) if [204, 304].contains(&seen.status()) => {}
            framing => panic!("{framing:?}: {}", seen.head),
        }
        Some(seen)
    }

    /// All that still arrives until the router closes.
    async fn rest(&mut self) -> String {
        while self.until(|_| None).await.is_some() {}
        self.bytes.drain(..).map(char::from).collect()
    }
}

/// What the client must see of a server's answer.
#[derive(Debug, Clone, Copy)]
enum Want {
    /// This status and body, with no header of the server's connection.
    Passes(u16, &'static str),
    /// An error of the router: the server broke the protocol.
    Refused,
    /// A part of a body, after which the connection is closed.
    Cut,
}

use Want::{Cut, Passes, Refused};

/// The body of an answer within an answer, for a client that is misled about where the first one ends.
const WITHIN: &str = "HTTP/1.1 200 OK\r\nx-evil: 1\r\ncontent-length: 4\r\n\r\nevil";

/// Head lines after the status line, bytes after the head, whether the server closes, what the client sees.
type Row = (&'static str, &'static str, bool, Want);

const OK: [Row; 34] = [
    ("content-length: 2", "ok", false, Passes(200, "ok")),
    ("transfer-encoding: chunked", "2\r\nok\r\n0\r\n\r\n", false, Passes(200, "ok")),
    ("content-length: 2\r\ntransfer-encoding: chunked", "4\r\nokok\r\n0\r\n\r\n", false, Passes(200, "okok")),
    ("transfer-encoding: chunked\r\ncontent-length: 2", "4\r\nokok\r\n0\r\n\r\n", false, Passes(200, "okok")),
    ("content-length: 0\r\ntransfer-encoding: chunked", "2\r\nok\r\n0\r\n\r\n", false, Passes(200, "ok")),
    ("content-length: 99\r\ntransfer-encoding: chunked", "2\r\nok\r\n0\r\n\r\n", false, Passes(200, "ok")),
    ("content-length: 0\r\ntransfer-encoding: chunked", "{within}\r\n0\r\n\r\n", false, Passes(200, WITHIN)),
    ("content-length: x\r\ntransfer-encoding: chunked", "2\r\nok\r\n0\r\n\r\n", false, Passes(200, "ok")),
    ("transfer-encoding: CHUNKED", "2\r\nok\r\n0\r\n\r\n", false, Passes(200, "ok")),
    ("transfer-encoding: gzip", "ok", true, Refused),
    ("transfer-encoding: identity\r\ncontent-length: 2", "ok", true, Refused),
    ("transfer-encoding: gzip, chunked", "2\r\nok\r\n0\r\n\r\n", false, Refused),
    ("transfer-encoding: chunked, chunked", "2\r\nok\r\n0\r\n\r\n", false, Refused),
    ("transfer-encoding: chunked\r\ntransfer-encoding: identity", "2\r\nok\r\n0\r\n\r\n", true, Refused),
    ("x-none: 1", "ok", true, Passes(200, "ok")),
    ("content-length: 2\r\ncontent-length: 2", "ok", false, Passes(200, "ok")),
    ("content-length: 2, 2", "ok", false, Passes(200, "ok")),
    ("content-length: 2\r\ncontent-length: 4", "okok", false, Refused),
    ("content-length: 2, 4", "okok", false, Refused),
    ("content-length: two", "ok", true, Refused),
    ("content-length: +2", "ok", false, Refused),
    ("content-length: -2", "ok", false, Refused),
    ("content-length: 0x2", "ok", false, Refused),
    ("content-length: 18446744073709551616", "ok", false, Refused),
    ("content-length : 2", "ok", false, Refused),
    ("content-length: 2\r\nx-folded: a\r\n b", "ok", false, Refused),
    ("x-folded: a\r\n content-length: 9\r\ncontent-length: 2", "ok", false, Refused),
    ("content-length: 2\r\nx-bad: a\u{0}b", "ok", false, Refused),
    ("content-length: 20", "ok", true, Refused),
    ("content-length: 2", "okHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", false, Passes(200, "ok")),
    (
        "transfer-encoding: chunked",
        "2\r\nok\r\n0\r\ncontent-length: 9\r\nx-evil: 1\r\n\r\n",
        false,
        Passes(200, "ok"),
    ),
    ("transfer-encoding: chunked", "2\r\nok\r\nzz\r\n", false, Cut),
    ("transfer-encoding: chunked", "2\r\nok\r\n", true, Cut),
    (
        "content-length: 2\r\nconnection: keep-alive, x-evil\r\nconnection: x-more\r\nx-evil: 1\r\nx-more: 1\r\n\
         keep-alive: timeout=9\r\nupgrade: h2c\r\ntrailer: x-evil\r\nproxy-authenticate: Basic\r\nte: trailers",
        "ok",
        false,
        Passes(200, "ok"),
    ),
];

/// Whole answers, with their status lines.
const OTHERS: [Row; 11] = [
    ("HTTP/1.1 204 No Content\r\ncontent-length: 4", "evil", false, Passes(204, "")),
    (
        "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked",
        "4\r\nevil\r\n0\r\n\r\n",
        false,
        Passes(204, ""),
    ),
    ("HTTP/1.1 304 Not Modified\r\ncontent-length: 4", "", false, Passes(304, "")),
    ("HTTP/1.1 304 Not Modified\r\ncontent-length: 4", "evil", false, Passes(304, "")),
    ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2", "ok", false, Passes(200, "ok")),
    (
        "HTTP/1.1 103 Early Hints\r\nx-evil: 1\r\ncontent-length: 9\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2",
        "ok",
        false,
        Passes(200, "ok"),
    ),
    ("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x", "evil", false, Refused),
    ("HTTP/1.0 200 OK\r\ncontent-length: 2", "ok", true, Passes(200, "ok")),
    ("HTTP/1.0 200 OK", "ok", true, Passes(200, "ok")),
    ("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked", "2\r\nok\r\n0\r\n\r\n", true, Refused),
    (
        "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\ntransfer-encoding: chunked",
        "2\r\nno\r\n0\r\n\r\n",
        false,
        Passes(404, "no"),
    ),
];

/// Headers that must not reach a client.
const GONE: [&str; 8] =
    ["x-evil", "x-more", "keep-alive", "upgrade", "trailer", "proxy-authenticate", "te", "connection"];

async fn check(row: Row, begins: &str) {
    let (head, body, closes, want) = row;
    let body = body.replace("{within}", &format!("{:x}\r\n{WITHIN}", WITHIN.len()));
    let answer: &'static str = format!("{begins}{head}\r\n\r\n{body}").leak();
    let mut config = config();
    config.router.migration_limit = 0;
    let scene = Scene::with(1, config, std::time::Duration::ZERO).await;
    scene.workers[0].plan(&[if closes { Act::RawAndClose(answer) } else { Act::Raw(answer) }]);
    let mut client = Client::to(&scene).await;
    client.post("first").await;
    let seen = client.answer().await;
    match (want, seen) {
        (Passes(status, body), Some(seen)) => {
            assert_eq!((seen.status(), &*seen.body), (status, body), "{answer:?}: {seen:?}");
            assert!(GONE.iter().all(|name| seen.header(name).is_none()), "{answer:?}: {seen:?}");
        }
        (Refused, Some(seen)) => {
            assert!(seen.status() >= 500 && seen.body.contains("\"error\""), "{answer:?}: {seen:?}");
        }
        (Cut, None) => client = Client::to(&scene).await,
        (_, seen) => panic!("{answer:?}: {seen:?}"),
    }
    client.post("second").await;
    let own = client.answer().await.unwrap_or_else(|| panic!("{answer:?}: the connection is closed"));
    assert!(own.status() == 200 && own.body.contains("\"text\":\"t0 \""), "{answer:?}: {own:?}");
    scene.wait_for_idle().await;
}

#[tokio::test]
async fn however_a_server_frames_its_answer_the_next_request_gets_its_own() {
    for row in OK {
        check(row, "HTTP/1.1 200 OK\r\n").await;
    }
    for row in OTHERS {
        check(row, "").await;
    }
}

#[tokio::test]
async fn a_head_request_gets_no_body_and_the_next_one_its_own_answer() {
    let scene = Scene::new(1).await;
    let mut client = Client::to(&scene).await;
    client.send("HEAD /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n").await;
    client.post("second").await;
    let head = client.until(|bytes| Some(bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4)).await;
    assert!(head.as_ref().is_some_and(|head| head.starts_with("HTTP/1.1 405 ")), "{head:?}");
    let own = client.answer().await.expect("the connection is kept");
    assert!(own.body.contains("\"text\":\"t0 \""), "{own:?}");
}

/// Of two framings a request's chunks decide, and the connection ends with its answer, so that what another
/// proxy takes for a second request is never answered (RFC 9112, section 6.1).
#[tokio::test]
async fn nothing_behind_a_request_of_doubtful_length_is_answered() {
    let body = r#"{"prompt":"a|","max_tokens":1}"#;
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for (framing, status) in [
        ("content-length: 4\r\ntransfer-encoding: chunked", 200),
        ("transfer-encoding: chunked\r\ncontent-length: 4", 200),
        ("transfer-encoding: chunked, gzip", 400),
        ("transfer-encoding: gzip", 400),
        ("content-length: 4\r\ncontent-length: 5", 400),
        ("content-length: +4", 400),
        ("content-length: 4\r\n folded: 1", 400),
        ("content-length : 4", 400),
    ] {
        let scene = Scene::new(1).await;
        let mut client = Client::to(&scene).await;
        client
            .send(&format!(
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n{chunks}\
                 GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
            ))
            .await;
        let all = client.rest().await;
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{framing}: {all}");
        assert!(all.starts_with(&format!("HTTP/1.1 {status} ")), "{framing}: {all}");
    }
}
