//! Whether a server's name resolves and its port takes connections.

use super::client::WITHIN;
use super::report::Report;

/// Resolves and connects; says which of the two fails, and how.
pub async fn is_reached(report: &mut Report, host: &str, port: u16) -> bool {
    let found = tokio::time::timeout(WITHIN, tokio::net::lookup_host((host, port))).await;
    let addresses: Vec<_> = match found {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => {
            report.fail(
                "name",
                format!("`{host}` does not resolve: {error}"),
                "check the spelling and the name server (/etc/resolv.conf; in Kubernetes name.namespace.svc)",
            );
            return false;
        }
        Err(_) => {
            report.fail(
                "name",
                format!("no name server answered for `{host}` within {} s", WITHIN.as_secs()),
                "check /etc/resolv.conf and the way to the name server",
            );
            return false;
        }
    };
    let Some(address) = addresses.first() else {
        report.fail("name", format!("`{host}` has no address"), "check the record of that name");
        return false;
    };
    match tokio::time::timeout(WITHIN, tokio::net::TcpStream::connect(&addresses[..])).await {
        Ok(Ok(_)) => {
            report.ok("connection", address.to_string());
            true
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            report.fail(
                "connection",
                format!("{address} refuses connections: nothing listens there"),
                "start the server (skein serve), or correct the port; a server on 127.0.0.1 is not reached from other \
                 machines (--host 0.0.0.0 with a key)",
            );
            false
        }
        Ok(Err(error)) => {
            report.fail(
                "connection",
                format!("{address}: {error}"),
                "check routes and firewalls between the machines",
            );
            false
        }
        Err(_) => {
            report.fail(
                "connection",
                format!("{address} does not answer within {} s", WITHIN.as_secs()),
                "a firewall or network policy drops the packets, or the machine is down",
            );
            false
        }
    }
}
