//! An exchange outlives the check of its key, which may be taken out of the keys file.

use std::time::Duration;

use http::HeaderMap;

use crate::api::http::keys::ApiKeys;

/// How often a key is looked up again: about as often as the keys file is.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Resolves when the key in `headers` is no gateway's any more. Keys of flags never change.
pub(super) async fn revoked(keys: ApiKeys, headers: HeaderMap) {
    if !keys.has_limits() {
        return std::future::pending().await;
    }
    let is_gateway = || {
        let admitted = keys.admit(&headers).ok()?;
        admitted.tenant.key().is_none_or(|key| key.is_gateway).then_some(())
    };
    while is_gateway().is_some() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
