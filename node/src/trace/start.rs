//! Starts and ends the export of traces and metrics.

use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::runtime::{Builder, Handle};

use super::connection::Way;
use super::error::StartError;
use super::export::{self, EXPORT_TIMEOUT, Sending};
use super::options::{Endpoint, Options, Sampling};

/// Sampling and [`slow_after`], set when traces start.
static TRACES: OnceLock<(Sampling, Duration)> = OnceLock::new();
static METERS: OnceLock<SdkMeterProvider> = OnceLock::new();

pub(super) fn is_on() -> bool {
    TRACES.get().is_some()
}

/// Sampling of requests; `None` if traces are disabled.
pub(super) fn sampling() -> Option<&'static Sampling> {
    TRACES.get().map(|(sampling, _)| sampling)
}

/// A request that waits longer than this for a token is exported even if it is not sampled.
pub fn slow_after() -> Duration {
    TRACES.get().map_or(Duration::MAX, |(_, slow_after)| *slow_after)
}

pub(super) fn meter() -> Option<Meter> {
    METERS.get().map(|meters| meters.meter_with_scope(export::scope()))
}

/// Starts the exports enabled in `options`, for the lifetime of this process.
///
/// # Errors
/// If an endpoint is unusable, or traces were started before.
pub fn start(options: &Options) -> Result<(), StartError> {
    if options.traces.is_none() && options.metrics.is_none() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let resource = resource(options);
    let sending = options.traces.as_ref().map(|endpoint| {
        let _entered = handle.enter();
        let mut exporter = span_exporter(endpoint)?;
        exporter.set_resource(&resource);
        Sending::open(exporter).ok_or(StartError::AlreadyStarted)
    });
    let sending = sending.transpose()?;
    let meters = options.metrics.as_ref().map(|endpoint| meters(endpoint, resource, &handle)).transpose()?;
    std::thread::Builder::new().name("telemetry".into()).spawn(move || {
        runtime.block_on(async {
            match sending {
                Some(sending) => sending.run().await,
                // This thread drives the connection of the metrics.
                None => std::future::pending().await,
            }
        });
    })?;
    if let Some(meters) = meters {
        METERS.set(meters).map_err(|_| StartError::AlreadyStarted)?;
    }
    if options.traces.is_some() {
        TRACES.set((options.sampling, options.slow_after)).map_err(|_| StartError::AlreadyStarted)?;
    }
    Ok(())
}

/// Sends what is queued, within `at_most`. Call it before the process ends.
pub fn flush(at_most: Duration) {
    if !is_on() && METERS.get().is_none() {
        return;
    }
    let (done, flushed) = std::sync::mpsc::sync_channel(1);
    // On a separate thread, because the metrics provider may block for longer.
    let flushing = std::thread::Builder::new().name("telemetry flush".into()).spawn(move || {
        if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
            runtime.block_on(export::flush());
        }
        if let Some(meters) = METERS.get() {
            // The failure has already been logged.
            let _ = meters.force_flush();
        }
        let _ = done.send(());
    });
    if flushing.is_ok() {
        let _ = flushed.recv_timeout(at_most);
    }
}

/// Resource attributes; `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` override ours.
fn resource(options: &Options) -> Resource {
    let instance = match options.instance.as_str() {
        "" => format!("{}-{}", host_name(), std::process::id()),
        name => format!("{}-{name}", host_name()),
    };
    let ours = Resource::builder_empty()
        .with_service_name(options.service.clone())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
        ])
        .build();
    let given = Resource::builder_empty()
        .with_detector(Box::new(opentelemetry_sdk::resource::EnvResourceDetector::new()))
        .build();
    let mut builder = Resource::builder_empty().with_attributes(pairs(&ours)).with_attributes(pairs(&given));
    if let Some(name) = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()) {
        builder = builder.with_service_name(name);
    }
    builder.build()
}

fn pairs(resource: &Resource) -> Vec<KeyValue> {
    resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect()
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

fn span_exporter(endpoint: &Endpoint) -> Result<SpanExporter, StartError> {
    let url = endpoint.url.clone();
    let built = match Way::to(endpoint)? {
        Way::PlainGrpc => {
            SpanExporter::builder().with_tonic().with_endpoint(url).with_timeout(EXPORT_TIMEOUT).build()
        }
        Way::PlainHttp => {
            SpanExporter::builder().with_http().with_endpoint(url).with_timeout(EXPORT_TIMEOUT).build()
        }
        Way::Grpc(channel) => {
            SpanExporter::builder().with_tonic().with_channel(channel).with_timeout(EXPORT_TIMEOUT).build()
        }
        Way::Http(client) => {
            let exporter = SpanExporter::builder().with_http().with_http_client(*client);
            exporter.with_endpoint(url).with_timeout(EXPORT_TIMEOUT).build()
        }
    };
    built.map_err(|error| endpoint.unusable(error))
}

fn meters(endpoint: &Endpoint, resource: Resource, handle: &Handle) -> Result<SdkMeterProvider, StartError> {
    let _entered = handle.enter();
    let url = endpoint.url.clone();
    let built = match Way::to(endpoint)? {
        Way::PlainGrpc => {
            MetricExporter::builder().with_tonic().with_endpoint(url).with_timeout(EXPORT_TIMEOUT).build()
        }
        Way::PlainHttp => {
            MetricExporter::builder().with_http().with_endpoint(url).with_timeout(EXPORT_TIMEOUT).build()
        }
        Way::Grpc(channel) => {
            MetricExporter::builder().with_tonic().with_channel(channel).with_timeout(EXPORT_TIMEOUT).build()
        }
        Way::Http(client) => {
            let exporter = MetricExporter::builder().with_http().with_http_client(*client);
            exporter.with_endpoint(url).with_timeout(EXPORT_TIMEOUT).build()
        }
    };
    let exporter = built.map_err(|error| endpoint.unusable(error))?;
    let reader = PeriodicReader::builder(OnRuntime { exporter, handle: handle.clone() }).build();
    Ok(SdkMeterProvider::builder().with_resource(resource).with_reader(reader).build())
}

/// Exports metrics within a runtime, which the reader's own thread lacks.
#[derive(Debug)]
struct OnRuntime {
    exporter: MetricExporter,
    handle: Handle,
}

impl PushMetricExporter for OnRuntime {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        InRuntime { handle: &self.handle, future: Box::pin(self.exporter.export(metrics)) }.await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

/// A future polled within a runtime.
struct InRuntime<'a, F> {
    handle: &'a Handle,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for InRuntime<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let handle = self.handle;
        let _entered = handle.enter();
        self.future.as_mut().poll(context)
    }
}
