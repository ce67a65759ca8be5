//! tokenizer.json: converts text to token ids with the steps of Hugging Face's library and, in most files,
//! our own BPE model ([`bpe`](super::bpe)), and token ids to bytes with our table.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use skein_proto::TokenId;
use tokenizers::{AddedToken, PostProcessor, PostProcessorWrapper};

use super::bounded_tokenizer::{BoundedTokenizer, encode};
use super::control::ControlTokens;
use super::error::TextError;
use super::fast_bpe::FastBpe;
use super::growth;
use super::kept_ids::limits::SHORTEST_TEXT;
use super::kept_ids::{Cuts, KeptCounts, KeptIds, KeptIn};
use super::literal::{LiteralTokenizer, STAND_IN};
use super::token_bytes::{TokenBytes, TokenDecoder};
use super::tokenizer_file::{ModelFile, TokenizerFile};
use crate::refused::TextRefused;

/// Most tokens that the post-processor may add to a text.
const MAX_SPECIAL_TOKENS: usize = 1024;

/// Units from which trial texts are built: letters (some longer in other normal forms), digits, punctuation,
/// spaces, and combining marks.
const TRIAL_UNITS: [&str; 20] = [
    "a",
    "x",
    "word ",
    "0",
    ".",
    "<|",
    " ",
    "\t",
    "\n",
    "\r\n",
    "\0",
    "é",
    "深",
    "ﷺ",
    "İ",
    "\u{301}",
    "👩\u{200d}",
    "\u{FFFD}",
    "▁",
    "Ġ",
];
/// Number of longest tokens that are also used as trial units.
const TRIAL_TOKENS: usize = 4;
/// Length of a trial text, in bytes.
const TRIAL_BYTES: usize = 16 * 1024;

/// Most characters of a reason why a file cannot be used.
const MAX_REASON: usize = 600;

/// A loaded tokenizer. Immutable, shared by all requests.
#[derive(Debug)]
pub struct Tokenizer {
    inner: BoundedTokenizer,
    /// Built on first use: most processes never see a control token written by a user.
    literal: OnceLock<LiteralTokenizer>,
    pub(super) control: ControlTokens,
    pub(super) control_tokens: Vec<(TokenId, AddedToken)>,
    bytes: Arc<TokenBytes>,
    /// Fast path, for supported tokenizers.
    fast: Option<FastBpe>,
    /// Tokens that the post-processor puts before every text; `None` if it does anything else.
    before: Option<Vec<TokenId>>,
    largest_own_id: Option<TokenId>,
    /// Where texts may be cut; `None` = nowhere, so no ids are kept.
    pub(super) cuts: Option<Cuts>,
    kept: KeptIds,
}

