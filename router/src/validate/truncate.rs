//! Truncates a long prompt if its request allows it (vLLM's `truncate_prompt_tokens`). Pure.

use skein_choice::limits::ModelLimits;
use skein_proto::TokenId;
use skein_text::model_text::ModelText;

use crate::refusal::Refusal;
use crate::request::{Draft, Prompt, Truncation};

/// Refuses a limit that leaves no prompt.
pub(super) fn check(truncation: Option<Truncation>) -> Result<(), Refusal> {
    match truncation {
        Some(Truncation { tokens: tokens @ (..=-2 | 0), .. }) => {
            let message =
                format!("truncate_prompt_tokens must be -1 (as many as fit) or at least 1, got {tokens}.");
            Err(Refusal::invalid("truncate_prompt_tokens", message))
        }
        _ => Ok(()),
    }
}

/// Truncates `tokens` as the draft says. Tokens that the tokenizer put before a text (BOS) stay.
pub(super) fn truncate(
    tokens: Vec<TokenId>,
    draft: &Draft,
    text: &ModelText,
    model: &ModelLimits,
) -> Result<Vec<TokenId>, Refusal> {
    let Some(truncation) = draft.truncation else { return Ok(tokens) };
    let most = most_tokens(truncation, draft, model);
    if tokens.len() <= most {
        return Ok(tokens);
    }
    let front = front_len(&tokens, draft, text)?.min(most);
    let (front, rest) = tokens.split_at(front);
    let kept = most - front.len();
    let kept = if truncation.keep_first { &rest[..kept] } else { &rest[rest.len() - kept..] };
    Ok([front, kept].concat())
}

fn most_tokens(truncation: Truncation, draft: &Draft, model: &ModelLimits) -> usize {
    let output = draft.sampling.max_tokens.and_then(|count| u32::try_from(count).ok()).unwrap_or(1);
    let room = model.max_model_len.saturating_sub(output).max(1) as usize;
    usize::try_from(truncation.tokens).unwrap_or(room)
}

/// How many tokens the tokenizer put before the text's own.
fn front_len(tokens: &[TokenId], draft: &Draft, text: &ModelText) -> Result<usize, Refusal> {
    let Prompt::Text(prompt) = &draft.prompt else { return Ok(0) };
    let cache_salt = draft.tenant.cache_salt(&draft.cache_salt);
    let own = text.encode_text_kept(prompt, false, u32::MAX, &cache_salt)?;
    Ok(tokens.strip_suffix(&*own).map_or(0, <[TokenId]>::len))
}

#[cfg(test)]
mod tests {
    use skein_proto::sampling::SamplingOptions;

    use super::*;
    use crate::testing;

    const MODEL: ModelLimits =
        ModelLimits { max_model_len: 8, vocab_size: 300, max_num_seqs: 8, pools: false };

    fn cut(prompt: Prompt, tokens: i64, keep_first: bool, max_tokens: Option<i64>) -> Vec<TokenId> {
        let text = testing::model_text();
        let encoded = match &prompt {
            Prompt::Text(prompt) => text.encode_text(prompt, true, 100).unwrap(),
            Prompt::Tokens(tokens) => tokens.iter().map(|token| *token as TokenId).collect(),
            Prompt::Chat { .. } => unreachable!("not asked for here"),
        };
        let sampling = SamplingOptions { max_tokens, ..SamplingOptions::default() };
        let truncation = Some(Truncation { tokens, keep_first });
        truncate(encoded, &Draft { prompt, sampling, truncation, ..Draft::default() }, &text, &MODEL).unwrap()
    }

    #[test]
    fn the_end_is_kept_and_what_the_tokenizer_put_in_front() {
        let text = || Prompt::Text("abcd".to_owned());
        let tokens = |bos: bool, text: &str| {
            let bos = bos.then_some(0);
            bos.into_iter().chain(testing::tokens(text)).collect::<Vec<_>>()
        };
        assert_eq!(cut(text(), 3, false, None), tokens(true, "cd"));
        assert_eq!(cut(text(), 3, true, None), tokens(true, "ab"));
        assert_eq!(cut(text(), 5, false, None), tokens(true, "abcd"));
        assert_eq!(cut(text(), 1, false, None), tokens(true, ""));
    }

    #[test]
    fn minus_one_keeps_what_fits_with_the_answer() {
        let prompt = || Prompt::Tokens((0..20).collect());
        assert_eq!(cut(prompt(), -1, false, Some(3)), [15, 16, 17, 18, 19]);
        assert_eq!(cut(prompt(), -1, true, None), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(cut(prompt(), 2, true, Some(3)), [0, 1]);
    }

    #[test]
    fn no_prompt_at_all_is_refused() {
        let check = |tokens| check(Some(Truncation { tokens, keep_first: false }));
        assert!(check(-1).is_ok() && check(1).is_ok());
        let message = "truncate_prompt_tokens must be -1 (as many as fit) or at least 1, got 0.";
        assert_eq!(check(0).unwrap_err().to_string(), message);
        assert!(check(-2).is_err());
    }
}
