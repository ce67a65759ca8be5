//! Compiles a request's grammar and follows it over the tokens that were delivered before, off the async
//! threads.

use std::sync::Arc;

use skein_grammar::{Compiled, Grammars, Matcher, Source, VERSION};
use skein_proto::invalid::Invalid;
use skein_proto::sampling::Grammar;

use crate::TokenId;
use crate::engine::Constraint;
use crate::scheduler::{NewRequest, NewSample};

/// The matchers of `request`; `None` if it has no grammar.
///
/// # Errors
/// If this worker cannot follow the grammar as the router means it, or the delivered tokens do not follow it.
pub(super) async fn prepare(
    request: &NewRequest,
    grammars: Option<&Arc<Grammars>>,
) -> Result<Option<Constraint>, Invalid> {
    let Some(grammar) = request.params.grammar.clone() else { return Ok(None) };
    let grammars = agreed(&grammar, grammars)?.clone();
    let samples = request.samples.clone();
    let compiling = tokio::task::spawn_blocking(move || follow(&grammar, &grammars, &samples));
    compiling.await.unwrap_or_else(|_| Err(invalid("compiling it failed".into()))).map(Some)
}

/// This worker's grammars, if they allow the same tokens as the router's.
fn agreed<'a>(grammar: &Grammar, grammars: Option<&'a Arc<Grammars>>) -> Result<&'a Arc<Grammars>, Invalid> {
    let none = || Invalid {
        field: "sampling.grammar",
        got: "a grammar".into(),
        allowed: "none: this worker cannot hold answers to a format".into(),
    };
    let grammars = grammars.ok_or_else(none)?;
    if grammars.fingerprint() == grammar.fingerprint {
        return Ok(grammars);
    }
    Err(Invalid {
        field: "sampling.grammar.fingerprint",
        got: format!("{:016x}", grammar.fingerprint),
        allowed: format!(
            "{:016x}, with {VERSION}; give router and worker one release and one tokenizer.json",
            grammars.fingerprint()
        ),
    })
}

fn follow(grammar: &Grammar, grammars: &Grammars, samples: &[NewSample]) -> Result<Constraint, Invalid> {
    let source = Source::from_text(&grammar.text).map_err(|refused| invalid(refused.to_string()))?;
    let compiled = grammars.compile(&source).map_err(|refused| invalid(refused.to_string()))?;
    let matcher = |sample: &NewSample| Ok((sample.index, replay(&compiled, &sample.delivered)?));
    Ok(Constraint { matchers: samples.iter().map(matcher).collect::<Result<_, _>>()? })
}

/// A matcher after `delivered`: what the interrupted one was there.
fn replay(compiled: &Compiled, delivered: &[TokenId]) -> Result<Matcher, Invalid> {
    let mut matcher = compiled.matcher();
    for (at, token) in delivered.iter().enumerate() {
        let fits = matcher.advance(*token);
        fits.map_err(|stuck| invalid(format!("delivered token {at}, {token}, does not follow it: {stuck}")))?;
    }
    Ok(matcher)
}

fn invalid(got: String) -> Invalid {
    Invalid { field: "sampling.grammar", got, allowed: "a grammar that compiles here".into() }
}