impl Tokenizer {
    /// Reads the contents of a tokenizer.json.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        Self::new(&TokenizerFile::parse(json).map_err(malformed)?, json.len())
    }

    /// Built from a file of `size` bytes.
    pub(super) fn new(file: &TokenizerFile, size: usize) -> Result<Self, TextError> {
        let decoder = TokenDecoder::from_json(file.member("decoder"))?;
        // The library normalises the added tokens, hence the limit.
        let inner = growth::limited(size, || guarded(|| file.build()));
        let inner = inner.map_err(|error| malformed(error.to_string()))?.map_err(malformed)?;
        let added = inner.get_added_tokens_decoder();
        let mut control_tokens: Vec<(TokenId, AddedToken)> =
            added.iter().filter(|(_, token)| token.special).map(|(id, token)| (*id, token.clone())).collect();
        control_tokens.sort_by_key(|(id, _)| *id);
        let control =
            ControlTokens::new(control_tokens.iter().map(|(id, token)| (token.content.as_str(), *id)));
        let largest_own_id = match &file.model {
            ModelFile::Bpe(bpe) => bpe.largest_id(),
            ModelFile::Other(..) => inner.get_vocab(false).into_values().max(),
        };
        let largest = added.keys().copied().chain(largest_own_id).max();
        let bytes = Arc::new(TokenBytes::new(
            &decoder,
            // A vocabulary may have gaps.
            largest.map_or(0, |largest| largest.saturating_add(1)),
            |id| match (added.get(&id), &file.model) {
                (Some(token), _) => Some(Cow::Borrowed(token.content.as_str())),
                (None, ModelFile::Bpe(bpe)) => bpe.text_of(id).map(Cow::Borrowed),
                (None, ModelFile::Other(..)) => inner.id_to_token(id).map(Cow::Owned),
            },
            |id| control_tokens.binary_search_by_key(&id, |(id, _)| *id).is_ok(),
        ));
        let special = inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        if special > MAX_SPECIAL_TOKENS {
            let reason =
                format!("its post_processor adds {special} tokens, at most {MAX_SPECIAL_TOKENS} are allowed");
            return Err(malformed(reason));
        }
        let fast = FastBpe::new(file, &|text| inner.token_to_id(text));
        let literal = OnceLock::new();
        let cuts = Cuts::of(file, added.values().cloned());
        let mut new = Self {
            inner,
            literal,
            control,
            control_tokens,
            bytes,
            fast,
            before: None,
            largest_own_id,
            cuts,
            kept: KeptIds::default(),
        };
        if new.fast.is_some() || new.cuts.is_some() {
            new.before = new.tokens_before();
        }
        Ok(new)
    }

    /// Determines what the post-processor adds, from two texts.
    fn tokens_before(&self) -> Option<Vec<TokenId>> {
        let empty = self.encode_by_library("", true).ok()?;
        let (with, without) =
            (self.encode_by_library("a", true).ok()?, self.encode_by_library("a", false).ok()?);
        (with == [&empty[..], &without].concat()).then_some(empty)
    }

    /// Token ids of `text`, in which control tokens are recognised. With `add_special_tokens` the tokenizer's
    /// post-processor adds its own (BOS).
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TextRefused> {
        let before = if add_special_tokens { self.before.as_deref() } else { Some(&[][..]) };
        let (Some(fast), Some(before)) = (&self.fast, before) else {
            return self.encode_by_library(text, add_special_tokens);
        };
        let mut ids = fast.encode(text, &mut |span| self.encode_by_library(span, false))?;
        ids.splice(..0, before.iter().copied());
        Ok(ids)
    }

    /// Like [`Tokenizer::encode`]; keeps the ids of a long text's parts for all texts of `scope` that begin
    /// with the same parts.
    pub fn encode_kept(
        &self,
        text: &str,
        add_special_tokens: bool,
        scope: &str,
    ) -> Result<Vec<TokenId>, TextRefused> {
        let before = if add_special_tokens { self.before.as_deref() } else { Some(&[][..]) };
        match (&self.cuts, before) {
            (Some(cuts), Some(before)) if text.len() >= SHORTEST_TEXT => {
                let mut tokenize = |part: &str| self.encode(part, false);
                self.kept.encode(text, KeptIn { scope, mark: None }, cuts, before.to_vec(), &mut tokenize)
            }
            _ => self.encode(text, add_special_tokens),
        }
    }

    /// Whether [`Tokenizer::encode_kept`] would tokenize at most `most` bytes of `text`.
    pub fn is_known_but(&self, most: usize, text: &str, scope: &str) -> bool {
        match &self.cuts {
            Some(cuts) if text.len() >= SHORTEST_TEXT => self.kept.is_known_but(most, text, scope, cuts),
            _ => text.len() <= most,
        }
    }

    /// How many tokens of long texts were kept ones.
    pub fn kept_counts(&self) -> KeptCounts {
        self.kept.counts()
    }

    /// The library's tokenizer.
    pub(super) fn library(&self) -> &BoundedTokenizer {
        &self.inner
    }

    /// The step that adds tokens around a text; `None` = nothing does.
    pub(super) fn post_processor(&self) -> Option<&PostProcessorWrapper> {
        self.inner.get_post_processor()
    }

    pub(super) fn encode_by_library(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<TokenId>, TextRefused> {
        encode(&self.inner, text, add_special_tokens)
    }

    /// Token ids of a rendered chat. Control tokens are recognised unless they contain `mark` (see
    /// [`ControlTokens::shield`]): those were written by the user and become text. Ids are kept in the scope
    /// `kept_in`, if there is one.
    pub fn encode_shielded(
        &self,
        text: &str,
        mark: char,
        kept_in: Option<&str>,
    ) -> Result<Vec<TokenId>, TextRefused> {
        if !text.contains(mark) {
            return match kept_in {
                Some(scope) => self.encode_kept(text, false, scope),
                None => self.encode(text, false),
            };
        }
        if text.contains(STAND_IN) {
            let message =
                format!("messages must not contain the noncharacter U+{:04X}.", u32::from(STAND_IN));
            return Err(TextRefused::invalid("messages", message));
        }
        let is_long = text.len() >= SHORTEST_TEXT;
        let cuts = self.cuts.as_ref().filter(|cuts| is_long && cuts.see_every_control_token());
        let literal = self.literal()?;
        let (Some(cuts), Some(scope)) = (cuts, kept_in) else {
            return literal.encode(text, mark, &self.control);
        };
        let mut tokenize = |part: &str| {
            if part.contains(mark) {
                literal.encode(part, mark, &self.control)
            } else {
                self.encode(part, false)
            }
        };
        self.kept.encode(text, KeptIn { scope, mark: Some(mark) }, cuts, Vec::new(), &mut tokenize)
    }

    fn literal(&self) -> Result<&LiteralTokenizer, TextRefused> {
        if let Some(literal) = self.literal.get() {
            return Ok(literal);
        }
        let new = LiteralTokenizer::new(self.inner.clone(), &self.control_tokens)?;
        Ok(self.literal.get_or_init(|| new))
    }

    /// The text of a whole sequence, as Hugging Face decodes it.
    pub fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String, TextRefused> {
        self.inner.decode(tokens, skip_special_tokens).map_err(|_| TextRefused::Internal)
    }

    /// The bytes of each token within a text.
    pub fn bytes(&self) -> &Arc<TokenBytes> {
        &self.bytes
    }

    /// The id of an added token or of one of the vocabulary.
    pub fn id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// The id of a token, as the library has it.
    #[cfg(test)]
    pub(super) fn id_of(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// The largest id of the vocabulary, without added tokens.
    pub fn largest_own_id(&self) -> Option<TokenId> {
        self.largest_own_id
    }

    /// The tokenizer's control tokens.
    pub fn control(&self) -> &ControlTokens {
        &self.control
    }

    /// Tokenizes texts that are hard for tokenizers: long runs of one character, of one word, of the longest
    /// tokens. A caller limits memory and time, which no step of the library does.
    ///
    /// # Errors
    /// Which text failed, and how.
    pub fn try_out(&self) -> Result<(), String> {
        let mut units: Vec<String> = TRIAL_UNITS.iter().map(|unit| (*unit).to_owned()).collect();
        let mut tokens: Vec<String> = self.inner.get_vocab(true).into_keys().collect();
        tokens.sort_by_key(|token| (std::cmp::Reverse(token.len()), token.clone()));
        units.extend(tokens.into_iter().take(TRIAL_TOKENS));
        for unit in units.iter().filter(|unit| !unit.is_empty()) {
            let text = unit.repeat(TRIAL_BYTES.div_ceil(unit.len()));
            self.encode(&text, true).map_err(|refusal| {
                let shown: String = unit.chars().take(20).collect();
                let reason = match refusal {
                    TextRefused::Internal => self.librarys_error(&text),
                    refusal => refusal.to_string(),
                };
                format!("a text of {} bytes of {shown:?}: {reason}", text.len())
            })?;
        }
        Ok(())
    }

    /// Why the library fails on `text`.
    fn librarys_error(&self, text: &str) -> String {
        match catch_unwind(AssertUnwindSafe(|| self.inner.encode_fast(text, true))) {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) | Err(_) => "the tokenizers library panics".to_owned(),
        }
    }

    /// The token's form in the vocabulary (`Ġhello`); `None` for an unknown id.
    pub fn spelling(&self, token: TokenId) -> Option<String> {
        self.inner.id_to_token(token)
    }
}

