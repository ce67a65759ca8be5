//! Models and adapters with random weights: of real sizes for benchmarks, tiny ones for tests and
//! `skein gpu-check`. Knows the worker's list of tensors, and no worker.

mod adapters;
mod configuration;
mod dtype;
mod error;
mod outliers;
mod quantised_form;
mod random;
mod shapes;

pub use adapters::{Targets, make_adapters};
pub use dtype::Dtype;
pub use error::{MakeAdaptersError, MakeModelError};
pub use quantised_form::{FORMS, QuantisedForm};
pub use random::{Made, RandomWeights, check_free, make_model, make_without_weights};
pub use shapes::{ModelShape, SHAPES};
