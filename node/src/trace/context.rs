//! W3C trace context: `traceparent` and `tracestate`, as HTTP headers and gRPC metadata.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Header with the caller's ids and flags.
pub const TRACEPARENT: &str = "traceparent";
/// Header with vendor data, passed on unchanged.
pub const TRACESTATE: &str = "tracestate";
/// Longest `tracestate` passed on, in bytes; the specification requires at least 512.
const MAX_STATE_BYTES: usize = 512;
/// Length of a version-00 `traceparent`, in bytes.
const PARENT_BYTES: usize = 55;
/// Flag of a trace sampled by its originator.
const SAMPLED: u8 = 1;

/// Ids of a span in this or another process, for links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) sampled: bool,
}

impl Link {
    /// Id of the trace; its `Display` has 32 hexadecimal digits.
    pub(crate) fn trace_id(self) -> impl std::fmt::Display {
        self.trace
    }

    /// Id of the span; its `Display` has 16 hexadecimal digits.
    pub(crate) fn span_id(self) -> impl std::fmt::Display {
        self.span
    }

    /// Context for the exporter. An exported span counts as sampled, whatever was decided at its start.
    pub(super) fn exported(self, state: &TraceState) -> SpanContext {
        SpanContext::new(self.trace, self.span, TraceFlags::SAMPLED, false, state.clone())
    }

    /// Value of `traceparent` for this span.
    pub(super) fn traceparent(self) -> Traceparent {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace.to_bytes(), &mut text[3..35]);
        write_hex(&self.span.to_bytes(), &mut text[36..52]);
        text[54] += u8::from(self.sampled);
        Traceparent(text)
    }
}

/// Value of `traceparent`, without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent([u8; PARENT_BYTES]);

impl Traceparent {
    /// ASCII bytes of the value.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Headers that identify a call's span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// Value of `traceparent`.
    pub parent: Traceparent,
    /// Value of `tracestate`; may be empty.
    pub state: String,
}

fn write_hex(bytes: &[u8], text: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, digits) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// Context received from the caller. As specified, a malformed one counts as absent.
#[derive(Debug, Clone, Default)]
pub struct Remote {
    pub(super) parent: Option<Link>,
    pub(super) state: TraceState,
}

impl Remote {
    /// Reads both headers; `header` returns a header's value by name.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let Some(parent) = header(TRACEPARENT).and_then(parse) else { return Self::default() };
        let state = header(TRACESTATE).filter(|state| state.len() <= MAX_STATE_BYTES);
        Self { parent: Some(parent), state: state.and_then(|state| state.parse().ok()).unwrap_or_default() }
    }
}

/// Parses `VERSION-TRACE-SPAN-FLAGS`. Later versions may append fields.
fn parse(text: &str) -> Option<Link> {
    let bytes = text.as_bytes();
    let (fields, rest) = bytes.split_at_checked(PARENT_BYTES)?;
    let is_separated = [2, 35, 52].iter().all(|&at| fields[at] == b'-');
    let [version] = hex::<1>(&fields[..2])?;
    let fits = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let trace = TraceId::from_bytes(hex(&fields[3..35])?);
    let span = SpanId::from_bytes(hex(&fields[36..52])?);
    let [flags] = hex::<1>(&fields[53..])?;
    let is_valid = is_separated && fits && trace != TraceId::INVALID && span != SpanId::INVALID;
    is_valid.then_some(Link { trace, span, sampled: flags & SAMPLED != 0 })
}

/// Parses lower-case hexadecimal digits, as specified.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(parent: &str, state: &str) -> Remote {
        Remote::read(|name| match name {
            TRACEPARENT => Some(parent),
            TRACESTATE => Some(state).filter(|state| !state.is_empty()),
            _ => None,
        })
    }

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_passed_on_as_it_came() {
        for parent in [GOOD, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"] {
            let Remote { parent: parsed, state } = remote(parent, "vendor=1,other=2");
            assert_eq!(parsed.expect("it is valid").traceparent().as_bytes(), parent.as_bytes());
            assert_eq!(state.header(), "vendor=1,other=2");
        }
    }

    #[test]
    fn a_later_version_may_say_more() {
        let later = GOOD.replacen("00", "01", 1);
        for text in [later.clone(), later + "-more"] {
            assert_eq!(remote(&text, "").parent, remote(GOOD, "").parent, "{text}");
        }
    }

    #[test]
    fn a_malformed_traceparent_counts_as_absent() {
        let zero_trace = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let zero_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let long = format!("{GOOD}-more");
        let joined = GOOD.replacen('-', "0", 1);
        let wide = GOOD.replacen('f', "é", 1);
        let ff = GOOD.replacen("00", "ff", 1);
        let texts =
            ["", "00", &ff, &long, &joined, &wide, &GOOD[..50], &GOOD.to_uppercase(), zero_trace, zero_span];
        for parent in texts {
            assert_eq!(remote(parent, "").parent, None, "{parent}");
        }
        assert_eq!(Remote::read(|_| None).parent, None);
    }

    #[test]
    fn a_long_or_malformed_tracestate_is_left_out() {
        let long = format!("vendor={}", "x".repeat(MAX_STATE_BYTES));
        for state in [long.as_str(), "no pair"] {
            let parsed = remote(GOOD, state);
            assert!(parsed.parent.is_some(), "the parent is valid");
            assert_eq!(parsed.state.header(), "", "{state}");
        }
    }
}
