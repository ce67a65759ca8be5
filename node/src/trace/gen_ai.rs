//! The `gen_ai.server.*` metrics of OpenTelemetry's conventions, by OTLP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use super::start;

/// Bucket bounds of the conventions, in seconds.
const DURATION: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
const FIRST_TOKEN: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
const PER_TOKEN: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];

/// Metrics of one served model.
pub struct GenAi {
    duration: Histogram<f64>,
    first_token: Histogram<f64>,
    per_token: Histogram<f64>,
    /// Shared with the attributes of each request.
    model: Arc<str>,
}

/// Measurements of one request.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// Value of `gen_ai.operation.name`.
    pub operation: &'static str,
    /// Time from arrival to end.
    pub duration: Duration,
    /// Time from arrival to first token.
    pub first_token: Option<Duration>,
    /// Mean time between tokens.
    pub per_token: Option<Duration>,
    /// Value of `error.type` if the request failed.
    pub error: Option<&'a str>,
}

impl GenAi {
    /// Metrics of `model`; `None` if no OTLP endpoint receives metrics.
    pub fn new(model: &str) -> Option<Self> {
        start::meter().map(|meter| Self::of(&meter, model))
    }

    fn of(meter: &Meter, model: &str) -> Self {
        let seconds = |name: &'static str, description: &'static str, buckets: &[f64]| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(description);
            builder.with_boundaries(buckets.to_vec()).build()
        };
        Self {
            duration: seconds(
                "gen_ai.server.request.duration",
                "Generative AI server request duration such as time-to-last byte or last output token.",
                &DURATION,
            ),
            first_token: seconds(
                "gen_ai.server.time_to_first_token",
                "Time to generate first token for successful responses.",
                &FIRST_TOKEN,
            ),
            per_token: seconds(
                "gen_ai.server.time_per_output_token",
                "Time per output token generated after the first token for successful responses.",
                &PER_TOKEN,
            ),
            model: model.into(),
        }
    }

    /// Records a finished request.
    pub fn record(&self, request: &Observation<'_>) {
        let common = [
            KeyValue::new("gen_ai.operation.name", request.operation),
            KeyValue::new("gen_ai.provider.name", "skein"),
            KeyValue::new("gen_ai.request.model", self.model.clone()),
            KeyValue::new("gen_ai.response.model", self.model.clone()),
        ];
        let Some(error) = request.error else {
            self.duration.record(request.duration.as_secs_f64(), &common);
            let times = [(&self.first_token, request.first_token), (&self.per_token, request.per_token)];
            for (histogram, time) in times {
                time.inspect(|time| histogram.record(time.as_secs_f64(), &common));
            }
            return;
        };
        let mut failed = common.to_vec();
        failed.push(KeyValue::new("error.type", error.to_owned()));
        self.duration.record(request.duration.as_secs_f64(), &failed);
    }
}

impl fmt::Debug for GenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenAi").field("model", &self.model).finish_non_exhaustive()
    }
}
