//! Certificates that serving would show. Files that cannot be used are problems of the settings.

use std::time::Duration;

use skein_tls::Certificate;

use super::report::Report;
use crate::certs::period::period;

/// Checks `shown`, with the flags that name them, at `now`, since 1970.
pub fn check(report: &mut Report, shown: &[(&'static str, Certificate)], now: Duration) {
    for (flag, certificate) in shown {
        let (name, file) = (format!("--{flag}"), certificate.path.display());
        if certificate.is_ca {
            report.warn(
                &name,
                format!(
                    "{file} is the certificate of a CA (CA:TRUE), which some clients refuse, all with rustls among them"
                ),
                "issue one for this server; a self-signed one: openssl req -x509 -addext basicConstraints=critical,CA:FALSE",
            );
            continue;
        }
        let left = period(certificate.not_after.saturating_sub(now));
        match certificate.ends_soon(now) {
            Some(_) => report.warn(
                &name,
                format!("{file} expires in {left}"),
                "renew it: a running server reads the new files within seconds, and keeps its streams",
            ),
            None => report.ok(&name, format!("{file} is valid for {left}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::period::DAY;

    #[test]
    fn a_certificate_that_ends_soon_or_is_a_cas_is_named_with_what_to_do() {
        let certificate = |is_ca| Certificate {
            path: "server.pem".into(),
            not_before: DAY * 1000,
            not_after: DAY * 1365,
            is_ca,
        };
        let check = |is_ca: bool, left: u32, expected: &[&str]| {
            let mut report = Report::default();
            report.begin("settings");
            super::check(&mut report, &[("tls-cert", certificate(is_ca))], DAY * (1365 - left));
            let text = report.text();
            for expected in expected {
                assert!(text.contains(expected), "{text}");
            }
        };
        check(false, 200, &["--tls-cert", "server.pem is valid for 200 days"]);
        check(false, 29, &["warn", "server.pem expires in 29 days", "renew it"]);
        check(true, 200, &["warn", "CA:TRUE", "openssl req -x509"]);
    }
}
