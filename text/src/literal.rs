//! A copy of the tokenizer for rendered chats in which messages spell control tokens: those stay text (see
//! [`control`](super::control)). Each control token of the template becomes a stand-in, a token that no
//! message can spell, and the copy reads all others as plain text.

use skein_proto::TokenId;
use tokenizers::AddedToken;

use super::bounded_tokenizer::{BoundedTokenizer, encode, too_much_growth};
use super::control::ControlTokens;
use super::growth;
use crate::refused::TextRefused;

/// Encloses the stand-in for a control token. No text may contain it.
pub(super) const STAND_IN: char = '\u{FDEF}';

/// Encodes control tokens as plain text, and the stand-in of each as the token itself.
#[derive(Debug)]
pub(super) struct LiteralTokenizer {
    inner: BoundedTokenizer,
    /// (id of the stand-in, id of the control token)
    stand_ins: Vec<(TokenId, TokenId)>,
}

impl LiteralTokenizer {
    /// Built from the tokenizer that recognises `control_tokens`.
    pub fn new(
        mut inner: BoundedTokenizer,
        control_tokens: &[(TokenId, AddedToken)],
    ) -> Result<Self, TextRefused> {
        inner.set_encode_special_tokens(true);
        let tokens = control_tokens.iter().map(|(id, token)| {
            AddedToken::from(stand_in(*id), false)
                .normalized(false)
                .single_word(token.single_word)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
        });
        // The stand-ins are not normalised, the tokens that were there are once more.
        let added = growth::limited(usize::MAX, || inner.add_tokens(tokens)).map_err(too_much_growth)?;
        added.map_err(|_| TextRefused::Internal)?;
        let stand_ins =
            control_tokens.iter().filter_map(|(id, _)| Some((inner.token_to_id(&stand_in(*id))?, *id)));
        let mut stand_ins: Vec<(TokenId, TokenId)> = stand_ins.collect();
        stand_ins.sort_unstable();
        Ok(Self { inner, stand_ins })
    }

    /// Token ids of `text`, where those of the `control` tokens that contain `mark` are text.
    pub fn encode(
        &self,
        text: &str,
        mark: char,
        control: &ControlTokens,
    ) -> Result<Vec<TokenId>, TextRefused> {
        let mut prepared = String::with_capacity(text.len());
        let mut done = 0;
        for (range, id) in control.find(text, mark) {
            prepared.extend(text[done..range.start].chars().filter(|c| *c != mark));
            prepared.push_str(&stand_in(id));
            done = range.end;
        }
        prepared.extend(text[done..].chars().filter(|c| *c != mark));
        let mut ids = encode(&self.inner, &prepared, false)?;
        for id in &mut ids {
            if let Ok(at) = self.stand_ins.binary_search_by_key(id, |(stand_in, _)| *stand_in) {
                *id = self.stand_ins[at].1;
            }
        }
        Ok(ids)
    }
}

fn stand_in(id: TokenId) -> String {
    format!("{STAND_IN}{id}{STAND_IN}")
}
