//! Parser for server-sent events: takes bytes, returns complete events, does no I/O.

/// Longest accepted line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// One complete event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Value of its `id` field.
    pub id: Option<String>,
    /// Value of its `data` field.
    pub data: String,
}

/// Parser for the body of one response.
#[derive(Debug, Default)]
pub struct ServerEvents {
    line: Vec<u8>,
    event: ServerEvent,
}

impl ServerEvents {
    /// Parses the next bytes; returns the events that they complete. An incomplete event is never returned.
    ///
    /// # Errors
    /// If a line is too long.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<ServerEvent>, String> {
        let mut whole = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() == MAX_LINE_BYTES {
                    return Err(format!("the server sent a line of over {MAX_LINE_BYTES} bytes"));
                }
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            self.line.clear();
            whole.extend(self.end_line(line.trim_end_matches('\r')));
        }
        Ok(whole)
    }

    /// Handles one line; an empty line ends the event.
    fn end_line(&mut self, line: &str) -> Option<ServerEvent> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':')?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "data" => self.event.data.push_str(value),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_the_bytes_are_cut() {
        let text = "id: a/1.2\r\ndata: {\"x\":\"é\"}\r\n\r\n: comment\n\ndata:[DONE]\n\nid: a/9.9\ndata: cut";
        let expected = [
            ServerEvent { id: Some("a/1.2".into()), data: "{\"x\":\"é\"}".into() },
            ServerEvent { id: None, data: "[DONE]".into() },
        ];
        for length in 1..text.len() {
            let mut events = ServerEvents::default();
            let parts = text.as_bytes().chunks(length);
            let seen: Vec<_> = parts.flat_map(|part| events.push(part).unwrap()).collect();
            assert_eq!(seen, expected, "in parts of {length} bytes");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut events = ServerEvents::default();
        assert!(events.push(&vec![b'x'; MAX_LINE_BYTES]).is_ok());
        assert!(events.push(b"x").is_err_and(|error| error.contains("1048576")));
    }
}
