//! Authentication: users and certificates.

use std::process::Command;

use etcd_client::{Permission, PermissionType};
use skein_node::discovery::etcd::{EtcdApi, EtcdError, Tls};

use super::*;

fn as_user(settings: &EtcdSettings, password: &str) -> EtcdSettings {
    EtcdSettings { user: Some(("skein".into(), password.into())), ..settings.clone() }
}

#[test]
fn users_with_passwords() {
    with_etcd(async |program| {
        let mut etcd = Etcd::start(program).await;
        let settings = etcd.settings();
        enable_users(&mut admin(&etcd).await).await;
        let (right, wrong) = (as_user(&settings, "right"), as_user(&settings, "wrong"));
        for refused in [&settings, &wrong] {
            let error = client(refused).await.list(&prefix("test")).await.expect_err("not let in");
            assert!(matches!(&error, EtcdError::Refused(_)), "{error}");
            assert!(!error.to_string().contains("wrong"), "no secrets in {error}");
        }
        let error = client(&right).await.list("/elsewhere/").await.expect_err("not its own");
        assert!(
            matches!(&error, EtcdError::Refused(reason) if reason.contains("permission denied")),
            "{error}"
        );
        let (_a, mut router) = (Worker::start(&right, "a").await, Router::start(&right).await);
        router.hears_join("a", TIMEOUT).await;
        // After a restart the server does not accept its earlier tokens.
        etcd.kill();
        etcd.launch();
        etcd.wait_ready_as(&right, &prefix("test")).await;
        let _b = Worker::start(&right, "b").await;
        router.hears_join("b", SECONDS).await;
        router.hears_nothing(PAST_GRACE).await;
    });
}

async fn enable_users(admin: &mut etcd_client::Client) {
    let permission = Permission::new(PermissionType::Readwrite, prefix("test")).with_prefix();
    admin.role_add("worker").await.expect("etcd answers");
    admin.role_grant_permission("worker", permission).await.expect("etcd answers");
    admin.user_add("skein", "right", None).await.expect("etcd answers");
    admin.user_grant_role("skein", "worker").await.expect("etcd answers");
    admin.user_add("root", "root", None).await.expect("etcd answers");
    admin.role_add("root").await.expect("etcd answers");
    admin.user_grant_role("root", "root").await.expect("etcd answers");
    admin.auth_enable().await.expect("etcd answers");
}

/// A directory with `ca.pem`, `other-ca.pem`, and the certificates `server` and `client`, both signed by
/// `ca.pem`.
fn certificates() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = "set -e
        new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        for ca in ca other-ca; do
          openssl req -x509 $new -keyout $ca.key -out $ca.pem -days 2 -subj /CN=$ca
        done
        printf 'basicConstraints=CA:FALSE\\nsubjectAltName=IP:127.0.0.1\\n' > extensions
        for name in server client; do
          openssl req $new -keyout $name.key -out $name.csr -subj /CN=$name
          openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem -days 2 \
            -extfile extensions
        done";
    match Command::new("sh").args(["-c", script]).current_dir(dir.path()).output() {
        Ok(made) if made.status.success() => Some(dir),
        failed => {
            eprintln!("SKIPPED: openssl made no certificates on this machine: {failed:?}");
            None
        }
    }
}

#[test]
fn certificates_on_both_sides() {
    let Some(dir) = certificates() else { return };
    let path = |name: &str| dir.path().join(name).display().to_string();
    let read = |name: &str| std::fs::read(path(name)).expect("it was made");
    with_etcd(async |program| {
        let extra = [
            ["--cert-file", &path("server.pem")],
            ["--key-file", &path("server.key")],
            ["--trusted-ca-file", &path("ca.pem")],
        ];
        let mut extra: Vec<String> = extra.concat().iter().map(|&argument| argument.to_owned()).collect();
        extra.push("--client-cert-auth".into());
        let mut etcd = Etcd::prepare(program, "https", &extra);
        let with = |ca: &str, identity| {
            let tls = Some(Tls { ca: read(ca), identity });
            EtcdSettings { tls, ..etcd.settings() }
        };
        let good = with("ca.pem", Some((read("client.pem"), read("client.key"))));
        let stranger = with("ca.pem", None);
        let distrustful = with("other-ca.pem", good.tls.clone().and_then(|tls| tls.identity));
        let garbage = with("ca.pem", Some((read("client.pem"), read("client.pem"))));
        etcd.launch();
        etcd.wait_ready(&good).await;
        // The server's refusal may be lost when it closes the connection, so only the other error has a known
        // text.
        assert!(client(&stranger).await.list("/").await.is_err(), "no certificate, no answer");
        let error = client(&distrustful).await.list("/").await.expect_err("it trusts another authority");
        assert!(error.to_string().contains("invalid peer certificate"), "{error}");
        assert!(EtcdClient::new(garbage, 0).await.is_err(), "a certificate in place of a key");
        let (_a, mut router) = (Worker::start(&good, "a").await, Router::start(&good).await);
        router.hears_join("a", TIMEOUT).await;
    });
}
