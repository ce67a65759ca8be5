//! The key of a token stream: a hash of everything its tokens depend on and of the request's id, so that two
//! clients with equal requests do not share a stream. Pure.

use skein_proto::stream_key::{Encoding, StreamKey};

use super::TokenRequest;

impl TokenRequest {
    /// The key under which other readers find this request's stream.
    pub fn stream_key(&self) -> StreamKey {
        self.stream_key.unwrap_or_else(|| self.own_stream_key())
    }

    /// The key derived from the request. How much of the answer its client has does not matter.
    ///
    /// The destructuring is complete, so that a new field does not compile until someone decides whether it
    /// belongs to the key.
    pub fn own_stream_key(&self) -> StreamKey {
        let Self {
            id,
            model,
            adapter,
            prompt,
            sampling,
            n,
            cache_salt,
            // Included in the salt.
            tenant: _,
            part: _,
            call: _,
            priority: _,
            arrived: _,
            deadline: _,
            stream_key: _,
            waits_for_worker: _,
            resume: _,
            is_resumed: _,
            // A reader that has part of the answer takes only streams of its version: `Fleet::find_stream`.
            version: _,
            picked_worker: _,
            operation: _,
            trace: _,
            receipts: _,
        } = self;
        let mut encoding = Encoding::begin();
        encoding.bytes(id.as_bytes());
        encoding.bytes(model.as_bytes());
        encoding.bytes(cache_salt.as_bytes());
        encoding.number(u64::from(*n));
        encoding.list(prompt.iter().copied());
        sampling.encode(&mut encoding);
        // Without an adapter the key is as before there were any.
        if let Some(adapter) = adapter {
            encoding.number(adapter.id.0);
        }
        encoding.key()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use skein_proto::adapter::AdapterId;
    use skein_proto::sampling::SamplingParams;

    use super::*;
    use crate::request::AdapterRef;

    fn sampling() -> SamplingParams {
        SamplingParams { temperature: 1.0, seed: 7, max_tokens: 10, ..SamplingParams::default() }
    }

    fn adapter(id: u64) -> Option<AdapterRef> {
        Some(AdapterRef { name: "a".into(), id: AdapterId(id) })
    }

    fn request() -> TokenRequest {
        TokenRequest::new("r", "m", [1, 2, 3], sampling())
    }

    #[test]
    fn exactly_the_fields_that_tokens_depend_on_change_the_key() {
        let others = [
            TokenRequest { id: "rm".into(), model: "".into(), ..request() },
            TokenRequest { id: "q".into(), ..request() },
            TokenRequest { model: "o".into(), ..request() },
            TokenRequest { cache_salt: "s".into(), ..request() },
            TokenRequest { adapter: adapter(8), ..request() },
            TokenRequest { adapter: adapter(9), ..request() },
            TokenRequest { prompt: [1, 2].into(), ..request() },
            TokenRequest { n: 2, ..request() },
            TokenRequest { sampling: Arc::new(SamplingParams { seed: 8, ..sampling() }), ..request() },
        ];
        let keys: HashSet<StreamKey> =
            others.iter().chain([&request()]).map(TokenRequest::stream_key).collect();
        assert_eq!(keys.len(), others.len() + 1);
        let same = TokenRequest { priority: 3, ..request() };
        assert_eq!(same.stream_key(), request().stream_key());
    }

    #[test]
    fn the_wire_form_is_fixed() {
        let key = request().stream_key();
        assert_eq!(StreamKey::from_wire(&key.to_wire()), Some(key));
        assert_eq!(StreamKey::from_wire(&[0; 15]), None);
        // Routers of two releases must agree: changing the layout requires a new layout name.
        assert_eq!(format!("{key:?}"), "StreamKey(257582162358215207826142650663902343637)");
    }
}
