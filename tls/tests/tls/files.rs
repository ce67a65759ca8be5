//! Files that cannot be used: each message names the file, what is wrong, and what to do.

use std::fs;
use std::path::Path;

use skein_tls::{
    Certificate, ClientCertificates, ClientFiles, ClientTls, IdentityFiles, ServerFiles, ServerTls,
};

use super::pki::{Dates, Pki};

fn message(cert: &Path, key: &Path, client_ca: Option<&Path>) -> String {
    let files = ServerFiles {
        identity: IdentityFiles { cert: cert.to_owned(), key: key.to_owned() },
        client_ca: client_ca.map(Path::to_owned),
        client_certificates: ClientCertificates::Required,
    };
    ServerTls::read(&files).unwrap_err().to_string()
}

#[test]
fn every_bad_file_is_named_with_what_is_wrong_and_what_to_do() {
    let pki = Pki::new();
    let good = pki.issue("good", &["localhost"], Dates::Always);
    let other = pki.issue("other", &["localhost"], Dates::Always);
    let file = |name: &str, text: &str| {
        let path = pki.folder().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let missing = pki.folder().join("missing.pem");
    let empty = file("empty.pem", "");
    let broken = file("broken.pem", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    let junk = file("junk.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let junk_key = file("junk.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    let encrypted = file(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let huge = file("huge.pem", &"#".repeat((1 << 20) + 1));
    let zero = Path::new("/dev/zero").to_owned();
    let (expired, future) =
        (pki.issue("expired", &["a"], Dates::Past), pki.issue("future", &["a"], Dates::Future));
    for (cert, key, client_ca, named, expected) in [
        (&missing, &good.key, None, "missing.pem", "that this process may read"),
        (&empty, &good.key, None, "empty.pem", "no certificate in it"),
        (&good.key, &good.key, None, "good.key", "no certificate in it"),
        (&broken, &good.key, None, "broken.pem", "not valid PEM"),
        (&junk, &good.key, None, "junk.pem", "issue it again"),
        (&huge, &good.key, None, "huge.pem", "more than 1048576 bytes"),
        (&good.cert, &missing, None, "missing.pem", "that this process may read"),
        // Without an end, as a named pipe is without a beginning.
        (&zero, &good.key, None, "/dev/zero", "it is no regular file"),
        (&good.cert, &good.cert, None, "good.pem", "no private key in it"),
        (&good.cert, &junk_key, None, "junk.key", "the private key cannot be used"),
        (&good.cert, &encrypted, None, "encrypted.key", "without a passphrase"),
        (&good.cert, &other.key, None, "other.key", "does not belong to"),
        (&expired.cert, &expired.key, None, "expired.pem", "days ago; renew it"),
        (&future.cert, &future.key, None, "future.pem", "valid only in"),
        (&good.cert, &good.key, Some(&empty), "empty.pem", "no certificate in it"),
        (&good.cert, &good.key, Some(&junk), "junk.pem", "cannot be used"),
    ] {
        let message = message(cert, key, client_ca.map(|path| path.as_path()));
        assert!(message.contains(named) && message.contains(expected), "{message}");
    }
}

#[test]
fn certificate_and_key_may_be_one_file() {
    let pki = Pki::new();
    let pair = pki.issue("a", &["localhost"], Dates::Always);
    let both = pki.folder().join("both.pem");
    let text = fs::read_to_string(&pair.key).unwrap() + &fs::read_to_string(&pair.cert).unwrap();
    fs::write(&both, text).unwrap();
    let identity = IdentityFiles { cert: both.clone(), key: both };
    let client_certificates = ClientCertificates::Required;
    ServerTls::read(&ServerFiles { identity, client_ca: None, client_certificates }).unwrap();
}

#[test]
fn nothing_of_a_key_is_printed() {
    let pki = Pki::new();
    let pair = pki.issue("a", &["localhost"], Dates::Always);
    let identity = IdentityFiles { cert: pair.cert, key: pair.key };
    let client = ClientTls::read(&ClientFiles { ca: None, identity: Some(identity) }).unwrap();
    assert_eq!(format!("{client:?}"), "ClientTls");
}

#[test]
fn a_certificates_end_is_that_of_the_first_issuer_beside_it_and_a_ca_is_told_apart() {
    let pki = Pki::new();
    let (own, issuer) = (
        pki.issue("own", &["localhost"], Dates::UntilYear(3000)),
        pki.issue("issuer", &["a"], Dates::UntilYear(2999)),
    );
    let alone = Certificate::read(&own.cert).unwrap();
    let days = |certificate: &Certificate| certificate.not_after.as_secs() / (24 * 3600);
    let chain = pki.folder().join("chain.pem");
    let both = [fs::read(&own.cert).unwrap(), fs::read(&issuer.cert).unwrap()].concat();
    fs::write(&chain, both).unwrap();
    let chain = Certificate::read(&chain).unwrap();
    assert_eq!(days(&alone) - days(&chain), 365);
    assert_eq!(chain.not_before, alone.not_before);
    assert!(!alone.is_ca && Certificate::read(&pki.ca()).unwrap().is_ca);
}
