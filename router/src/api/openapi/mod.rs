//! The API's own description: `/openapi.json`, in OpenAPI 3.1. Each room of the API makes its routes by
//! [`room::Room`], which has an [`operation::Operation`] for each, so that no route is served without a
//! description. The fields of a body are those that its reader takes from a listed body
//! ([`crate::api::fields::listing`]), with the bounds of `validate`. Shapes within fields and of answers are
//! written by hand in `components/`; the tests of the APIs compare every answer, and every request that is
//! answered, with them.

mod components;
pub mod document;
pub mod operation;
pub mod room;
pub mod schema;
mod served;
mod shared;
mod words;

pub use served::{Describer, room, serve};
