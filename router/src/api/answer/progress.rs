//! The `id` of each event: how much of a stream the client has, as `<request id>/<state>`. Any router can
//! resume from it.
//!
//! The state has one item per choice, in order, separated by commas. An item is `-` before the first event,
//! else `<tokens>.<bytes>`: output tokens and bytes of UTF-8 text sent up to and including this event. `f`
//! follows once the choice's finish was sent. `@` and the version of the model that generated it follow,
//! unless the item after it has the same. A final `+` means that the usage chunk was sent. So
//! `mine/12.57f,9.40@00c0ffee00c0ffee` means: of request `mine`, choice 0 is complete (12 tokens, 57 bytes),
//! and choice 1 has 9 tokens and 40 bytes, both by version `00c0ffee00c0ffee`. An echoed prompt and a chat's
//! role chunk belong to a choice's first event and are not counted.

use std::fmt::Write;
use std::ops::Range;

use skein_proto::version::Version;

use crate::refusal::Refusal;
use crate::text::remainder::Received;

/// Most choices in a call whose events have ids. Every event repeats the id, so ids must stay short.
pub const MAX_CHOICES: usize = 16;
/// Longest id that is parsed, in bytes: a request id (128) and the longest state.
const MAX_ID_BYTES: usize = 1024;

/// How much of a stream has been sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Per choice; `None` = no event yet.
    pub choices: Vec<Option<Received>>,
    /// Version of the model that each choice is from; unknown before its first token.
    pub versions: Vec<Version>,
    /// Whether the usage chunk was sent.
    pub usage: bool,
}

/// Part of a stream that a client has, and whether it may ask for the rest later.
#[derive(Debug, Clone, Default)]
pub struct Resuming {
    /// How much of the stream the client has, from `Last-Event-ID`.
    pub had: Option<Progress>,
    /// Whether events have ids.
    pub wants_ids: bool,
}

impl Progress {
    /// State before the first event.
    pub fn none(choices: usize) -> Self {
        Self { choices: vec![None; choices], versions: vec![Version::UNKNOWN; choices], usage: false }
    }

    /// Version of the model that these choices of one prompt are from.
    pub fn version_of(&self, choices: Range<usize>) -> Version {
        let versions = self.versions.get(choices).unwrap_or_default();
        versions.iter().copied().find(|version| version.is_known()).unwrap_or_default()
    }

    /// The id of an event after which the client has this much of `request_id`; `None` with more than
    /// [`MAX_CHOICES`].
    pub fn event_id(&self, request_id: &str) -> Option<String> {
        if self.choices.len() > MAX_CHOICES {
            return None;
        }
        // Every event of the stream has an id, so it is built in one allocation.
        let mut id = String::with_capacity(request_id.len() + 2 + 16 * self.choices.len());
        id.push_str(request_id);
        for (at, (choice, version)) in self.choices.iter().zip(&self.versions).enumerate() {
            id.push(if at == 0 { '/' } else { ',' });
            match choice {
                None => id.push('-'),
                Some(Received { tokens, text_bytes, finished }) => {
                    let _ = write!(id, "{tokens}.{text_bytes}");
                    id.extend(finished.then_some('f'));
                }
            }
            let next = self.versions.get(at + 1).copied().unwrap_or_default();
            if *version != next {
                let _ = write!(id, "@{version}");
            }
        }
        id.extend(self.usage.then_some('+'));
        Some(id)
    }

    /// Whether the client has any event.
    pub fn has_begun(&self) -> bool {
        self.choices.iter().any(Option::is_some)
    }

    /// Whether the client has every choice's finish.
    fn is_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.is_some_and(|choice| choice.finished))
    }

    /// Parses an event's id into the request's id and the progress.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if it is not an id of this API.
    pub fn parse(id: &str) -> Result<(String, Self), Refusal> {
        let parsed = Some(id).filter(|id| id.len() <= MAX_ID_BYTES).and_then(split);
        parsed.ok_or_else(|| {
            let shown: String = id.chars().take(100).collect();
            let message = format!(
                "Last-Event-ID must be the id of an event of this API, `<request id>/<state>`, got `{shown}`."
            );
            Refusal::invalid("Last-Event-ID", message)
        })
    }
}

