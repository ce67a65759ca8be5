//! Records warnings logged during a request as events of its server span.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer;
use tracing_subscriber::registry::LookupSpan;

use super::attribute::{Attribute, Pair};
use super::current::with_current;
use super::start;
use crate::clock::{self, Timestamp};

/// A logged warning.
#[derive(Debug)]
pub(super) struct Warning {
    pub at: Timestamp,
    pub message: String,
    pub attributes: Vec<Pair>,
}

/// Layer that records warnings; `None` if traces are disabled.
pub(crate) fn layer<S>() -> Option<impl Layer<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = filter_fn(|metadata| {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("skein")
    });
    start::is_on().then(|| Warnings.with_filter(ours.with_max_level_hint(LevelFilter::WARN)))
}

struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: layer::Context<'_, S>) {
        with_current(|request| {
            if request.is_on() {
                let mut warning =
                    Warning { at: clock::now(), message: String::new(), attributes: Vec::new() };
                event.record(&mut warning);
                warning.attributes.push(("level", Attribute::Word(event.metadata().level().as_str())));
                request.warned(warning);
            }
        });
    }
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
