//! Compiles a request's grammar and replays the tokens delivered earlier, off the async threads.

use std::sync::Arc;

use skein_grammar::{Compiled, Grammars, Matcher, Source, VERSION};
use skein_proto::invalid::Invalid;
use skein_proto::sampling::Grammar;

use crate::TokenId;
use crate::engine::Constraint;
use crate::scheduler::{NewRequest, NewSample};

/// Matchers for `request`; `None` if it has no grammar.
///
/// # Errors
/// If this worker cannot apply the grammar as the router does, or the delivered tokens do not match it.
pub(super) async fn prepare(
    request: &NewRequest,
    grammars: Option<&Arc<Grammars>>,
) -> Result<Option<Constraint>, Invalid> {
    let Some(grammar) = request.params.grammar.clone() else { return Ok(None) };
    let grammars = agreed(&grammar, grammars)?.clone();
    let samples = request.samples.clone();
    let compiling = tokio::task::spawn_blocking(move || follow(&grammar, &grammars, &samples));
    compiling.await.unwrap_or_else(|_| Err(invalid("compilation failed".into()))).map(Some)
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

fn follow(grammar: &Grammar, grammars: &Grammars, samples: &[NewSample]) -> Result<Constraint, Invalid> {
    let source = Source::from_text(&grammar.text).map_err(|refused| invalid(refused.to_string()))?;
    let compiled = grammars.compile(&source).map_err(|refused| invalid(refused.to_string()))?;
    let matcher = |sample: &NewSample| Ok((sample.index, replay(&compiled, &sample.delivered)?));
    Ok(Constraint { matchers: samples.iter().map(matcher).collect::<Result<_, _>>()? })
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
