//! What the description says of this API.

use crate::api::openapi::operation::Part;

/// This API.
pub static PART: Part =
    Part { name: "OpenAI", about: "OpenAI's API, with vLLM's fields.", errors: "OpenAiError" };
