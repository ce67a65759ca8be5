//! What names a stream of tokens, whoever asks for it: all that its tokens are a function of, and the client's id, so
//! that two clients with equal requests do not meet. Pure.

use xxhash_rust::xxh3::xxh3_128;

use crate::request::{Sampling, StreamKey, TokenRequest};

/// Begins every encoding; another layout gets another name.
const LAYOUT: &[u8] = b"skein.stream.1";

impl StreamKey {
    /// The key of a request. What its client already has of the answer does not count.
    pub fn of(request: &TokenRequest) -> Self {
        let mut encoding = Encoding(LAYOUT.to_vec());
        encoding.bytes(request.id.as_bytes());
        encoding.bytes(request.model.as_bytes());
        encoding.bytes(request.cache_salt.as_bytes());
        encoding.number(u64::from(request.n));
        encoding.list(request.prompt.iter().copied());
        encoding.sampling(&request.sampling);
        Self(xxh3_128(&encoding.0))
    }

    /// The same tokens, ended by the router at the first of these strings: a stream of its own, because its end is one
    /// for all who read it.
    pub fn ended_by(self, stop: &[String], skip_special_tokens: bool) -> Self {
        let mut encoding = Encoding(LAYOUT.to_vec());
        encoding.bytes(&self.to_wire());
        encoding.number(u64::from(skip_special_tokens));
        encoding.number(stop.len() as u64);
        stop.iter().for_each(|stop| encoding.bytes(stop.as_bytes()));
        Self(xxh3_128(&encoding.0))
    }
}

impl TokenRequest {
    /// Under which name others find the stream of this request.
    pub fn stream_key(&self) -> StreamKey {
        self.stream_key.unwrap_or_else(|| StreamKey::of(self))
    }
}

/// Little-endian, every part of variable length behind its length: no two requests have one encoding.
struct Encoding(Vec<u8>);

impl Encoding {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn list(&mut self, numbers: impl ExactSizeIterator<Item = u32>) {
        self.number(numbers.len() as u64);
        numbers.for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    fn optional(&mut self, number: Option<u32>) {
        self.number(number.map_or(0, |number| u64::from(number) + 1));
    }

    /// Named one by one: a new parameter does not compile until somebody decides that it counts.
    fn sampling(&mut self, sampling: &Sampling) {
        let Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            logit_bias,
            max_tokens,
            min_tokens,
            stop_token_ids,
            ignore_eos,
            logprobs,
            prompt_logprobs,
        } = sampling;
        for value in [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty] {
            self.number(u64::from(value.to_bits()));
        }
        for value in [*top_k, *max_tokens, *min_tokens, u32::from(*ignore_eos)] {
            self.number(u64::from(value));
        }
        self.number(*seed);
        self.list(logit_bias.iter().map(|(token, _)| *token));
        self.list(logit_bias.iter().map(|(_, bias)| bias.to_bits()));
        self.list(stop_token_ids.iter().copied());
        self.optional(*logprobs);
        self.optional(*prompt_logprobs);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;

    fn request() -> TokenRequest {
        let sampling = Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 7,
            logit_bias: Vec::new(),
            max_tokens: 10,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
        };
        TokenRequest {
            id: "r".into(),
            model: "m".into(),
            prompt: [1, 2, 3].into(),
            sampling: Arc::new(sampling),
            n: 1,
            cache_salt: "".into(),
            priority: 0,
            deadline: None,
            stream_key: None,
            resume: None,
        }
    }

    #[test]
    fn whatever_the_tokens_depend_on_changes_the_key_and_nothing_else_does() {
        let sampled = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::clone(&request().sampling);
            change(&mut sampling);
            TokenRequest { sampling: Arc::new(sampling), ..request() }
        };
        let others = [
            TokenRequest { id: "rm".into(), model: "".into(), ..request() },
            TokenRequest { id: "q".into(), ..request() },
            TokenRequest { model: "o".into(), ..request() },
            TokenRequest { cache_salt: "s".into(), ..request() },
            TokenRequest { prompt: [1, 2].into(), ..request() },
            TokenRequest { n: 2, ..request() },
            sampled(|sampling| sampling.temperature = 0.5),
            sampled(|sampling| sampling.top_p = 0.5),
            sampled(|sampling| sampling.min_p = 0.5),
            sampled(|sampling| sampling.top_k = 5),
            sampled(|sampling| sampling.repetition_penalty = 1.5),
            sampled(|sampling| sampling.presence_penalty = 1.0),
            sampled(|sampling| sampling.frequency_penalty = 1.0),
            sampled(|sampling| sampling.seed = 8),
            sampled(|sampling| sampling.logit_bias = vec![(1, 0.5)]),
            sampled(|sampling| sampling.logit_bias = vec![(1, 1.5)]),
            sampled(|sampling| sampling.max_tokens = 11),
            sampled(|sampling| sampling.min_tokens = 1),
            sampled(|sampling| sampling.stop_token_ids = vec![1]),
            sampled(|sampling| sampling.ignore_eos = true),
            sampled(|sampling| sampling.logprobs = Some(0)),
            sampled(|sampling| sampling.prompt_logprobs = Some(0)),
        ];
        let keys: HashSet<StreamKey> = others.iter().chain([&request()]).map(StreamKey::of).collect();
        assert_eq!(keys.len(), others.len() + 1);
        let same = TokenRequest { priority: 3, ..request() };
        assert_eq!(StreamKey::of(&same), StreamKey::of(&request()));
    }

    #[test]
    fn the_wire_form_is_fixed() {
        let key = StreamKey::of(&request());
        assert_eq!(StreamKey::from_wire(&key.to_wire()), Some(key));
        assert_eq!(StreamKey::from_wire(&[0; 15]), None);
        // Routers of two releases must agree: a change here needs another name of the layout.
        assert_eq!(format!("{key:?}"), "StreamKey(257582162358215207826142650663902343637)");
    }
}
