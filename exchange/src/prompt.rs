//! Prompts as bytes: each token in 4 bytes, little-endian.

use bytes::Bytes;
use skein_proto::TokenId;

struct Tokens(Vec<TokenId>);

impl AsRef<[u8]> for Tokens {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// The bytes of `tokens`, without a copy where the processor is little-endian.
pub(crate) fn to_bytes(mut tokens: Vec<TokenId>) -> Bytes {
    tokens.iter_mut().for_each(|token| *token = token.to_le());
    Bytes::from_owner(Tokens(tokens))
}

/// The tokens of `bytes`; `None` if a token is cut.
pub(crate) fn to_tokens(bytes: &[u8]) -> Option<Vec<TokenId>> {
    let (tokens, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| tokens.iter().map(|token| TokenId::from_le_bytes(*token)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_four_bytes_a_token_and_comes_back() {
        let tokens = vec![1, 0x0102_0304, u32::MAX];
        let bytes = to_bytes(tokens.clone());
        assert_eq!(bytes[..], [1, 0, 0, 0, 4, 3, 2, 1, 255, 255, 255, 255]);
        assert_eq!(to_tokens(&bytes), Some(tokens));
        assert_eq!(to_tokens(&bytes[..7]), None);
        assert_eq!(to_tokens(&to_bytes(Vec::new())), Some(Vec::new()));
    }
}
