//! Where traces and metrics are sent: Skein's flags, and OpenTelemetry's standard environment variables where
//! no flag is given.

use std::time::Duration;

use skein_node::config::{Settings, duration, number, one_of, text};
use skein_node::trace::{Endpoint, Options, Protocol, Sampling};
use skein_tls::ClientFiles;

use super::otlp_tls::{self, GivenFiles};

/// Default fraction of requests that are sampled.
const DEFAULT_RATIO: f64 = 0.05;
const LEAST_SLOW: Duration = Duration::from_millis(1);
const MOST_SLOW: Duration = Duration::from_secs(24 * 3600);
/// Time limit for the last spans when a process ends.
pub const FLUSH_TRACES: Duration = Duration::from_secs(2);
/// OTLP settings of a command.
#[derive(Debug)]
pub struct OtlpSettings {
    /// Exporter options; `None` = traces and metrics are disabled.
    pub options: Option<Options>,
}

impl OtlpSettings {
    /// Reads flags and environment; problems are recorded in `settings`. `service` is the default of
    /// `service.name`.
    pub fn read(settings: &mut Settings, service: &'static str) -> Self {
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let given = Given {
            both: settings.value("otlp-endpoint", url),
            traces: settings.value("otlp-traces-endpoint", url),
            protocol: settings.value("otlp-protocol", protocol),
            ratio: settings.value("trace-ratio", number(0.0..=1.0)),
            files: GivenFiles::read(settings),
        };
        let slow_after = settings.value("trace-slow", duration(LEAST_SLOW..=MOST_SLOW)).unwrap_or(MOST_SLOW);
        let options = match given.resolve(environment) {
            Ok((traces, metrics, sampling)) if traces.is_some() || metrics.is_some() => Some(Options {
                traces,
                metrics,
                sampling,
                slow_after,
                service: service.into(),
                instance: String::new(),
            }),
            Ok(_) => None,
            Err(problem) => {
                settings.problem(problem);
                None
            }
        };
        otlp_tls::check(settings, options.as_ref());
        Self { options }
    }

    /// Disables metrics, for a process that exports only traces.
    #[must_use]
    pub fn without_metrics(mut self) -> Self {
        self.options.as_mut().into_iter().for_each(|options| options.metrics = None);
        self.options = self.options.filter(|options| options.traces.is_some());
        self
    }
}

/// Values of the flags.
#[derive(Debug, Default)]
struct Given {
    both: Option<String>,
    traces: Option<String>,
    protocol: Option<Protocol>,
    ratio: Option<f64>,
    files: GivenFiles,
}

type Resolved = (Option<Endpoint>, Option<Endpoint>, Sampling);

impl Given {
    /// Resolves each option: the flag, else the variable of `environment`.
    fn resolve(self, environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, String> {
        let sampling = self.sampling(&environment)?;
        if environment("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok((None, None, sampling));
        }
        let by_variable = |name: &str| {
            environment(name)
                .map(|value| url(&value).map_err(|problem| format!("{name}: {problem}")))
                .transpose()
        };
        let both = match &self.both {
            Some(both) => Some(both.clone()),
            None => by_variable("OTEL_EXPORTER_OTLP_ENDPOINT")?,
        };
        let traces = match &self.traces {
            Some(traces) => Some(traces.clone()),
            None => by_variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")?,
        };
        let metrics = by_variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")?;
        let traces = self.endpoint(&environment, "TRACES", traces, both.as_ref(), "/v1/traces")?;
        let metrics = self.endpoint(&environment, "METRICS", metrics, both.as_ref(), "/v1/metrics")?;
        Ok((traces, metrics, sampling))
    }

    /// The endpoint of one signal: its own URL unchanged, else the common URL with the signal's path.
    fn endpoint(
        &self,
        environment: &impl Fn(&str) -> Option<String>,
        signal: &str,
        own: Option<String>,
        both: Option<&String>,
        path: &str,
    ) -> Result<Option<Endpoint>, String> {
        let exporter = format!("OTEL_{signal}_EXPORTER");
        match environment(&exporter).as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => {
                return Err(format!("{exporter}: `{other}` is not supported; use otlp or none"));
            }
        }
        let named =
            [format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"), "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned()];
        let by_variable = named.iter().find_map(|name| Some((name, environment(name)?)));
        let protocol = match (self.protocol, by_variable) {
            (Some(protocol), _) => protocol,
            (None, Some((name, value))) => {
                protocol(&value).map_err(|problem| format!("{name}: {problem}"))?
            }
            (None, None) => Protocol::Grpc,
        };
        let url = match (own, both, protocol) {
            (Some(url), _, _) => Some(url),
            (None, Some(base), Protocol::Grpc) => Some(base.clone()),
            (None, Some(base), Protocol::Http) => Some(format!("{}{path}", base.trim_end_matches('/'))),
            (None, None, _) => None,
        };
        Ok(url.map(|url| {
            let is_https = url.starts_with("https://");
            let tls = if is_https { self.files.resolve(environment, signal) } else { ClientFiles::default() };
            Endpoint { url, tls, protocol }
        }))
    }

