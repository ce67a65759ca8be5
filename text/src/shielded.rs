//! Encodes rendered chats in which messages spell control tokens: those stay text (see [`control`](super::control)).
//! Each control token of the template becomes a stand-in, a token that no message can spell, and a copy of the
//! tokenizer reads all others as plain text.

use skein_proto::TokenId;
use tokenizers::AddedToken;

use super::bounded_tokenizer::BoundedTokenizer;
use super::growth;
use super::kept_ids::KeptIn;
use super::kept_ids::limits::SHORTEST_TEXT;
use super::tokenizer::{Tokenizer, encode, too_much_growth};
use crate::refused::TextRefused;

/// Encloses the stand-in for a control token.
const STAND_IN: char = '\u{FDEF}';

/// Encodes control tokens as plain text, and the stand-in of each as the token itself.
#[derive(Debug)]
pub(super) struct LiteralTokenizer {
    inner: BoundedTokenizer,
    /// (id of the stand-in, id of the control token)
    stand_ins: Vec<(TokenId, TokenId)>,
}

impl Tokenizer {
    /// Token ids of a rendered chat. Control tokens are recognised unless they contain `mark` (see
    /// [`ControlTokens::shield`](super::control::ControlTokens::shield)): those were written by the user and
    /// become text. Ids are kept in the scope `kept_in`, if there is one.
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
        let cuts =
            self.cuts.as_ref().filter(|cuts| text.len() >= SHORTEST_TEXT && cuts.see_every_control_token());
        match (cuts, kept_in) {
            (Some(cuts), Some(scope)) => {
                let mut tokenize = |part: &str| match part.contains(mark) {
                    true => self.encode_literal(part, mark),
                    false => self.encode(part, false),
                };
                self.kept.encode(text, KeptIn { scope, mark: Some(mark) }, cuts, Vec::new(), &mut tokenize)
            }
            _ => self.encode_literal(text, mark),
        }
    }

    fn encode_literal(&self, text: &str, mark: char) -> Result<Vec<TokenId>, TextRefused> {
        let mut prepared = String::with_capacity(text.len());
        let mut done = 0;
        for (range, id) in self.control.find(text, mark) {
            prepared.extend(text[done..range.start].chars().filter(|c| *c != mark));
            prepared.push_str(&stand_in(id));
            done = range.end;
        }
        prepared.extend(text[done..].chars().filter(|c| *c != mark));
        let literal = self.literal()?;
        let mut ids = encode(&literal.inner, &prepared, false)?;
        for id in &mut ids {
            if let Ok(at) = literal.stand_ins.binary_search_by_key(id, |(stand_in, _)| *stand_in) {
                *id = literal.stand_ins[at].1;
            }
        }
        Ok(ids)
    }

    fn literal(&self) -> Result<&LiteralTokenizer, TextRefused> {
        if let Some(literal) = self.literal.get() {
            return Ok(literal);
        }
        let mut inner = self.inner.clone();
        inner.set_encode_special_tokens(true);
        let tokens = self.control_tokens.iter().map(|(id, token)| {
            AddedToken::from(stand_in(*id), false)
                .normalized(false)
                .single_word(token.single_word)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
        });
        // The stand-ins are not normalised, the tokens that were there are once more.
        let added = growth::limited(usize::MAX, || inner.add_tokens(tokens)).map_err(too_much_growth)?;
        added.map_err(|_| TextRefused::Internal)?;
        let mut stand_ins: Vec<(TokenId, TokenId)> = self
            .control_tokens
            .iter()
            .filter_map(|(id, _)| Some((inner.token_to_id(&stand_in(*id))?, *id)))
            .collect();
        stand_ins.sort_unstable();
        Ok(self.literal.get_or_init(|| LiteralTokenizer { inner, stand_ins }))
    }
}

fn stand_in(id: TokenId) -> String {
    format!("{STAND_IN}{id}{STAND_IN}")
}
