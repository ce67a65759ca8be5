//! Environment variables of Hugging Face's tools.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;
use url::Url;

use crate::error::HubError;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Largest token file that is read, in bytes.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Settings for the cache and the hub.
#[derive(Debug, Clone)]
pub struct Environment {
    /// URL of the hub or a mirror.
    pub endpoint: Url,
    /// Root directory of the cache.
    pub cache: PathBuf,
    /// Access token of the user.
    pub token: Option<Token>,
    /// Whether the network must not be used.
    pub is_offline: bool,
}

impl Environment {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// If a variable is invalid, or none specifies a place for the cache.
    pub fn of_process() -> Result<Self, HubError> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Reads variables through the given lookup.
    ///
    /// # Errors
    /// As [`Environment::of_process`].
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| set(name).map(|value| expand(&value, set("HOME").as_deref()));
        let user_cache = path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        let home = path("HF_HOME").or_else(|| user_cache.map(|cache| cache.join("huggingface")));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| home.as_ref().map(|home| home.join("hub"))).ok_or(HubError::NoCache)?;
        let token_file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let is_on = |name: &str| set(name).is_some_and(|value| is_true(&value));
        let implicit = || {
            token_file.filter(|_| !is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")).and_then(|file| read_token(&file))
        };
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).or_else(implicit);
        Ok(Self {
            endpoint: endpoint(set("HF_ENDPOINT"))?,
            cache,
            token: token.map(|token| Token::parse(&token)).transpose()?,
            is_offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
        })
    }
}

/// Access token in the form in which it is sent. Never printed.
#[derive(Clone)]
pub struct Token(HeaderValue);

impl Token {
    fn parse(text: &str) -> Result<Self, HubError> {
        let bad = |_| HubError::BadVariable {
            variable: "HF_TOKEN",
            value: "***".to_owned(),
            why: "it contains characters that tokens cannot contain; copy it again".to_owned(),
        };
        let mut value = HeaderValue::try_from(format!("Bearer {}", text.trim())).map_err(bad)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Value of the header `authorization`.
    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn endpoint(given: Option<String>) -> Result<Url, HubError> {
    let value = given.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let bad = |why: &str| HubError::BadVariable {
        variable: "HF_ENDPOINT",
        value: value.clone(),
        why: why.to_owned(),
    };
    // The path of a mirror (https://mirror.example/hf) must end with a slash, or joining would replace it.
    let url = Url::parse(&format!("{}/", value.trim().trim_end_matches('/')));
    let url = url.map_err(|_| bad("it is not a URL such as https://huggingface.co"))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        _ => Err(bad("it must start with https:// or http://")),
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
}

fn expand(path: &str, home: Option<&str>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// Token stored by `hf auth login`.
fn read_token(file: &Path) -> Option<String> {
    let size = std::fs::metadata(file).ok()?.len();
    let text = std::fs::read_to_string(file).ok().filter(|_| size <= MAX_TOKEN_BYTES)?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, HubError> {
        Environment::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_where_other_tools_have_it() {
        let check = |variables: &[(&str, &str)], expected: &str| {
            assert_eq!(read(variables).unwrap().cache, Path::new(expected), "{variables:?}");
        };
        check(&[("HOME", "/h")], "/h/.cache/huggingface/hub");
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub");
        check(&[("HOME", "/h"), ("HF_HOME", "~/models")], "/h/models/hub");
        check(&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "/c")], "/c");
        check(&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "")], "/m/hub");
        assert!(matches!(read(&[]), Err(HubError::NoCache)));
    }

    #[test]
    fn mirrors_tokens_and_offline_mode() {
        let home = ("HOME", "/nowhere");
        let of = |variables: &[(&'static str, &'static str)]| read(&[&[home], variables].concat());
        assert_eq!(of(&[]).unwrap().endpoint.as_str(), "https://huggingface.co/");
        let mirror = of(&[("HF_ENDPOINT", "http://mirror:80/hf"), ("HF_HUB_OFFLINE", "YES")]).unwrap();
        assert_eq!(mirror.endpoint.as_str(), "http://mirror/hf/");
        assert!(mirror.is_offline && !of(&[("HF_HUB_OFFLINE", "0")]).unwrap().is_offline);
        for bad in ["mirror", "ftp://mirror", "https://"] {
            assert!(of(&[("HF_ENDPOINT", bad)]).unwrap_err().to_string().contains("HF_ENDPOINT"), "{bad}");
        }
        let secret = of(&[("HF_TOKEN", " hf_abc\n")]).unwrap();
        assert_eq!(secret.token.clone().unwrap().header(), "Bearer hf_abc");
        assert!(!format!("{secret:?}").contains("hf_abc"));
        assert!(!of(&[("HF_TOKEN", "hf\u{1}x")]).unwrap_err().to_string().contains("hf\u{1}"));
    }

    #[test]
    fn the_stored_token_is_used_unless_it_is_disabled() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_stored\n").unwrap();
        let place = home.path().to_str().unwrap();
        let token =
            |more: (&str, &str)| read(&[("HF_HOME", place), more]).unwrap().token.map(|token| token.header());
        assert_eq!(token(("A", "")).unwrap(), "Bearer hf_stored");
        assert_eq!(token(("HF_TOKEN", "hf_given")).unwrap(), "Bearer hf_given");
        assert_eq!(token(("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")), None);
    }
}
