//! Chunks that say where a stream moved to another worker, for clients that show it.

use serde_json::{Map, Value, json};

use super::call_stream::CallStream;
use super::shapes::Heading;

/// How many moves the client knows of; `None` if it does not want to.
#[derive(Debug, Clone, Copy)]
pub struct MoveChunks(Option<u32>);

impl MoveChunks {
    /// For a client that `wants` them, which knows of none before the stream begins.
    pub fn new(wants: bool) -> Self {
        Self(wants.then_some(0))
    }

    /// A chunk without choices, if the stream has moved since the last call. It comes before the first text
    /// of the new worker, which is the latest delta, of `prompt`.
    pub fn next(
        &mut self,
        stream: &CallStream,
        prompt: usize,
        heading: &Heading,
    ) -> Option<Map<String, Value>> {
        let told = self.0.as_mut()?;
        let moves = stream.journey().moves;
        if moves <= *told {
            return None;
        }
        *told = moves;
        let mut object = heading.object(Vec::new());
        let worker = stream.moved_to(prompt).map(|name| &**name);
        object.insert("skein".to_owned(), json!({ "moves": moves, "worker": worker }));
        Some(object)
    }
}
