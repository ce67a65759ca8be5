//! Compiles a request's grammar and replays the tokens delivered earlier, off the async threads.

use std::sync::Arc;

use skein_grammar::{Compiled, Grammars, Matcher, Refused, Source, VERSION};
use skein_proto::invalid::Invalid;
use skein_proto::sampling::Grammar;

use crate::TokenId;
use crate::engine::Constraint;
use crate::scheduler::{NewRequest, NewSample};

/// Why a request gets no matchers.
#[derive(Debug)]
pub(super) enum NotHeld {
    /// Its grammar cannot be applied here, or the delivered tokens do not match it.
    Invalid(Invalid),
    /// This worker cannot read what it needs now; another one may.
    Unavailable(String),
}

impl From<Invalid> for NotHeld {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

/// Matchers for `request`; `None` if it has no grammar.
///
/// # Errors
/// If this worker cannot apply the grammar as the router does, or the delivered tokens do not match it.
pub(super) async fn prepare(
    request: &NewRequest,
    grammars: Option<&Arc<Grammars>>,
) -> Result<Option<Constraint>, NotHeld> {
    let Some(grammar) = request.params.grammar.clone() else { return Ok(None) };
    let grammars = agreed(&grammar, grammars)?.clone();
    let samples = request.samples.clone();
    let compiling = tokio::task::spawn_blocking(move || follow(&grammar, &grammars, &samples));
    compiling.await.unwrap_or_else(|_| Err(invalid("compilation failed".into()).into())).map(Some)
}

/// Grammars of this worker, if they allow the same tokens as the router's.
fn agreed<'a>(grammar: &Grammar, grammars: Option<&'a Arc<Grammars>>) -> Result<&'a Arc<Grammars>, Invalid> {
    let none = || Invalid {
        field: "sampling.grammar",
        got: "a grammar".into(),
        allowed: "none: this worker cannot constrain answers".into(),
    };
    let grammars = grammars.ok_or_else(none)?;
    if grammars.fingerprint() == grammar.fingerprint {
        return Ok(grammars);
    }
    Err(Invalid {
        field: "sampling.grammar.fingerprint",
        got: format!("{:016x}", grammar.fingerprint),
        allowed: format!(
            "{:016x}, with {VERSION}; use the same release and tokenizer.json for router and worker",
            grammars.fingerprint()
        ),
    })
}

fn follow(grammar: &Grammar, grammars: &Grammars, samples: &[NewSample]) -> Result<Constraint, NotHeld> {
    let source = Source::from_text(&grammar.text).map_err(|refused| invalid(refused.to_string()))?;
    let compiled = grammars.compile(&source).map_err(|refused| match refused {
        Refused::Unavailable { reason } => NotHeld::Unavailable(reason),
        other => invalid(other.to_string()).into(),
    })?;
    let matcher = |sample: &NewSample| Ok((sample.index, replay(&compiled, &sample.delivered)?));
    Ok(Constraint { matchers: samples.iter().map(matcher).collect::<Result<_, Invalid>>()? })
}

/// Matcher after `delivered`, in the state of the interrupted one.
fn replay(compiled: &Compiled, delivered: &[TokenId]) -> Result<Matcher, Invalid> {
    let mut matcher = compiled.matcher();
    for (at, token) in delivered.iter().enumerate() {
        let fits = matcher.advance(*token);
        fits.map_err(|stuck| invalid(format!("delivered token {at}, {token}, does not match it: {stuck}")))?;
    }
    Ok(matcher)
}

fn invalid(got: String) -> Invalid {
    Invalid { field: "sampling.grammar", got, allowed: "a grammar that compiles here".into() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use skein_proto::sampling::SamplingParams;

    use super::*;
    use crate::kv_cache::CacheScope;

    #[tokio::test]
    async fn a_tokenizer_that_cannot_be_read_now_is_read_for_the_next_request() {
        let tries = AtomicBool::default();
        let load = move || {
            let why = if tries.swap(true, Ordering::Relaxed) { "it is gone" } else { "too many open files" };
            Err(why.to_owned())
        };
        let grammars = Arc::new(Grammars::new(b"tokenizer", 10, load));
        let fingerprint = grammars.fingerprint();
        let grammar = Some(Arc::new(Grammar { text: "start: \"a\"\n".into(), fingerprint }));
        let params = SamplingParams { grammar, ..SamplingParams::default() };
        let request = NewRequest::of_one_sample(vec![1], params, CacheScope::new("m", ""));
        for expected in ["too many open files", "it is gone"] {
            let refused = prepare(&request, Some(&grammars)).await.unwrap_err();
            assert!(matches!(&refused, NotHeld::Unavailable(why) if why == expected), "{refused:?}");
        }
    }
}
