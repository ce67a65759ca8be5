//! Kubernetes sets variables for each Service in every pod's environment. Those of a Service called `skein`
//! have our prefix but are not settings.
//!
//! <https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>

/// Transports of a Service's port.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Whether `SKEIN_<rest>` has the name and value of a Service variable. The names are `SERVICE_HOST`,
/// `SERVICE_PORT`, `SERVICE_PORT_<NAME>`, `PORT`, and `PORT_<number>_TCP` without a suffix or with `_PROTO`,
/// `_PORT` or `_ADDR`; the rest of the Service's name may precede them.
pub(super) fn is_service_link(rest: &str, value: &str) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    (0..words.len()).any(|start| is_link(&words[start..], value))
}

fn is_link(words: &[&str], value: &str) -> bool {
    match words {
        ["SERVICE", "HOST"] => is_address(value),
        ["SERVICE", "PORT", ..] => is_port(value),
        ["PORT"] => is_url(value),
        ["PORT", number, protocol, part @ ..] if is_port(number) && is_protocol(protocol) => match part {
            [] => is_url(value),
            ["PROTO"] => is_protocol(value),
            ["PORT"] => is_port(value),
            ["ADDR"] => is_address(value),
            _ => false,
        },
        _ => false,
    }
}

/// Whether this is a Service's URL, such as `tcp://10.0.0.1:8000` or `tcp://[fd00::1]:8000`.
fn is_url(value: &str) -> bool {
    let Some((protocol, place)) = value.split_once("://") else { return false };
    let Some((host, port)) = place.rsplit_once(':') else { return false };
    is_protocol(protocol) && is_address(host.trim_matches(['[', ']'])) && is_port(port)
}

fn is_protocol(word: &str) -> bool {
    PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(word))
}

fn is_port(word: &str) -> bool {
    word.parse::<u16>().is_ok()
}

fn is_address(word: &str) -> bool {
    word.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_variables_are_known_by_name_and_value() {
        let check = |rest: &str, value: &str, expected: bool| {
            assert_eq!(is_service_link(rest, value), expected, "SKEIN_{rest}={value}");
        };
        check("PORT", "tcp://10.96.1.7:8000", true);
        check("PORT", "tcp://[fd00::7]:8000", true);
        check("PORT", "8000", false);
        check("PORT", "tcp://8000", false);
        check("PORT", "http://10.96.1.7:8000", false);
        check("ROUTER_PORT", "udp://10.96.1.7:53", true);
        check("SERVICE_HOST", "10.96.1.7", true);
        check("SERVICE_HOST", "fd00::7", true);
        check("SERVICE_HOST", "somewhere", false);
        check("SERVICE_PORT", "8000", true);
        check("SERVICE_PORT_HTTP", "8000", true);
        check("BLUE_SERVICE_PORT_GRPC_WEB", "8001", true);
        check("PORT_8000_TCP", "tcp://10.96.1.7:8000", true);
        check("PORT_8000_TCP_PROTO", "tcp", true);
        check("PORT_8000_TCP_PORT", "8000", true);
        check("PORT_8000_TCP_ADDR", "10.96.1.7", true);
        check("PORT_8000_TCP_NAME", "x", false);
        check("PORT_8000", "8000", false);
        check("PROT", "tcp://10.96.1.7:8000", false);
    }
}
