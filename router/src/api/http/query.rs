//! The query of a URL.

use axum::extract::Query;
use http::Uri;

use crate::refusal::Refusal;

/// Longest part of a wrong value that an error repeats, characters.
const MAX_SHOWN: usize = 80;

/// Fields of a query. Those that nobody takes are ignored.
pub struct UrlQuery(Vec<(String, String)>);

impl UrlQuery {
    /// Parses the query of `uri`.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn parse(uri: &Uri) -> Result<Self, Refusal> {
        let malformed = |error: axum::extract::rejection::QueryRejection| Refusal::Invalid {
            param: None,
            message: format!("The query of the URL is malformed: {}.", error.body_text()),
        };
        Query::try_from_uri(uri).map(|Query(fields)| Self(fields)).map_err(malformed)
    }

    /// Value of the field `name`; of several, the last.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.iter().rposition(|(field, _)| field == name).map(|at| self.0.swap_remove(at).1)
    }

    /// All fields and their values.
    pub fn into_fields(self) -> impl Iterator<Item = (String, String)> {
        self.0.into_iter()
    }
}

/// The field `name` has the value `given`, and only `allowed` is.
pub fn wrong(name: &'static str, allowed: &str, given: &str) -> Refusal {
    let given: String = given.chars().take(MAX_SHOWN).collect();
    Refusal::invalid(name, format!("{name} must be {allowed}, got {given:?}."))
}
