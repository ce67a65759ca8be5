//! What guards a process' ports and its hops to other processes of the cluster: certificates, and a secret.
//! Files are read here, so that all that is wrong with them is reported with the other problems.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use skein_node::certificates;
use skein_node::config::{Origin, Settings, one_of, text};
use skein_node::supervisor::Secret;
use skein_router::links::transport::Grpc;
use skein_sys::regular_file;
use skein_tls::{
    Certificate, ClientCertificates, ClusterFiles, ClusterTls, IdentityFiles, PortTls, ServerFiles,
    ServerTls, TlsError,
};

/// Largest file of a secret, which is read whole.
const MAX_SECRET_BYTES: u64 = 64 << 10;
/// The cluster's identity: all of them or none.
const IDENTITY: [&str; 3] = ["cluster-ca", "cluster-cert", "cluster-key"];

/// Certificates and the secret of this process.
#[derive(Debug, Clone, Default)]
pub struct Guards {
    /// What ports show to clients.
    pub clients: Option<ServerTls>,
    /// This node's identity towards other nodes.
    pub cluster: Option<ClusterTls>,
    /// The secret that processes of the cluster share.
    pub secret: Option<Secret>,
}

impl Guards {
    /// Reads the settings; problems are recorded in `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let files = listener(settings);
        let clients = files.and_then(|files| {
            let read = ServerTls::read(&files);
            let is_client_ca = |error: &TlsError| files.client_ca.as_deref() == Some(error.file());
            let named = |error: &TlsError| if is_client_ca(error) { "--tls-client-ca" } else { "--tls-cert" };
            read.map_err(|error| settings.problem(format!("{}: {error}", named(&error)))).ok()
        });
        let cluster = identity(settings).and_then(|files| {
            let read = ClusterTls::read(&files);
            read.map_err(|error| settings.problem(format!("--cluster-cert: {error}"))).ok()
        });
        Self { clients, cluster, secret: secret(settings) }
    }

    /// Whether there are files that may change.
    pub fn has_certificates(&self) -> bool {
        self.clients.is_some() || self.cluster.is_some()
    }

    /// Reads the files again if they have changed: whether any had.
    ///
    /// # Errors
    /// If a file cannot be used; the old ones are used meanwhile.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let clients = self.clients.as_ref().map_or(Ok(false), ServerTls::reload);
        let cluster = self.cluster.as_ref().map_or(Ok(false), ClusterTls::reload);
        Ok(clients? | cluster?)
    }

    /// The certificates that this process shows, with the flags that name them.
    pub fn certificates(&self) -> Vec<(&'static str, Certificate)> {
        let clients = self.clients.iter().map(|tls| ("tls-cert", tls.certificate()));
        let nodes = self.cluster.iter().map(|tls| ("cluster-cert", tls.server.certificate()));
        clients.chain(nodes).collect()
    }

    /// Has the certificates' ends exported and spoken of.
    pub fn watch(&self) {
        if let Some(tls) = self.clients.clone() {
            certificates::watch("tls-cert", move || Some(tls.certificate()));
        }
        if let Some(cluster) = self.cluster.clone() {
            certificates::watch("cluster-cert", move || Some(cluster.server.certificate()));
        }
    }

    /// Connects to other processes of the cluster: with this node's certificate, and with `key`, else with
    /// the cluster's secret. `None` if `key` is not printable ASCII.
    pub fn connector(&self, key: Option<&str>) -> Option<Grpc> {
        let way = Grpc::default();
        let way = match &self.cluster {
            Some(cluster) => way.with_tls(cluster.client.clone()),
            None => way,
        };
        match key.or(self.secret.as_ref().map(Secret::expose)) {
            Some(key) => way.with_key(key),
            None => Some(way),
        }
    }

    /// TLS of a port for clients, which nodes may use, too.
    pub fn front_port(&self) -> PortTls {
        let nodes = self.cluster.as_ref().map(|cluster| cluster.server.clone());
        PortTls { clients: self.clients.clone(), nodes, plain_clients: true }
    }

    /// TLS of a port for nodes. With this node's identity no one else is served, by whatever name they ask.
    pub fn node_port(&self) -> PortTls {
        let front = self.front_port();
        let clients = front.clients.filter(|_| front.nodes.is_none());
        PortTls { clients, nodes: front.nodes, plain_clients: false }
    }

    /// Refuses that a worker listens on the network without a lock: a node's certificate of its callers, or
    /// the secret. Certificates of `--tls-client-ca` are none, because they are for users.
    pub fn check_worker(&self, settings: &mut Settings, listen: SocketAddr) {
        if self.cluster.is_some() && is_given(settings, "tls-cert") {
            settings.problem(
                "--tls-cert: a worker's port is only for nodes, which --cluster-cert is shown to; leave out --tls-cert, \
                 --tls-key and --tls-client-ca: clients are served by the router",
            );
        }
        let is_locked = self.secret.is_some() || self.cluster.is_some();
        if is_locked || listen.ip().is_loopback() || settings.switch("insecure-cluster") {
            return;
        }
        settings.problem(format!(
            "--listen {listen}: anyone who reaches this port could use the model and read its streams. Give \
             --cluster-ca, --cluster-cert and --cluster-key (`skein certs` makes them), or --cluster-secret-file, the \
             same on routers; --insecure-cluster allows it where only routers reach the port"
        ));
    }
}

