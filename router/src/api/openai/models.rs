//! The models in OpenAI's form.

use serde_json::{Value, json};

use crate::app::App;
use crate::request::tenant::Tenant;

/// The list in OpenAI's form, of what `tenant` may use.
pub fn list(app: &App, tenant: &Tenant) -> Value {
    let data: Vec<Value> =
        app.names(tenant).into_iter().map(|(name, is_adapter)| model(app, &name, is_adapter)).collect();
    json!({"object": "list", "data": data})
}

/// A model in vLLM's format. `max_model_len` and `version` come from the workers and are null while none is
/// ready; new requests go to this version. A gateway's routers name none, because each may serve several.
pub fn model(app: &App, name: &str, is_adapter: bool) -> Value {
    let max_model_len = app.fleet.model_limits().ok().map(|limits| limits.max_model_len);
    let version = Some(app.fleet.version()).filter(|version| version.is_known());
    let parent = is_adapter.then(|| app.text.name().to_string());
    json!({
        "id": name, "object": "model", "created": app.created, "owned_by": "skein", "root": name, "parent": parent,
        "max_model_len": max_model_len, "version": version.map(|version| version.to_string()),
    })
}
