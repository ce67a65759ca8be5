//! What the request bodies of several APIs share: a JSON object read field by field, and the fields that have
//! the same name and meaning in each of them. Values are checked in `validate`.

mod arrival;
pub mod constraint;
pub mod conversation;
pub mod effort;
pub mod field;
pub mod listing;
pub mod object;
pub mod pooled;
pub mod prompt_name;
pub mod prompts;
pub mod sampling;
pub mod tools;
pub mod unserved;
