//! Compares a stream with its undisturbed run, token by token and byte by byte. Pure.

use crate::history::{Choice, History};

/// How a stream differs from its undisturbed run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// It ended with an error, lost its connection, or never ended.
    pub failed: bool,
    /// Tokens of the undisturbed run that are missing.
    pub lost: u64,
    /// Tokens that arrived more than once.
    pub duplicated: u64,
    /// Tokens that differ, plus one for each part that differs: text, log-probabilities, finish reason,
    /// usage.
    pub altered: u64,
    /// Description of the first difference.
    pub first: Option<String>,
}

impl Verdict {
    /// Whether the stream equals its undisturbed run.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        self.first.get_or_insert_with(what);
    }
}

/// Compares what a client saw with the undisturbed run.
pub fn compare(seen: &History, expected: &History) -> Verdict {
    let mut verdict = Verdict::default();
    if !seen.complete() {
        verdict.failed = true;
        verdict.note(|| {
            format!("did not complete: status {}, {:?}, {:?}", seen.status, seen.error, seen.violations)
        });
    }
    let nothing = Choice::default();
    for (index, choice) in &expected.choices {
        compare_choice(&mut verdict, *index, seen.choices.get(index).unwrap_or(&nothing), choice);
    }
    for index in seen.choices.keys().filter(|index| !expected.choices.contains_key(index)) {
        verdict.altered += 1;
        verdict.note(|| format!("choice {index} is unexpected"));
    }
    if !verdict.failed && counts(seen) != counts(expected) {
        verdict.altered += 1;
        verdict.note(|| format!("usage {:?} instead of {:?}", seen.usage, expected.usage));
    }
    verdict
}

/// Leaves cached tokens out: a worker's cache hits are not part of the answer.
fn counts(history: &History) -> Option<(String, String)> {
    let usage = history.usage.as_ref()?;
    Some((usage["prompt_tokens"].to_string(), usage["completion_tokens"].to_string()))
}

fn compare_choice(verdict: &mut Verdict, index: u64, seen: &Choice, expected: &Choice) {
    if seen == expected {
        return;
    }
    let before = (verdict.lost, verdict.duplicated, verdict.altered);
    if expected.token_ids.is_empty() {
        count(verdict, &seen.text.chars().collect::<Vec<_>>(), &expected.text.chars().collect::<Vec<_>>());
    } else {
        count(verdict, &seen.token_ids, &expected.token_ids);
    }
    let tokens_differ = before != (verdict.lost, verdict.duplicated, verdict.altered);
    // Differences that follow from other tokens are not counted twice, and a failed stream's missing parts
    // are already counted as lost.
    if !tokens_differ && !verdict.failed {
        let parts =
            [seen.text != expected.text, seen.logprobs != expected.logprobs, seen.finish != expected.finish];
        verdict.altered += parts.into_iter().filter(|&differs| differs).count() as u64;
    }
    verdict.note(|| format!("choice {index}: expected {expected:?}\n    seen {seen:?}"));
}

/// Edit distance between the two sequences. Deleted tokens are lost, changed ones altered. An inserted token
/// is a duplicate if it occurs in the expected sequence, else altered.
fn count<T: PartialEq>(verdict: &mut Verdict, seen: &[T], expected: &[T]) {
    let width = seen.len() + 1;
    let mut cost = vec![0u32; (expected.len() + 1) * width];
    for e in 0..=expected.len() {
        for s in 0..width {
            cost[e * width + s] = match (e, s) {
                (0, s) => s as u32,
                (e, 0) => e as u32,
                (e, s) => {
                    let other = u32::from(expected[e - 1] != seen[s - 1]);
                    let (up, left) = (cost[(e - 1) * width + s] + 1, cost[e * width + s - 1] + 1);
                    up.min(left).min(cost[(e - 1) * width + s - 1] + other)
                }
            };
        }
    }
    let (mut e, mut s) = (expected.len(), seen.len());
    while e > 0 || s > 0 {
        let here = cost[e * width + s];
        if e > 0 && s > 0 {
            let other = u32::from(expected[e - 1] != seen[s - 1]);
            if here == cost[(e - 1) * width + s - 1] + other {
                verdict.altered += u64::from(other);
                (e, s) = (e - 1, s - 1);
                continue;
            }
        }
        if e > 0 && here == cost[(e - 1) * width + s] + 1 {
            verdict.lost += 1;
            e -= 1;
        } else {
            s -= 1;
            if expected.contains(&seen[s]) {
                verdict.duplicated += 1;
            } else {
                verdict.altered += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn history(tokens: &[u64]) -> History {
        let choice = Choice {
            text: format!("{tokens:?}"),
            token_ids: tokens.to_vec(),
            logprobs: vec!["-1.5".into()],
            finish: Some("length".into()),
        };
        History {
            choices: [(0, choice)].into(),
            usage: Some(json!({"prompt_tokens": 3, "completion_tokens": 5})),
            status: 200,
            done: true,
            ..History::default()
        }
    }

    #[track_caller]
    fn check(seen: &[u64], (lost, duplicated, altered): (u64, u64, u64)) {
        let verdict = compare(&history(seen), &history(&[10, 11, 12, 13, 14]));
        assert_eq!((verdict.lost, verdict.duplicated, verdict.altered), (lost, duplicated, altered));
        assert_eq!(verdict.is_clean(), (lost, duplicated, altered) == (0, 0, 0));
        assert!(!verdict.failed);
    }

    #[test]
    fn lost_repeated_and_altered_tokens_are_told_apart() {
        check(&[10, 11, 12, 13, 14], (0, 0, 0));
        check(&[10, 11, 13, 14], (1, 0, 0));
        check(&[], (5, 0, 0));
        check(&[10, 11, 12, 12, 13, 14], (0, 1, 0));
        check(&[10, 11, 12, 11, 12, 13, 14], (0, 2, 0));
        check(&[10, 11, 99, 13, 14], (0, 0, 1));
        check(&[10, 11, 99, 12, 13, 14], (0, 0, 1));
    }

    #[test]
    fn whatever_else_differs_is_altered() {
        let expected = history(&[1, 2]);
        let check = |change: fn(&mut History)| {
            let mut seen = expected.clone();
            change(&mut seen);
            let verdict = compare(&seen, &expected);
            assert_eq!((verdict.failed, verdict.lost, verdict.altered), (false, 0, 1), "{verdict:?}");
        };
        let first = |history: &mut History| history.choices.remove(&0).unwrap_or_default();
        check(|seen| seen.choices.entry(0).or_default().text.push(' '));
        check(|seen| seen.choices.entry(0).or_default().logprobs[0] = "-1.5000001".into());
        check(|seen| seen.choices.entry(0).or_default().finish = Some("stop".into()));
        check(|seen| seen.usage = Some(json!({"prompt_tokens": 3, "completion_tokens": 6})));
        let mut seen = expected.clone();
        seen.choices.insert(1, first(&mut seen.clone()));
        assert_eq!(compare(&seen, &expected).altered, 1);
    }

    #[test]
    fn a_stream_that_broke_off_failed_and_lost_its_rest() {
        let mut seen = history(&[1, 2]);
        (seen.done, seen.error) = (false, Some(json!({"message": "gone"})));
        let verdict = compare(&seen, &history(&[1, 2, 3]));
        assert_eq!((verdict.failed, verdict.lost, verdict.altered), (true, 1, 0));
        assert!(verdict.first.is_some_and(|first| first.contains("gone")));
    }
}