fn listener(settings: &mut Settings) -> Option<ServerFiles> {
    let mut path = |name| settings.value(name, text).map(PathBuf::from);
    let (cert, key, client_ca) = (path("tls-cert"), path("tls-key"), path("tls-client-ca"));
    // The numbers are Python's, which vLLM's --ssl-cert-reqs takes.
    let kinds = [
        ("required", Some(ClientCertificates::Required)),
        ("optional", Some(ClientCertificates::Optional)),
        ("none", None),
        ("2", Some(ClientCertificates::Required)),
        ("1", Some(ClientCertificates::Optional)),
        ("0", None),
    ];
    let client_certificates = settings.value("tls-client-certs", one_of(&kinds)).flatten();
    let Some(cert) = cert else {
        let named = ["tls-key", "tls-client-ca", "tls-client-certs"];
        // To ask clients for no certificate is no wish for TLS.
        let count = if client_certificates.is_some() { 3 } else { 2 };
        for name in &named[..count] {
            if is_given(settings, name) {
                settings
                    .problem(format!("--{name}: applies only with --tls-cert; give it, or leave this out"));
            }
        }
        return None;
    };
    if client_ca.is_none() && is_given(settings, "tls-client-certs") && client_certificates.is_some() {
        settings.problem("--tls-client-certs: needs --tls-client-ca, the CA that has issued them");
    }
    Some(ServerFiles {
        identity: IdentityFiles { key: key.unwrap_or_else(|| cert.clone()), cert },
        client_ca: client_ca.filter(|_| client_certificates.is_some()),
        client_certificates: client_certificates.unwrap_or_default(),
    })
}

/// Files of this node's identity in the cluster.
pub(super) fn identity(settings: &mut Settings) -> Option<ClusterFiles> {
    let missing: Vec<_> = IDENTITY.into_iter().filter(|name| !is_given(settings, name)).collect();
    if !missing.is_empty() && missing.len() < IDENTITY.len() {
        let missing: Vec<_> = missing.iter().map(|name| format!("--{name}")).collect();
        settings.problem(format!(
            "--cluster-ca, --cluster-cert and --cluster-key belong together; {} is missing",
            missing.join(" and ")
        ));
    }
    let [ca, cert, key] = IDENTITY.map(|name| settings.value(name, text).map(PathBuf::from));
    Some(ClusterFiles { ca: ca?, identity: IdentityFiles { cert: cert?, key: key? } })
}

/// The secret of the cluster.
pub(super) fn secret(settings: &mut Settings) -> Option<Secret> {
    let from_file = settings.value("cluster-secret-file", |path| {
        let bytes = regular_file::read(Path::new(path), MAX_SECRET_BYTES);
        let bytes = bytes.map_err(|error| format!("cannot read {path}: {error}"))?;
        // The bytes stay out of the message.
        let text = String::from_utf8(bytes).map_err(|_| format!("{path} is not UTF-8"))?;
        Secret::given(&text).map_err(|why| format!("{path}: {why}"))
    });
    let itself = settings.value("cluster-secret", Secret::given);
    if from_file.is_some() && itself.is_some() {
        settings.problem("--cluster-secret and --cluster-secret-file: leave one of them out");
    }
    from_file.or(itself)
}

fn is_given(settings: &Settings, name: &str) -> bool {
    settings.origin(name) != &Origin::Default
}

#[cfg(test)]
mod tests {
    use clap::Command;
    use skein_tests::pki::{Dates, Pki};

    use super::*;
    use crate::settings::{load, table::WORKER, with_flags};

    fn read(arguments: &[String]) -> (Guards, Vec<String>) {
        let command = with_flags(Command::new("test").no_binary_name(true), WORKER);
        let matches = command.try_get_matches_from(arguments).expect("the flags parse");
        let mut settings = load(WORKER, &matches).expect("nothing to read");
        let guards = Guards::read(&mut settings);
        let listen = settings.value("listen", |given| given.parse().map_err(|_| "no address".to_owned()));
        guards.check_worker(&mut settings, listen.expect("it has a default"));
        let problems = settings.finish().map_or_else(|problems| problems.0, |()| Vec::new());
        (guards, problems)
    }

