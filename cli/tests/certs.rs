//! `skein certs` as seen from a shell, and its certificates as seen by OpenSSL, where that is installed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str], directory: &Path) -> Option<Output> {
    Command::new(program).args(arguments).current_dir(directory).output().ok()
}

/// Runs `skein certs` in `directory`; returns its exit code, its output and its errors.
fn certs(arguments: &str, directory: &Path) -> (i32, String, String) {
    let arguments: Vec<&str> = ["certs"].into_iter().chain(arguments.split(' ')).collect();
    let output = run(env!("CARGO_BIN_EXE_skein"), &arguments, directory).expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn made(arguments: &str, directory: &Path) -> String {
    let (code, out, errors) = certs(arguments, directory);
    assert_eq!(code, 0, "{arguments}: {errors}");
    out
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it exists").permissions().mode() & 0o777
}

#[test]
fn keys_are_for_their_owner_and_nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    assert!(made("ca", at).contains("skein certs node NAME --host HOST --ca certs"));
    let next = made("node worker-1 --host worker-1.example --host 10.0.0.7", at);
    assert!(next.contains("--cluster-cert certs/worker-1.crt --cluster-key certs/worker-1.key"), "{next}");
    made("secret --out cluster.secret", at);
    for (file, expected) in [
        ("certs/ca.key", 0o600),
        ("certs/worker-1.key", 0o600),
        ("cluster.secret", 0o600),
        ("certs/ca.crt", 0o644),
        ("certs/worker-1.crt", 0o644),
    ] {
        // The umask may take more away.
        assert_eq!(mode(&at.join(file)) & !expected, 0, "{file}");
        let before = std::fs::read(at.join(file)).unwrap();
        let again = match file {
            "cluster.secret" => "secret --out cluster.secret",
            _ if file.contains("ca.") => "ca",
            _ => "node worker-1",
        };
        let (code, _, errors) = certs(again, at);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains("exists and is not overwritten"), "{errors}");
        assert_eq!(std::fs::read(at.join(file)).unwrap(), before, "{file}");
    }
    let key = std::fs::read(at.join("certs/worker-1.key")).unwrap();
    let certificate = std::fs::read(at.join("certs/worker-1.crt")).unwrap();
    made("node worker-1 --host 10.0.0.8 --renew", at);
    assert_eq!(std::fs::read(at.join("certs/worker-1.key")).unwrap(), key);
    assert_ne!(std::fs::read(at.join("certs/worker-1.crt")).unwrap(), certificate);
    made("node worker-2 --out two", at);
    assert_eq!(
        std::fs::read(at.join("two/ca.crt")).unwrap(),
        std::fs::read(at.join("certs/ca.crt")).unwrap()
    );
    assert!(!at.join("two/ca.key").exists());
    let secrets: Vec<String> = (0..2).map(|_| made("secret", at)).collect();
    assert_eq!(secrets[0].trim().len(), 64);
    assert_ne!(secrets[0], secrets[1]);
}

#[test]
fn mistakes_name_the_file_and_the_next_step() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (arguments, expected) in [
        ("node a", "certs/ca.crt does not exist: skein certs ca makes it"),
        ("ca --days 0", "--days is 1 to 36500; this is 0"),
    ] {
        let (code, _, errors) = certs(arguments, at);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    made("ca --days 10", at);
    for (arguments, expected) in [
        ("node a --days 30", "expires in 10 days, before the certificate's 30"),
        ("node a --days 1 --host http://a", "without a scheme and a port"),
        ("node a --days 1 --renew", "certs/a.key does not exist: there is nothing to renew"),
        ("node ../a --days 1", "letters, digits"),
    ] {
        let (code, _, errors) = certs(arguments, at);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    std::fs::write(at.join("certs/ca.key"), "not a key").unwrap();
    let (_, _, errors) = certs("node a --days 1", at);
    assert!(errors.contains("certs/ca.key is not a private key in PEM"), "{errors}");
}

#[test]
fn openssl_accepts_the_certificates_for_both_ends_and_every_host() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    if run("openssl", &["version"], at).is_none() {
        eprintln!("skipped: openssl is not in the path");
        return;
    }
    made("ca", at);
    made("node n --host worker-1.example --host 10.0.0.7 --host fd00::7", at);
    made("ca --out other", at);
    let openssl = |arguments: &str| {
        let output = run("openssl", &arguments.split(' ').collect::<Vec<_>>(), at).expect("openssl starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let verify = "verify -x509_strict -CAfile certs/ca.crt";
    for checks in [
        "-purpose sslserver -verify_hostname skein-cluster",
        "-purpose sslserver -verify_hostname worker-1.example",
        "-purpose sslserver -verify_ip 10.0.0.7",
        "-purpose sslserver -verify_ip fd00::7",
        "-purpose sslclient",
    ] {
        assert!(openssl(&format!("{verify} {checks} certs/n.crt")).0, "{checks}");
    }
    assert!(!openssl(&format!("{verify} -verify_hostname other.example certs/n.crt")).0);
    assert!(!openssl("verify -CAfile other/ca.crt certs/n.crt").0, "another authority");
    let (_, text) = openssl("x509 -in certs/n.crt -noout -text");
    for expected in [
        "Issuer: CN = Skein cluster CA",
        "Subject: CN = n",
        "prime256v1",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "CA:FALSE",
        "DNS:skein-cluster",
    ] {
        // OpenSSL before 3.2 writes blanks around the equals sign.
        assert!(text.replace(" = ", "=").contains(&expected.replace(" = ", "=")), "{expected}: {text}");
    }
    let key = openssl("pkey -in certs/n.key -pubout").1;
    assert_eq!(openssl("x509 -in certs/n.crt -noout -pubkey").1, key);
}