    fn sampling(&self, environment: &impl Fn(&str) -> Option<String>) -> Result<Sampling, String> {
        if let Some(ratio) = self.ratio {
            return Ok(Sampling { follows_parent: true, ratio });
        }
        let argument = || match environment("OTEL_TRACES_SAMPLER_ARG") {
            None => Ok(1.0),
            Some(given) => {
                number(0.0..=1.0)(&given).map_err(|problem| format!("OTEL_TRACES_SAMPLER_ARG: {problem}"))
            }
        };
        let sampling = |follows_parent, ratio| Ok(Sampling { follows_parent, ratio });
        match environment("OTEL_TRACES_SAMPLER").as_deref() {
            None => sampling(true, DEFAULT_RATIO),
            Some("always_on") => sampling(false, 1.0),
            Some("always_off") => sampling(false, 0.0),
            Some("traceidratio") => sampling(false, argument()?),
            Some("parentbased_always_on") => sampling(true, 1.0),
            Some("parentbased_always_off") => sampling(true, 0.0),
            Some("parentbased_traceidratio") => sampling(true, argument()?),
            Some(other) => Err(format!(
                "OTEL_TRACES_SAMPLER: `{other}` is not supported; use parentbased_traceidratio, traceidratio, \
                 always_on, always_off, parentbased_always_on or parentbased_always_off"
            )),
        }
    }
}

fn protocol(given: &str) -> Result<Protocol, String> {
    one_of(&[("grpc", Protocol::Grpc), ("http/protobuf", Protocol::Http)])(given)
}

fn url(given: &str) -> Result<String, String> {
    let given = text(given)?;
    let bad = |why: &str| Err(format!("`{given}` {why}; write it like http://localhost:4317"));
    let rest = given.strip_prefix("http://").or_else(|| given.strip_prefix("https://"));
    let Some(rest) = rest else { return bad("is not an http:// or https:// URL") };
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || !given.bytes().all(|byte| byte.is_ascii_graphic()) {
        return bad("names no host");
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(given: Given, variables: &[(&str, &str)]) -> Result<Resolved, String> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        given.resolve(|name| value(name).map(str::to_owned))
    }

    fn endpoint(url: &str, protocol: Protocol) -> Option<Endpoint> {
        Some(Endpoint { url: url.to_owned(), tls: ClientFiles::default(), protocol })
    }

    const PARENT: Sampling = Sampling { follows_parent: true, ratio: DEFAULT_RATIO };

    #[test]
    fn nothing_is_exported_by_default() {
        assert_eq!(resolve(Given::default(), &[]), Ok((None, None, PARENT)));
    }

    #[test]
    fn the_standard_variables_are_read() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let traces = endpoint("http://c:4318/v1/traces", Protocol::Http);
        let metrics = endpoint("http://c:4318/v1/metrics", Protocol::Http);
        assert_eq!(resolve(Given::default(), &[base, http]), Ok((traces, metrics, PARENT)));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/x");
        let off = ("OTEL_METRICS_EXPORTER", "none");
        let traces = endpoint("http://t:1/x", Protocol::Grpc);
        assert_eq!(resolve(Given::default(), &[base, own, off]), Ok((traces, None, PARENT)));
        let disabled = ("OTEL_SDK_DISABLED", "true");
        assert_eq!(resolve(Given::default(), &[base, disabled]), Ok((None, None, PARENT)));
    }

    #[test]
    fn flags_override_variables() {
        let given = Given {
            both: Some("http://flag:1".to_owned()),
            protocol: Some(Protocol::Grpc),
            ratio: Some(0.5),
            ..Given::default()
        };
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://variable:1"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_TRACES_SAMPLER", "always_off"),
        ];
        let flag = endpoint("http://flag:1", Protocol::Grpc);
        let half = Sampling { follows_parent: true, ratio: 0.5 };
        assert_eq!(resolve(given, &variables), Ok((flag.clone(), flag, half)));
        let vllm = Given { traces: Some("http://t:1".to_owned()), ..Given::default() };
        assert_eq!(resolve(vllm, &[]), Ok((endpoint("http://t:1", Protocol::Grpc), None, PARENT)));
    }

    #[test]
    fn only_encrypted_endpoints_have_files() {
        let ca = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c:1");
        let metrics = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:2");
        let (traces, metrics, _) = resolve(Given::default(), &[ca, traces, metrics]).expect("valid");
        assert_eq!(traces.expect("given").tls.ca, Some("/ca.pem".into()));
        assert_eq!(metrics.expect("given").tls, ClientFiles::default());
    }

    #[test]
    fn samplers_have_their_standard_names() {
        let sampling = |name, argument| {
            let variables = [("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)];
            resolve(Given::default(), &variables)
                .map(|(_, _, Sampling { follows_parent, ratio })| (follows_parent, ratio))
        };
        assert_eq!(sampling("always_on", "0.2"), Ok((false, 1.0)));
        assert_eq!(sampling("traceidratio", "0.2"), Ok((false, 0.2)));
        assert_eq!(sampling("parentbased_traceidratio", "0.2"), Ok((true, 0.2)));
        assert_eq!(sampling("parentbased_always_off", "0.2"), Ok((true, 0.0)));
        assert!(sampling("jaeger_remote", "").is_err_and(|problem| problem.contains("`jaeger_remote`")));
        assert!(sampling("traceidratio", "2").is_err_and(|problem| problem.contains("SAMPLER_ARG")));
    }

    #[test]
    fn a_bad_url_is_refused_with_an_example() {
        for bad in ["localhost:4317", "http://", "https://", "http:///v1", "ftp://c", "http://c d"] {
            assert!(url(bad).is_err_and(|problem| problem.contains("http://localhost:4317")), "{bad}");
        }
        for good in ["http://[::1]:4317", "https://c", "https://c:4318/v1/traces"] {
            assert_eq!(url(good), Ok(good.to_owned()));
        }
        let variable = [("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")];
        assert!(resolve(Given::default(), &variable).is_err_and(|problem| problem.starts_with("OTEL_")));
    }
}
