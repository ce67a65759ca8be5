//! Refusals as gRPC statuses.

use tonic::metadata::MetadataValue;

use crate::refusal::Refusal;

/// A refusal as a gRPC status, with `retry-after-ms` in the metadata if retrying helps.
pub fn status(refusal: &Refusal) -> tonic::Status {
    let mut status = tonic::Status::new(refusal.grpc_code(), refusal.to_string());
    if let Some(after) = refusal.retry_after() {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
        status.metadata_mut().insert("retry-after-ms", MetadataValue::from(ms));
    }
    status
}