fn split(id: &str) -> Option<(String, Progress)> {
    let (request_id, state) = id.rsplit_once('/')?;
    let (entries, usage) = state.strip_suffix('+').map_or((state, false), |entries| (entries, true));
    let entries: Vec<_> = entries.split(',').take(MAX_CHOICES + 1).map(entry).collect::<Option<_>>()?;
    let choices = entries.iter().map(|(choice, _)| *choice).collect();
    let mut progress = Progress { choices, versions: Vec::new(), usage };
    let mut version = Version::UNKNOWN;
    for (_, own) in entries.iter().rev() {
        version = own.unwrap_or(version);
        progress.versions.push(version);
    }
    progress.versions.reverse();
    // The usage chunk comes after every choice has finished.
    let is_possible = !usage || progress.is_finished();
    // Any other text was made up, and may say less than it seems: version 0, for example, is no version.
    let is_own = progress.event_id(request_id).is_some_and(|own| own == id);
    (is_possible && is_own).then(|| (request_id.to_owned(), progress))
}

/// One item: how much of its choice was sent, and the version if it says one.
fn entry(item: &str) -> Option<(Option<Received>, Option<Version>)> {
    let Some((had, version)) = item.split_once('@') else { return Some((choice(item)?, None)) };
    Some((choice(had)?, Some(version.parse().ok()?)))
}

fn choice(entry: &str) -> Option<Option<Received>> {
    if entry == "-" {
        return Some(None);
    }
    let (counts, finished) = entry.strip_suffix('f').map_or((entry, false), |counts| (counts, true));
    let (tokens, bytes) = counts.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(tokens) || !digits(bytes) {
        return None;
    }
    Some(Some(Received { tokens: tokens.parse().ok()?, text_bytes: bytes.parse().ok()?, finished }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn received(tokens: u32, text_bytes: u64, finished: bool) -> Option<Received> {
        Some(Received { tokens, text_bytes, finished })
    }

    #[test]
    fn ids_have_their_documented_form() {
        let check = |choices: &[Option<Received>], usage: bool, expected: &str| {
            let versions = vec![Version::UNKNOWN; choices.len()];
            let progress = Progress { choices: choices.to_vec(), versions, usage };
            assert_eq!(progress.event_id("a/b").unwrap(), expected);
            assert_eq!(Progress::parse(expected).unwrap(), ("a/b".to_owned(), progress));
        };
        check(&[received(0, 0, false)], false, "a/b/0.0");
        check(&[received(12, 57, true), received(9, 40, false)], false, "a/b/12.57f,9.40");
        check(&[None, received(1, 2, true)], false, "a/b/-,1.2f");
        check(&[received(u32::MAX, u64::MAX, true)], true, "a/b/4294967295.18446744073709551615f+");
        assert_eq!(Progress::none(MAX_CHOICES + 1).event_id("a"), None);
    }

    #[test]
    fn an_id_says_which_version_each_choice_is_from() {
        let check = |versions: &[u64], expected: &str| {
            let choices = vec![received(1, 2, false); versions.len()];
            let versions = versions.iter().copied().map(Version).collect();
            let progress = Progress { choices, versions, usage: false };
            assert_eq!(progress.event_id("a").unwrap(), expected);
            assert_eq!(Progress::parse(expected).unwrap(), ("a".to_owned(), progress));
        };
        check(&[7], "a/1.2@0000000000000007");
        check(&[7, 7], "a/1.2,1.2@0000000000000007");
        check(&[7, 8, 8], "a/1.2@0000000000000007,1.2,1.2@0000000000000008");
        check(&[7, 0], "a/1.2@0000000000000007,1.2");
        check(&[0, 7], "a/1.2@0000000000000000,1.2@0000000000000007");
    }

    #[test]
    fn other_ids_are_refused_with_a_reason() {
        let many = format!("a/{}", ["-"; MAX_CHOICES + 1].join(","));
        let long = format!("{}/-", "a".repeat(MAX_ID_BYTES));
        for id in [
            "",
            "7",
            "a/",
            "a/7",
            "a/1.",
            "a/.1x",
            "a/1.2F",
            "a/+1.2",
            "a/1.-2",
            "a/1.2ff",
            "a/1.2,",
            "a/4294967296.0",
            "a/1.2+",
            "a/1.2f,-+",
            "a/1.2@7",
            "a/1.2@0000000000000000",
            "a/1.2,3.4@0000000000000000",
            "a/1.2@0000000000000007,3.4@0000000000000007",
            "a/01.2",
            "a/1.2@00000000000000071",
            "a/@0000000000000007",
            &many,
            &long,
        ] {
            let refusal = Progress::parse(id).unwrap_err();
            assert_eq!((refusal.param(), refusal.http().status), (Some("Last-Event-ID"), 400), "{id}");
            assert!(refusal.to_string().contains("`<request id>/<state>`"), "{refusal}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_id_or_a_refusal(text in "[ -~]{0,40}") {
            if let Ok((request_id, progress)) = Progress::parse(&text) {
                let id = progress.event_id(&request_id).unwrap();
                prop_assert_eq!(Progress::parse(&id).unwrap(), (request_id, progress));
            }
        }
    }
}
