//! A warning logged during a request.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};

use super::attribute::Pair;
use crate::clock::Timestamp;

/// A logged warning.
#[derive(Debug)]
pub(super) struct Warning {
    pub at: Timestamp,
    pub message: String,
    pub attributes: Vec<Pair>,
}

impl Visit for Warning {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attributes.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.attributes.push((field.name(), value.into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.attributes.push((field.name(), value.to_owned().into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.attributes.push((field.name(), format!("{value:?}").into()));
        }
    }
}
