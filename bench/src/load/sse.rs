//! Parses a completions stream: bytes to events, events to a [`Record`]. Pure, so that tests can split the
//! bytes anywhere.

use std::time::Duration;

use serde_json::Value;

use super::metrics::Record;

/// Largest event, in bytes; a server that sends more does not implement the protocol.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Parser of a stream.
#[derive(Debug, Default)]
pub struct StreamReader {
    pending: Vec<u8>,
    done: bool,
    finished: bool,
    chunks: u64,
    usage_output: Option<u64>,
    last_token: Option<Duration>,
    /// Output token ids, if the server sends them.
    pub token_ids: Vec<u32>,
}

impl StreamReader {
    /// Processes bytes that arrived at `now` (since the start of the run).
    pub fn take(&mut self, bytes: &[u8], now: Duration, record: &mut Record) {
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = self.pending[start..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.pending[start..start + length]).into_owned();
            start += length + 1;
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                self.event(data.trim_start(), now, record);
            }
        }
        self.pending.drain(..start);
        if self.pending.len() > MAX_EVENT_BYTES {
            record.error.get_or_insert_with(|| "event too large".into());
        }
    }

    /// Handles the end of the stream: sets the counts, and an error if it did not end properly.
    pub fn finish(&self, record: &mut Record) {
        let counted = if self.token_ids.is_empty() { self.chunks } else { self.token_ids.len() as u64 };
        record.output_tokens = self.usage_output.unwrap_or(counted);
        if let Some(last) = self.last_token {
            record.end = last;
        }
        if record.error.is_none() && !(self.done && self.finished) {
            record.error = Some("stream cut".into());
        }
        if record.error.is_none() && record.first_token.is_none() {
            record.error = Some("no token".into());
        }
    }

    fn event(&mut self, data: &str, now: Duration, record: &mut Record) {
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            record.error.get_or_insert_with(|| "event is no JSON".into());
            return;
        };
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let kind = error["code"].as_str().or(error["type"].as_str()).unwrap_or("unnamed");
            record.error.get_or_insert_with(|| format!("stream error: {kind}"));
            return;
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            self.choice(choice, now, record);
        }
        self.usage(&event["usage"], record);
    }

    fn choice(&mut self, choice: &Value, now: Duration, record: &mut Record) {
        let ids = choice["token_ids"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = choice["text"].as_str().unwrap_or_default();
        self.token_ids.extend(ids.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()));
        if !ids.is_empty() || !text.is_empty() {
            self.chunks += 1;
            match self.last_token {
                None => record.first_token = Some(now),
                Some(last) => record.gaps.push(now.saturating_sub(last)),
            }
            self.last_token = Some(now);
        }
        self.finished |= choice["finish_reason"].is_string();
    }

    fn usage(&mut self, usage: &Value, record: &mut Record) {
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            self.usage_output = Some(tokens);
        }
        if let Some(tokens) = usage["prompt_tokens"].as_u64() {
            record.prompt_tokens = tokens;
        }
        if let Some(tokens) = usage["prompt_tokens_details"]["cached_tokens"].as_u64() {
            record.cached_tokens = tokens;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        ": keep-alive\n\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"é\",\"token_ids\":[7],\"finish_reason\":null}],\"usage\":null}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"token_ids\":[8,9],\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3,",
        "\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n",
        "data: [DONE]\n\n",
    );

    /// Reads `stream` in pieces of `size` bytes that arrive at 1, 2, 3, ... ms.
    fn read(stream: &str, size: usize) -> (StreamReader, Record) {
        let (mut reader, mut record) = (StreamReader::default(), Record::default());
        for (index, piece) in stream.as_bytes().chunks(size).enumerate() {
            reader.take(piece, Duration::from_millis(index as u64 + 1), &mut record);
        }
        reader.finish(&mut record);
        (reader, record)
    }

    #[test]
    fn any_cut_of_the_bytes_reads_the_same() {
        for size in 1..=STREAM.len() {
            let (reader, record) = read(STREAM, size);
            assert_eq!(reader.token_ids, [7, 8, 9], "pieces of {size}");
            assert_eq!(record.error, None, "pieces of {size}");
            assert_eq!((record.prompt_tokens, record.cached_tokens, record.output_tokens), (40, 32, 3));
            assert_eq!(record.gaps.len(), 1);
        }
    }

    #[test]
    fn broken_streams_are_named() {
        let check = |stream: &str, expected: &str| {
            assert_eq!(read(stream, 64).1.error.as_deref(), Some(expected));
        };
        check(STREAM.strip_suffix("data: [DONE]\n\n").expect("it ends so"), "stream cut");
        check("data: {\"error\":{\"code\":\"engine_error\"}}\n\n", "stream error: engine_error");
        check("data: {nonsense\n\n", "event is no JSON");
        check(
            "data: {\"choices\":[{\"finish_reason\":\"stop\",\"text\":\"\"}]}\n\ndata: [DONE]\n\n",
            "no token",
        );
    }
}
