//! Whether a server takes the key, and which models it lists for it.

use http::StatusCode;
use serde_json::Value;

use super::client::{Answer, Client, Server};
use super::report::Report;

const MODELS: &str = "/v1/models";

/// Records what the server says about the key and the models.
pub async fn check(report: &mut Report, client: &Client<'_>, server: &Server) {
    let answer = match client.get(MODELS, true).await {
        Ok(answer) => answer,
        Err(why) => return report.fail("models", why, "see the server's log"),
    };
    if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&answer.status) {
        return match &server.api_key {
            Some(_) => report.fail(
                "key",
                format!("the server refuses this key: {}", answer.sentence()),
                "take one that the server knows: of its --api-key values or its --api-keys-file (`skein keys list`); \
                 SKEIN_API_KEY holds it here",
            ),
            None => report.fail(
                "key",
                "the server requires a key, and none was given",
                "set SKEIN_API_KEY, or give --api-key",
            ),
        };
    }
    if !answer.status.is_success() {
        let found = format!("{MODELS}: {}", answer.sentence());
        return report.fail("models", found, "see the server's log");
    }
    let needs_key = !client.get(MODELS, false).await.is_ok_and(|open| open.status.is_success());
    match (&server.api_key, needs_key) {
        (Some(_), false) => report.warn(
            "key",
            "the server needs no key: it answers without one as well",
            "start it with SKEIN_API_KEY if others can reach it",
        ),
        (Some(_), true) => report.ok("key", "taken"),
        (None, _) => report.ok("key", "not required"),
    }
    let list: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let names: Vec<&str> =
        list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
    let wanted = server.model.as_deref().filter(|wanted| !names.contains(wanted));
    match wanted {
        None if !names.is_empty() => report.ok("models", names.join(", ")),
        Some(wanted) if !names.is_empty() => report.fail(
            "models",
            format!("`{wanted}` is not served there, only {}", names.join(", ")),
            "correct the name, or start the server with that model (--served-model-name)",
        ),
        _ if needs_key => report.fail(
            "models",
            format!("none is listed for this key{}", said_of(client, wanted).await),
            "the key's `models` in the server's --api-keys-file name none that is served there: add one, or take another key",
        ),
        _ => report.fail("models", format!("none is served{}", said_of(client, wanted).await), "see the server's log"),
    }
}

/// What the server says of the model that was asked for.
async fn said_of(client: &Client<'_>, wanted: Option<&str>) -> String {
    let Some(wanted) = wanted else { return String::new() };
    let answer = client.get(&format!("{MODELS}/{wanted}"), true).await;
    answer.map_or_else(|_| String::new(), |answer: Answer| format!(": {}", answer.sentence()))
}
