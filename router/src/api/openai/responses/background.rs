//! Answers that are made in the background: the client gets the id at once and comes back for the answer. The
//! request is stored with it, so a process that starts again makes the answers that its predecessor owed.

use std::time::Duration;

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skein_node::clock;
use skein_state::{NewTurn, StateError, Unanswered};

use super::history;
use super::ids::PREFIX;
use super::ready::{Ready, in_own_words, ready};
use crate::api::answer::single::Single;
use crate::api::answer::single::output::Output;
use crate::api::fields::object::Fields;
use crate::api::openai::error::error_object;
use crate::app::App;
use crate::metrics::ParsedApi;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::stored::{MAX_RUNNING, MAX_WAITING, Place, StoredResponses};
use crate::tenants::Rights;
use crate::tenants::tenant_of::tenant_of;

/// How long an answer waits for a cluster that takes no requests.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Shortest and longest time between two tries.
const RETRY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// What is stored of a request.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Its body.
    body: String,
    /// When it came, in seconds since 1970.
    created_at: u64,
    /// What its key may do, if that is a key of the keys file.
    rights: Option<Rights>,
}

/// Stores `turn` with its request, which came at `created_at`, and begins to make its answer.
///
/// # Errors
/// If it cannot be stored, or too many wait.
pub async fn begin(
    app: &App,
    stored: &StoredResponses,
    tenant: &Tenant,
    body: String,
    created_at: u64,
    turn: NewTurn,
) -> Result<(), Refusal> {
    // While the process ends, it would not be begun.
    let _lease = app.drain.enter()?;
    let place = stored.running().enter(&turn.owner, &turn.id).ok_or_else(|| Refusal::Overloaded {
        reason: format!("{} responses in the background wait", MAX_RUNNING + MAX_WAITING),
        retry_after: RETRY[1],
    })?;
    let request = Stored { body, created_at, rights: tenant.key().map(|key| key.rights.clone()) };
    let request = serde_json::to_string(&request).map_err(|_| Refusal::Internal)?;
    let unanswered = Unanswered { owner: turn.owner.clone(), id: turn.id.clone(), request: request.clone() };
    stored.store().add(NewTurn { request: Some(request), ..turn }).await?;
    tokio::spawn(run(app.clone(), stored.clone(), place, unanswered, Some(tenant.clone())));
    Ok(())
}

/// Makes the answers that are still owed from before this process.
pub async fn resume(app: App) {
    let stored = app.config.responses.clone().filter(|_| !app.config.is_one_of_several);
    let Some(stored) = stored else { return };
    let owed = match stored.store().unanswered().await {
        Ok(owed) => owed,
        Err(error) => return tracing::error!(%error, "responses in the background are not continued"),
    };
    if !owed.is_empty() {
        tracing::info!(responses = owed.len(), "making the responses that were still owed");
    }
    for unanswered in owed {
        // A client's request may be among them already.
        if let Some(place) = stored.running().enter(&unanswered.owner, &unanswered.id) {
            tokio::spawn(run(app.clone(), stored.clone(), place, unanswered, None));
        }
    }
}

/// Makes an answer and stores it. `tenant` is whose it is, if that is known.
async fn run(
    app: App,
    stored: StoredResponses,
    place: Place,
    unanswered: Unanswered,
    tenant: Option<Tenant>,
) {
    let ended = place.ended.clone();
    let work = async {
        let made = make(&app, &stored, &unanswered, tenant).await;
        let answer = match made {
            Made::Answer(answer) => answer,
            Made::Refused(refusal) => failed(&stored, &unanswered, &refusal).await,
            Made::Later => return,
        };
        finish(&app, &stored, &unanswered, answer).await;
    };
    tokio::select! {
        () = ended.cancelled() => {}
        _ = place.when_free(work) => {}
    }
}

/// How an answer went.
enum Made {
    Answer(Value),
    Refused(Refusal),
    /// This process ends; the next one makes it.
    Later,
}

async fn make(app: &App, stored: &StoredResponses, unanswered: &Unanswered, tenant: Option<Tenant>) -> Made {
    let Ok(Stored { body, created_at, rights }) = serde_json::from_str(&unanswered.request) else {
        return Made::Refused(Refusal::Internal);
    };
    let is_owner = |name: &str| stored.owner_named(name) == unanswered.owner;
    let nobody = || is_owner("").then(Tenant::default);
    let tenant = tenant.or_else(|| tenant_of(&app.config, is_owner, rights.as_ref())).or_else(nobody);
    let Some(tenant) = tenant else { return Made::Refused(Refusal::Unauthorized) };
    let began = clock::now();
    loop {
        // The process waits for answers that have begun.
        let Ok(lease) = app.drain.enter() else { return Made::Later };
        let refusal = match attempt(app, stored, unanswered, &tenant, (&body, created_at)).await {
            Ok(answer) => return Made::Answer(answer),
            Err(_) if app.drain.is_draining() => return Made::Later,
            Err(refusal) => refusal,
        };
        let Some(after) = refusal.retry_after().filter(|_| clock::now().since(began) < MAX_WAIT) else {
            return Made::Refused(refusal);
        };
        drop(lease);
        tokio::select! {
            () = tokio::time::sleep(after.clamp(RETRY[0], RETRY[1])) => {}
            () = app.drain.began() => return Made::Later,
        }
    }
}

async fn attempt(
    app: &App,
    stored: &StoredResponses,
    unanswered: &Unanswered,
    tenant: &Tenant,
    (body, created_at): (&str, u64),
) -> Result<Value, Refusal> {
    let Unanswered { owner, id, .. } = unanswered;
    let fields = Fields::parse(body.as_bytes())?;
    let ready = ready(fields, &HeaderMap::new(), id.trim_start_matches(PREFIX), tenant, app).await;
    let Ready { request, mut items, .. } = ready.map_err(in_own_words)?;
    items.created_at = created_at;
    let counts = app.metrics.parsed(ParsedApi::Responses, false);
    let mut single = Single::start(app, tenant, request.draft, true, counts).await?;
    // Nothing is lost if this is not stored.
    let _ = stored.store().answer(owner, id, items.in_progress().to_string(), false).await;
    while let Some(part) = single.next().await {
        items.take(part?, &single);
    }
    Ok(items.whole(single.usage()))
}

/// The answer of a request that was refused.
async fn failed(stored: &StoredResponses, unanswered: &Unanswered, refusal: &Refusal) -> Value {
    let Unanswered { owner, id, .. } = unanswered;
    let before = stored.store().turn(owner, id).await.ok().flatten();
    let mut answer =
        before.and_then(|turn| history::read(&turn.answer).ok()).unwrap_or_else(|| json!({"id": id}));
    answer["status"] = "failed".into();
    answer["error"] = json!({"code": "server_error", "message": error_object(refusal)["error"]["message"]});
    answer
}

/// Stores the answer. A disk that is full is waited for: the answer is owed.
async fn finish(app: &App, stored: &StoredResponses, unanswered: &Unanswered, mut answer: Value) {
    let Unanswered { owner, id, .. } = unanswered;
    loop {
        match stored.store().answer(owner, id, answer.to_string(), true).await {
            Ok(_) => return,
            Err(StateError::TooLarge { .. }) if answer["status"] != "failed" => {
                answer = failed(stored, unanswered, &Refusal::NoRoom).await;
            }
            Err(_) => tokio::select! {
                () = tokio::time::sleep(RETRY[1]) => {}
                () = app.drain.over() => return,
            },
        }
    }
}
