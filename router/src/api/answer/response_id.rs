//! Ids of answers.

use skein_node::trace;

/// Id of the answer to the request `id`, in an API whose ids begin with `prefix`. The request's span gets it,
/// too, so that a client's span of the call, which has the answer's id, can be joined with it.
pub fn response_id(prefix: &str, id: &str) -> String {
    let whole = [prefix, id].concat();
    trace::current().set_all(|| [("gen_ai.response.id", whole.clone().into())]);
    whole
}