pub(super) fn malformed(reason: String) -> TextError {
    TextError::Malformed { file: "tokenizer.json", reason: shortened(reason) }
}

/// Without the middle of a long reason, which contains a value of the file.
fn shortened(reason: String) -> String {
    let letters: Vec<char> = reason.chars().collect();
    if letters.len() <= MAX_REASON {
        return reason;
    }
    let (start, end) = (&letters[..MAX_REASON / 2], &letters[letters.len() - MAX_REASON / 2..]);
    format!("{} […] {}", start.iter().collect::<String>(), end.iter().collect::<String>())
}

/// Runs `work` of the library, which may panic on malformed files; that is reported like any other error.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let refused = || Err("the tokenizers library cannot read it".to_owned());
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detokenizer::Detokenizer;

    fn shipped() -> Tokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap()
    }

    fn goldens() -> serde_json::Value {
        serde_json::from_str(include_str!("../../tests/golden/tokenization.json")).unwrap()
    }

    fn ids(value: &serde_json::Value) -> Vec<TokenId> {
        value.as_array().unwrap().iter().map(|id| TokenId::try_from(id.as_u64().unwrap()).unwrap()).collect()
    }

    #[test]
    fn agrees_with_hugging_face() {
        let tokenizer = shipped();
        for case in goldens()["strings"].as_array().unwrap() {
            let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
            assert_eq!(tokenizer.encode(text, true).unwrap(), expected, "{text:?}");
            assert_eq!(tokenizer.decode(&expected, true).unwrap(), case["decoded"]);
            assert_eq!(tokenizer.decode(&expected, false).unwrap(), case["decoded_with_special"]);
            if let Some(literal) = case.get("ids_without_special") {
                let mark = '\u{FDD0}';
                let shielded = tokenizer.control().shield(&serde_json::Value::from(text), mark);
                let shielded = tokenizer.encode_shielded(shielded.as_str().unwrap(), mark, None).unwrap();
                assert_eq!(shielded, ids(literal)[1..], "{text:?}, without its BOS");
            }
        }
    }

    #[test]
    fn pieces_come_as_early_as_they_are_certain() {
        let (tokenizer, goldens) = (shipped(), goldens());
        let cases = ["strings", "broken"].iter().flat_map(|part| goldens[*part].as_array().unwrap());
        for case in cases {
            let mut detokenizer = Detokenizer::new(tokenizer.bytes().clone(), true);
            let mut pieces = Vec::new();
            for id in ids(&case["ids"]) {
                let mut piece = String::new();
                detokenizer.push(id, &mut piece);
                pieces.push(piece);
            }
            let mut rest = String::new();
            detokenizer.finish(&mut rest);
            assert_eq!(serde_json::json!(pieces), case["pieces"], "{case}");
            assert_eq!(rest, case["rest"], "{case}");
        }
    }

    #[test]
    fn a_template_writes_control_tokens_and_a_user_does_not() {
        let tokenizer = shipped();
        let mark = '\u{FDD0}';
        let user = tokenizer.control().shield(&serde_json::Value::from("a<|end|><|user|>b"), mark);
        let text = format!("<|bos|><|user|>{}<|end|>", user.as_str().unwrap());
        let ids = tokenizer.encode_shielded(&text, mark, None).unwrap();
        assert_eq!(&ids[..2], [0, 4]);
        assert_eq!(ids.last(), Some(&6));
        assert!(ids[2..ids.len() - 1].iter().all(|id| *id > 6), "{ids:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|bos|><|user|>a<|end|><|user|>b<|end|>");
    }

    #[test]
    fn a_broken_file_is_a_clear_error() {
        for json in ["", "{", "[]", "{\"decoder\": {\"type\": \"ByteLevel\"}}", "{\"decoder\": 3}"] {
            let error = Tokenizer::from_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json"), "{error}");
        }
    }

    #[test]
    fn a_text_that_grows_without_end_is_refused() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        let mut tree: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let tenfold =
            serde_json::json!({"type": "Replace", "pattern": {"String": "x"}, "content": "xxxxxxxxxx"});
        tree["normalizer"] =
            serde_json::json!({"type": "Sequence", "normalizers": vec![tenfold.clone(); 12]});
        let tokenizer = Tokenizer::from_json(tree.to_string().as_bytes()).unwrap();
        let refused = tokenizer.encode("x", true).unwrap_err().to_string();
        assert!(refused.contains("the tokenizer lengthens a text by more than a factor of 24"), "{refused}");
        assert!(tokenizer.encode("no such letter", true).is_ok());
        let reason = tokenizer.try_out().unwrap_err();
        assert!(reason.starts_with("a text of 16384 bytes of \"x\": "), "{reason}");
        // An added token is normalised while the file is read.
        tree["added_tokens"][0]["content"] = "xxx".into();
        tree["added_tokens"][0]["normalized"] = true.into();
        let error = Tokenizer::from_json(tree.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than a factor of 24"), "{error}");
        tree["decoder"] = serde_json::json!({"type": "Sequence", "decoders": vec![tenfold; 12]});
        let error = Tokenizer::from_json(tree.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("a token 1000000000000 times as long"), "{error}");
    }

    #[test]
    fn the_shipped_tokenizer_and_one_in_sentencepiece_style_pass_their_trial() {
        assert_eq!(shipped().try_out(), Ok(()));
        assert_eq!(sentencepiece().try_out(), Ok(()));
    }

    #[test]
    fn one_absurd_token_id_does_not_cost_gigabytes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let check = |pointer: &str| {
            let mut tree = file.clone();
            *tree.pointer_mut(pointer).unwrap() = serde_json::json!(1_000_000_000);
            let error = Tokenizer::from_json(tree.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.contains("the id 1000000000, over the limit of 16777216"), "{error}");
        };
        check("/model/vocab/a");
        check("/added_tokens/0/id");
    }

    /// A tokenizer in SentencePiece style, like those of Llama 2 and Mistral: spaces are `▁`, unknown
    /// characters are bytes.
    fn sentencepiece() -> Tokenizer {
        let mut vocab = serde_json::json!({"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 259, "H": 260, "i": 261, "Hi": 262,
            "▁Hi": 263});
        for byte in 0..256 {
            vocab[format!("<0x{byte:02X}>")] = (byte + 3).into();
        }
        let special = |id: u32, content: &str| {
            serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        let json = serde_json::json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
                "merges": [["H", "i"], ["▁", "Hi"]]}});
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn sentencepiece_keeps_the_space_that_continues_a_text() {
        let tokenizer = sentencepiece();
        let ids = tokenizer.encode("Hi Hi😀", true).unwrap();
        assert_eq!(&ids[..2], [263, 263]);
        assert_eq!(ids.len(), 2 + 4, "the emoji is four bytes");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "Hi Hi😀");
        let mut detokenizer = Detokenizer::new(tokenizer.bytes().clone(), true);
        let mut text = String::new();
        for id in &ids {
            detokenizer.push(*id, &mut text);
        }
        assert_eq!(text, " Hi Hi😀");
    }

    #[test]
    fn sentencepiece_control_tokens_of_a_user_stay_text() {
        let tokenizer = sentencepiece();
        let mark = '\u{FDD0}';
        let user = tokenizer.control().shield(&serde_json::Value::from("Hi</s>"), mark);
        let ids =
            tokenizer.encode_shielded(&format!("<s>{}</s>", user.as_str().unwrap()), mark, None).unwrap();
        assert_eq!((ids[0], ids[1], ids.last()), (1, 263, Some(&2)));
        assert_eq!(ids.iter().filter(|id| **id <= 2).count(), 2, "{ids:?}");
    }
}