    #[test]
    fn a_worker_on_the_network_needs_a_lock_and_each_problem_has_its_fix() {
        let pki = Pki::new();
        let (node, web) = (pki.node("node"), pki.issue("web", &["localhost"], Dates::Always));
        let expired = pki.issue("expired", &["localhost"], Dates::Past);
        let file = |name: &str, text: &str| {
            let path = pki.folder().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let (secret, short) = (file("secret", "0123456789abcdef\n"), file("short", "sesame\n"));
        let ca = pki.ca().display().to_string();
        let show = |path: &PathBuf| path.display().to_string();
        let cluster = format!(
            "--cluster-ca {ca} --cluster-cert {} --cluster-key {}",
            show(&node.cert),
            show(&node.key)
        );
        let shown = format!("--tls-cert {} --tls-key {}", show(&web.cert), show(&web.key));
        let check = |line: &str, expected: &[&str]| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let (guards, problems) = read(&arguments);
            assert_eq!(problems.len(), expected.len(), "{line}: {problems:?}");
            for (problem, expected) in problems.iter().zip(expected) {
                assert!(problem.contains(expected), "{line}: {problem}");
                assert!(!problem.contains("sesame"), "{problem}");
            }
            assert!(!format!("{guards:?}").contains("0123456789abcdef"));
        };
        let network = "--listen 0.0.0.0:9000";
        check("", &[]);
        check(network, &["--insecure-cluster allows it"]);
        check(&format!("{network} --insecure-cluster"), &[]);
        check(&format!("{network} --cluster-secret-file {secret}"), &[]);
        check(&format!("{network} --cluster-secret 0123456789abcdef"), &[]);
        check(&format!("{network} {cluster}"), &[]);
        // Encrypted, but open to everyone.
        check(&format!("{network} {shown}"), &["--insecure-cluster allows it"]);
        check(&format!("{network} {shown} --cluster-secret-file {secret}"), &[]);
        // A certificate for users is no node's.
        check(&format!("{network} {shown} --tls-client-ca {ca}"), &["--insecure-cluster allows it"]);
        let twofold = format!("{network} {shown} --tls-client-ca {ca} {cluster}");
        check(&twofold, &["--tls-cert: a worker's port is only for nodes"]);
        let optional = format!("{network} {shown} --tls-client-ca {ca} --tls-client-certs optional");
        check(&optional, &["--insecure-cluster allows it"]);
        check(&format!("--cluster-secret-file {short}"), &["has 6 characters"]);
        check("--cluster-secret-file /nowhere", &["cannot read /nowhere"]);
        check("--cluster-secret-file /dev/zero", &["only regular files are read"]);
        check(&format!("{shown} --tls-client-ca /dev/zero"), &["--tls-client-ca: /dev/zero"]);
        check(
            &format!("--cluster-secret-file {secret} --cluster-secret 0123456789abcdef"),
            &["leave one of them out"],
        );
        check(&format!("--cluster-ca {ca}"), &["--cluster-cert and --cluster-key is missing"]);
        let web_as_node =
            format!("--cluster-ca {ca} --cluster-cert {} --cluster-key {}", show(&web.cert), show(&web.key));
        check(&web_as_node, &["lacks the DNS name `skein-cluster`"]);
        check(&format!("--tls-cert {} --tls-key {}", show(&expired.cert), show(&expired.key)), &["expired"]);
        check(&format!("--tls-key {}", show(&web.key)), &["--tls-key: applies only with --tls-cert"]);
        check(&format!("{shown} --tls-client-certs optional"), &["needs --tls-client-ca"]);
        check("--tls-client-certs none", &[]);
        check("--tls-client-certs some", &["is not one of"]);
    }

    #[test]
    fn a_router_speaks_tls_to_nodes_and_https_to_clients_only_with_a_certificate() {
        let pki = Pki::new();
        let (node, web) = (pki.node("node"), pki.issue("web", &["localhost"], Dates::Always));
        let flags = |names: [&str; 2], pair: &skein_tests::pki::Pair| {
            vec![
                format!("--{}={}", names[0], pair.cert.display()),
                format!("--{}={}", names[1], pair.key.display()),
            ]
        };
        let cluster = [
            vec![format!("--cluster-ca={}", pki.ca().display())],
            flags(["cluster-cert", "cluster-key"], &node),
        ]
        .concat();
        let (guards, _) = read(&cluster);
        assert!(!guards.front_port().is_https() && guards.node_port().is_https());
        assert!(guards.has_certificates() && !guards.reload().expect("nothing has changed"));
        let for_clients = flags(["tls-cert", "tls-key"], &web);
        let (guards, _) = read(&for_clients);
        assert!(guards.front_port().is_https() && guards.node_port().clients.is_some());
        let (guards, _) = read(&[cluster, for_clients].concat());
        assert!(guards.front_port().clients.is_some() && guards.front_port().nodes.is_some());
        // A port for nodes has no second face.
        assert!(guards.node_port().clients.is_none() && guards.node_port().nodes.is_some());
        let (guards, _) = read(&[]);
        assert!(
            !guards.has_certificates()
                && guards.front_port() == PortTls { plain_clients: true, ..PortTls::default() }
        );
    }
}
