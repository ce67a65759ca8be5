//! Doors for `tests/fuzz` to what this crate keeps to itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde_json::Value;
use skein_text::formats::Formats;

use crate::api;
pub use crate::api::answer::progress::Progress;
use crate::app::App;
use crate::batch::jobs::Store;
use crate::config::RouterConfig;
use crate::repository::served::Served;
use crate::stored::{StoreLimits, StoredResponses};
use crate::testing::{self, Script};

/// With tools, calls, results and reasoning.
const TEMPLATE: &str = "{% if tools %}{% for t in tools %}T:{{ t.function.name }};{% endfor %}{% endif %}\
    {% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}\
    {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}\
    {% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// What every sample of every request says.
const ANSWER: &str = "<think>\nHm é.\n</think>\n\nWell.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n\"}}\n</tool_call>";

/// All routes of a router, HTTP and gRPC, over a model that always gives the same answer. Files and batches
/// are stored in `batches`.
pub fn routes(batches: &Path) -> Router {
    let mut text = testing::model_text_with(&Value::Null, Some(TEMPLATE));
    let named = Formats::default().with(Some("hermes"), Some("qwen3"));
    text.set_formats(named.expect("parsers that the tables have"));
    let script = Script { every_sample: Some(ANSWER.to_owned()), ..Script::default() };
    let responses =
        StoredResponses::in_memory(StoreLimits { bytes: 16 << 20, kept_for: Duration::from_secs(60) });
    let responses = Some(responses.expect("memory"));
    let config = RouterConfig { endpoint_port: Some(9000), responses, ..testing::config() };
    let store = Store::open(batches, config.batch_limits).expect("an empty directory");
    let mut app = App::new(Arc::new(text), Arc::new(script), config);
    app.store_batches(Arc::new(store));
    let served = Served::One(app.clone());
    let guarded = api::grpc::guarded(&served).expect("descriptors of this build");
    api::router(app, guarded, api::grpc::open(&served))
}
