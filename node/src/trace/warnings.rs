//! Records warnings logged during a request as events of its server span.

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer;
use tracing_subscriber::registry::LookupSpan;

use super::attribute::Attribute;
use super::current::with_current;
use super::start;
use super::warning::Warning;
use crate::clock;

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
