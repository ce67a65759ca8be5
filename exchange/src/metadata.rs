//! Statuses and metadata of calls as frames.

use skein_proto::worker::v1::{End, Header};
use tonic::metadata::{KeyAndValueRef, MetadataKey, MetadataMap, MetadataValue};
use tonic::{Code, Status};

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

/// Metadata of `headers`; those that cannot be any are left out.
pub(crate) fn metadata(headers: &[Header]) -> MetadataMap {
    let mut metadata = MetadataMap::with_capacity(headers.len());
    for Header { name, value } in headers {
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
}
