//! What a path below `/v2/models/` names. A model's name may have slashes, which clients do not escape.

use http::Method;

use crate::refusal::Refusal;

/// What is asked of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The model's tensors.
    Metadata,
    /// Whether it is ready.
    Ready,
    /// Its configuration.
    Config,
    /// One answer, as tensors.
    Infer,
    /// One answer, as a JSON object.
    Generate,
    /// The same as a stream of objects.
    GenerateStream,
}

/// Ends of paths.
const VERBS: [(&str, Verb); 5] = [
    ("/ready", Verb::Ready),
    ("/config", Verb::Config),
    ("/infer", Verb::Infer),
    ("/generate", Verb::Generate),
    ("/generate_stream", Verb::GenerateStream),
];

/// A model and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the model.
    pub model: String,
    /// Empty = any.
    pub version: String,
    /// What is asked.
    pub verb: Verb,
}

impl Target {
    /// Reads the rest of a path behind `/v2/models/`.
    pub fn read(rest: &str) -> Self {
        let verb = VERBS.into_iter().find_map(|(end, verb)| Some((rest.strip_suffix(end)?, verb)));
        let (named, verb) = verb.unwrap_or((rest, Verb::Metadata));
        let (model, version) = match named.rsplit_once("/versions/") {
            Some((model, version)) if !version.contains('/') => (model, version),
            _ => (named, ""),
        };
        Self { model: model.to_owned(), version: version.to_owned(), verb }
    }

    /// Fails if `method` is not that of the verb.
    ///
    /// # Errors
    /// [`Refusal::MethodNotAllowed`].
    pub fn check(&self, method: &Method) -> Result<(), Refusal> {
        let takes = self.verb.method();
        if *method == takes || (*method == Method::HEAD && takes == Method::GET) {
            return Ok(());
        }
        let path = self.verb.route();
        Err(Refusal::MethodNotAllowed(format!("{method} is not allowed on `{path}`; send {takes}.")))
    }
}

impl Verb {
    fn method(self) -> Method {
        match self {
            Self::Metadata | Self::Ready | Self::Config => Method::GET,
            Self::Infer | Self::Generate | Self::GenerateStream => Method::POST,
        }
    }

    /// Methods that it takes, for the header `Allow`.
    pub fn allowed(self) -> &'static str {
        if self.generates() { "POST" } else { "GET,HEAD" }
    }

    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Metadata, Self::Ready, Self::Config, Self::Infer, Self::Generate, Self::GenerateStream];

    /// The path without names, for metrics and traces.
    pub fn route(self) -> &'static str {
        match self {
            Self::Metadata => "/v2/models/{model}",
            Self::Ready => "/v2/models/{model}/ready",
            Self::Config => "/v2/models/{model}/config",
            Self::Infer => "/v2/models/{model}/infer",
            Self::Generate => "/v2/models/{model}/generate",
            Self::GenerateStream => "/v2/models/{model}/generate_stream",
        }
    }

    /// Whether it makes tokens.
    pub fn generates(self) -> bool {
        self.method() == Method::POST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_slashes_and_versions() {
        let check = |rest: &str, model: &str, version: &str, verb: Verb| {
            let expected = Target { model: model.to_owned(), version: version.to_owned(), verb };
            assert_eq!(Target::read(rest), expected, "{rest}");
        };
        check("m", "m", "", Verb::Metadata);
        check("org/m/versions/1", "org/m", "1", Verb::Metadata);
        check("org/m/infer", "org/m", "", Verb::Infer);
        check("m/versions/2/ready", "m", "2", Verb::Ready);
        check("m/generate_stream", "m", "", Verb::GenerateStream);
        check("m/stats", "m/stats", "", Verb::Metadata);
        check("versions/m/generate", "versions/m", "", Verb::Generate);
    }
}
