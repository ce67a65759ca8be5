//! TLS to an OTLP collector: flags, and OpenTelemetry's variables where no flag is given.

use std::path::PathBuf;

use skein_node::config::{Origin, Settings, text};
use skein_node::trace::Options;
use skein_tls::{ClientFiles, ClientTls, IdentityFiles};

/// The flags; all need an `https://` endpoint.
const NAMES: [&str; 3] = ["otlp-ca", "otlp-cert", "otlp-key"];

/// Files that flags name.
#[derive(Debug, Default)]
pub struct GivenFiles {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl GivenFiles {
    pub fn read(settings: &mut Settings) -> Self {
        let [ca, cert, key] = NAMES.map(|name| settings.value(name, text).map(PathBuf::from));
        if key.is_some() && cert.is_none() {
            settings.problem("--otlp-key: needs --otlp-cert, the certificate that it belongs to");
        }
        Self { ca, cert, key }
    }

    /// The files for one signal, by flag, else by the signal's variable, else by the common one. A
    /// certificate without a key has it in its own file.
    pub fn resolve(&self, environment: &impl Fn(&str) -> Option<String>, signal: &str) -> ClientFiles {
        let variable = |what: &str| {
            let own = environment(&format!("OTEL_EXPORTER_OTLP_{signal}_{what}"));
            own.or_else(|| environment(&format!("OTEL_EXPORTER_OTLP_{what}"))).map(PathBuf::from)
        };
        let ca = self.ca.clone().or_else(|| variable("CERTIFICATE"));
        // A pair is from one place.
        let (cert, key) = match &self.cert {
            Some(cert) => (Some(cert.clone()), self.key.clone()),
            None => (variable("CLIENT_CERTIFICATE"), variable("CLIENT_KEY")),
        };
        let identity = cert.map(|cert| IdentityFiles { key: key.unwrap_or_else(|| cert.clone()), cert });
        ClientFiles { ca, identity }
    }
}

/// Records files that cannot be used, and flags that apply to no endpoint.
pub fn check(settings: &mut Settings, options: Option<&Options>) {
    let endpoints = options.map(|options| [&options.traces, &options.metrics]).into_iter().flatten();
    let encrypted: Vec<_> = endpoints.flatten().filter(|endpoint| endpoint.is_https()).collect();
    for (at, endpoint) in encrypted.iter().enumerate() {
        let is_repeated = encrypted[..at].iter().any(|before| before.tls == endpoint.tls);
        if let (false, Err(error)) = (is_repeated, ClientTls::read(&endpoint.tls)) {
            settings.problem(format!("TLS to the OTLP collector {}: {error}", endpoint.url));
        }
    }
    if encrypted.is_empty() {
        for name in NAMES {
            if settings.origin(name) != &Origin::Default {
                settings.problem(format!(
                    "--{name}: applies only to an https:// collector; write --otlp-endpoint https://..., or leave this out"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_a_signals_variables_which_override_the_common_ones() {
        let check = |given: &GivenFiles, variables: &[(&str, &str)], expected: [Option<&str>; 3]| {
            let value =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            let files = given.resolve(&|name: &str| value(name).map(str::to_owned), "TRACES");
            let identity = files.identity.as_ref();
            let got = [
                files.ca.as_deref(),
                identity.map(|identity| identity.cert.as_path()),
                identity.map(|identity| identity.key.as_path()),
            ];
            assert_eq!(got, expected.map(|path| path.map(std::path::Path::new)), "{variables:?}");
        };
        let none = GivenFiles::default();
        check(&none, &[], [None, None, None]);
        let ca = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca");
        let cert = ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "cert");
        let key = ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key");
        check(&none, &[ca, cert, key], [Some("ca"), Some("cert"), Some("key")]);
        check(&none, &[cert], [None, Some("cert"), Some("cert")]);
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "traces");
        let metrics = ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "metrics");
        check(&none, &[ca, traces, metrics], [Some("traces"), None, None]);
        let flags = GivenFiles { ca: Some("flag".into()), cert: Some("own".into()), key: None };
        // The variable's key belongs to the variable's certificate.
        check(&flags, &[ca, traces, cert, key], [Some("flag"), Some("own"), Some("own")]);
    }
}
