//! Certificates of a running process are read again when their files change, and on SIGHUP; those that expire
//! soon are named.

use std::time::Duration;

use skein_node::hangup::Hangups;
use skein_node::shutdown::Shutdown;
use skein_node::{certificates, clock};
use skein_tls::TlsError;

use crate::exit::Failure;
use crate::settings::Guards;

/// How often the files are compared with what is used. cert-manager and `certbot` renew days before the end.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Reads changed files until the process ends, and warns before certificates expire. New connections use the
/// new ones, open ones stay as they are.
pub fn follow(guards: &Guards) {
    guards.watch();
    if !certificates::is_any_watched() {
        return;
    }
    let guards = guards.clone();
    tokio::spawn(async move {
        let mut problem = String::new();
        loop {
            let found = reload(&guards).await.err().map(|error| error.to_string()).unwrap_or_default();
            // Once for each problem: the old certificate is used meanwhile.
            if found != problem && !found.is_empty() {
                tracing::warn!(problem = found, "new certificates cannot be used; the old ones stay");
            }
            problem = found;
            // It does not panic, and is not cancelled.
            let _ = tokio::task::spawn_blocking(|| certificates::look(clock::unix_time())).await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
}

/// As [`follow`], and also on SIGHUP: for processes to which the signal means nothing else.
///
/// # Errors
/// If the signal handler cannot be installed.
pub fn follow_with_hangups(guards: &Guards, shutdown: &Shutdown) -> Result<(), Failure> {
    follow(guards);
    if !guards.has_certificates() {
        return Ok(());
    }
    let (guards, shutdown) = (guards.clone(), shutdown.clone());
    let mut hangups = Hangups::receive().map_err(Failure::other)?;
    tokio::spawn(async move {
        loop {
            hangups.next(&shutdown).await;
            read_again(&guards).await;
        }
    });
    Ok(())
}

/// Reads changed files now, because the operator has asked for it.
pub async fn read_again(guards: &Guards) {
    match reload(guards).await {
        Ok(true) => {}
        Ok(false) => tracing::info!("SIGHUP: the files of certificates have not changed"),
        Err(error) => tracing::warn!(%error, "SIGHUP: new certificates cannot be used; the old ones stay"),
    }
}

async fn reload(guards: &Guards) -> Result<bool, TlsError> {
    let guards = guards.clone();
    let reloaded = tokio::task::spawn_blocking(move || guards.reload()).await;
    // It does not panic, and is not cancelled.
    let changed = reloaded.unwrap_or(Ok(false))?;
    if changed {
        tracing::info!("new certificates are used from now on");
    }
    Ok(changed)
}
