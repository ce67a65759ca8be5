//! Statuses and metadata of calls as frames.

use std::error::Error;

use skein_proto::worker::v1::{End, Header};
use tonic::metadata::{KeyAndValueRef, MetadataKey, MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::limits::MAX_HEADERS;

/// The ASCII headers of `metadata`.
pub(crate) fn headers(metadata: &MetadataMap) -> Vec<Header> {
    let header = |entry: KeyAndValueRef<'_>| match entry {
        KeyAndValueRef::Ascii(name, value) => {
            Some(Header { name: name.as_str().to_owned(), value: value.to_str().ok()?.to_owned() })
        }
        KeyAndValueRef::Binary(..) => None,
    };
    metadata.iter().filter_map(header).collect()
}

/// Metadata of `headers`; those that cannot be any are left out, and those beyond [`MAX_HEADERS`].
pub(crate) fn metadata(headers: &[Header]) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for Header { name, value } in headers.iter().take(MAX_HEADERS) {
        if let (Ok(name), Ok(value)) =
            (MetadataKey::from_bytes(name.as_bytes()), MetadataValue::try_from(value))
        {
            metadata.append(name, value);
        }
    }
    metadata
}

/// The end of a call that has sent everything.
pub(crate) fn complete() -> End {
    End { code: Code::Ok as i32, ..End::default() }
}

/// The end of a call that has failed.
pub(crate) fn failed(status: &Status) -> End {
    let metadata = headers(status.metadata());
    End { code: status.code() as i32, message: status.message().to_owned(), metadata }
}

/// What an end says; `None` = everything was sent.
pub(crate) fn status(end: &End) -> Option<Status> {
    match Code::from_i32(end.code) {
        Code::Ok => None,
        code => Some(Status::with_metadata(code, end.message.clone(), metadata(&end.metadata))),
    }
}

/// What the end of an exchange means for each of its calls: that this worker failed. Its code and metadata
/// are about the exchange; as a call's own they could mean that the request is wrong, or that the worker is
/// full.
#[must_use]
pub fn of_call(status: &Status) -> Status {
    // A connection that broke.
    if status.source().is_some() {
        return status.clone();
    }
    let code = match status.code() {
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition | Code::ResourceExhausted => {
            Code::Unavailable
        }
        code => code,
    };
    Status::new(code, status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_with_its_metadata() {
        let mut full = Status::resource_exhausted("the queue is full");
        full.metadata_mut().insert("retry-after-ms", MetadataValue::from_static("1000"));
        let read = status(&failed(&full)).expect("a failure");
        assert_eq!((read.code(), read.message()), (full.code(), full.message()));
        assert_eq!(read.metadata().get("retry-after-ms").unwrap(), "1000");
        assert!(status(&complete()).is_none());
    }

    #[test]
    fn headers_that_http_does_not_know_are_left_out() {
        let header = |name: &str, value: &str| Header { name: name.to_owned(), value: value.to_owned() };
        let sent = [header("Upper Case", "x"), header("traceparent", "00-1"), header("tracestate", "\n")];
        let read = metadata(&sent);
        assert_eq!((read.len(), read.get("traceparent").unwrap().as_bytes()), (1, &b"00-1"[..]));
    }

    #[test]
    fn headers_beyond_the_limit_are_left_out() {
        let headers: Vec<_> =
            (0..50_000).map(|at| Header { name: format!("x-{at}"), value: "1".to_owned() }).collect();
        assert_eq!(metadata(&headers).len(), MAX_HEADERS);
    }

    #[test]
    fn the_end_of_an_exchange_blames_no_request() {
        for code in 1..=16 {
            let mut ended = Status::new(Code::from_i32(code), "why");
            ended.metadata_mut().insert("skein-version-gone", MetadataValue::from_static("true"));
            let read = of_call(&ended);
            let blames =
                [Code::InvalidArgument, Code::OutOfRange, Code::FailedPrecondition, Code::ResourceExhausted];
            assert!(!blames.contains(&read.code()) && read.metadata().is_empty(), "{read:?}");
            assert_eq!(read.message(), "why");
        }
    }
}
