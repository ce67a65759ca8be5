//! A streaming OpenAI client that records what it saw and when. Like a careful client, it reconnects to the
//! next router when a connection is lost.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use skein_node::clock;

use crate::history::Reader;
pub use crate::history::{Choice, History};

/// A stream that has not ended after this time counts as hung.
const STREAM_LIMIT: Duration = Duration::from_secs(240);
/// A reconnecting client gives up after this long without an answer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// Pause after every address has failed once.
const TURN_PAUSE: Duration = Duration::from_millis(50);
/// Statuses of a server that cannot serve the request now: try again, or elsewhere.
const TRY_AGAIN: [u16; 4] = [429, 502, 503, 504];

/// POSTs `body` (a streaming request) to `url` and follows the stream to its end.
///
/// # Errors
/// If the connection fails before or during the stream.
pub async fn stream(client: &reqwest::Client, url: &str, body: &Value) -> Result<History, reqwest::Error> {
    let mut reader = Reader::new();
    attempt(client, url, body, &mut reader).await?;
    Ok(reader.history)
}

/// The same, but records every failure in the history: a lost connection or a missing end is an error there.
pub async fn stream_once(client: &reqwest::Client, url: &str, body: &Value) -> History {
    let failed = |why: String| History { error: Some(json!({"message": why})), ..History::default() };
    match tokio::time::timeout(STREAM_LIMIT, stream(client, url, body)).await {
        Ok(Ok(history)) => history,
        Ok(Err(error)) => failed(format!("the connection was lost: {error}")),
        Err(_) => failed(format!("no end within {STREAM_LIMIT:?}")),
    }
}

/// POSTs `body`, which has a `request_id`, to one of `urls`, starting with number `first`. If the connection
/// is lost, tries the next URL with the same body and, once an event was seen, with `Last-Event-ID`.
pub async fn follow(
    client: &reqwest::Client,
    urls: &[String],
    path: &str,
    body: &Value,
    first: usize,
) -> History {
    let mut reader = Reader::new();
    let follow = follow_into(&mut reader, client, urls, path, body, first);
    if tokio::time::timeout(STREAM_LIMIT, follow).await.is_err() {
        reader.history.error = Some(json!({"message": format!("no end within {STREAM_LIMIT:?}")}));
    }
    reader.history
}

async fn follow_into(
    reader: &mut Reader,
    client: &reqwest::Client,
    urls: &[String],
    path: &str,
    body: &Value,
    first: usize,
) {
    let mut failing_since = None;
    for turn in 0.. {
        let url = format!("{}{path}", urls[(first + turn) % urls.len()]);
        let seen = reader.events();
        let outcome = attempt(client, &url, body, reader).await;
        let why = match outcome {
            Ok(()) if TRY_AGAIN.contains(&reader.history.status) => {
                format!("status {}", reader.history.status)
            }
            Ok(()) if reader.history.over() => return,
            Ok(()) => "the stream ended without [DONE]".to_owned(),
            Err(error) => error.to_string(),
        };
        if reader.events() > seen {
            failing_since = None;
        }
        let since = *failing_since.get_or_insert_with(clock::now);
        if clock::now().since(since) > GIVE_UP_AFTER {
            reader.history.error =
                Some(json!({"message": format!("no router for {GIVE_UP_AFTER:?}: {why}")}));
            return;
        }
        if reader.history.has_content() && reader.last_event_id().is_none() {
            let message = "the connection was lost, and no event had an id to resume from";
            reader.history.error = Some(json!({"message": message}));
            return;
        }
        reader.history.reconnects += 1;
        if (turn + 1) % urls.len() == 0 {
            tokio::time::sleep(TURN_PAUSE).await;
        }
    }
}

/// Reads one connection to its end.
async fn attempt(
    client: &reqwest::Client,
    url: &str,
    body: &Value,
    reader: &mut Reader,
) -> Result<(), reqwest::Error> {
    let mut request = client.post(url).json(body);
    if let Some(id) = reader.last_event_id() {
        request = request.header("last-event-id", id);
    }
    reader.new_connection();
    let response = request.send().await?;
    reader.history.status = response.status().as_u16();
    if reader.history.status != 200 {
        // A body that is not JSON is an error, too.
        let text = response.text().await?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let error = value.get("error").cloned().unwrap_or(json!({"message": text}));
        reader.history.error = Some(error);
        return Ok(());
    }
    reader.history.error = None;
    if body["stream"] != true {
        reader.take_whole(&response.json().await?);
        return Ok(());
    }
    let mut bytes = response.bytes_stream();
    while let Some(chunk) = bytes.next().await {
        reader.read(&chunk?);
    }
    Ok(())
}
