use super::*;

const KEYS: &[Key] = &[
    Key { name: "port", kind: Kind::One, default: Some("8000"), secret: false },
    Key { name: "max-num-seqs", kind: Kind::One, default: Some("64"), secret: false },
    Key { name: "shutdown-timeout", kind: Kind::One, default: Some("120s"), secret: false },
    Key { name: "enable-prefix-caching", kind: Kind::Switch, default: Some("true"), secret: false },
    Key { name: "api-key", kind: Kind::Many, default: None, secret: true },
];

const SCHEMA: Schema<'static> = Schema {
    keys: KEYS,
    other_keys: &["temperature"],
    section: "serve",
    sections: &["serve", "router", "worker"],
    foreign_variables: &["SKEIN_KERNEL_CACHE"],
};

fn layer(flags: &[(&str, &str)], environment: &[(&str, &str)], file: &str) -> Settings {
    let sources = Sources {
        flags: flags.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()])).collect(),
        environment: environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        file: (!file.is_empty()).then(|| (PathBuf::from("skein.toml"), file.to_owned())),
    };
    Settings::layer(&SCHEMA, &sources)
}

#[test]
fn flag_beats_environment_beats_section_beats_file_beats_default() {
    let file = "port = 1\nmax_num_seqs = 1\n[serve]\nport = 2\n[router]\nport = 3";
    let check =
        |flags: &[(&str, &str)], environment: &[(&str, &str)], file: &str, expected: u64, origin: &str| {
            let mut settings = layer(flags, environment, file);
            assert_eq!(settings.value("port", count(0..=65535)), Some(expected));
            assert_eq!(settings.origin("port").to_string(), origin);
            assert_eq!(settings.finish(), Ok(()));
        };
    check(&[], &[], "", 8000, "default");
    check(&[], &[], "port = 1", 1, "file (skein.toml)");
    check(&[], &[], file, 2, "file (skein.toml)");
    check(&[], &[("SKEIN_PORT", "4")], file, 4, "environment (SKEIN_PORT)");
    check(&[("port", "5")], &[("SKEIN_PORT", "4")], file, 5, "flag");
}

#[test]
fn all_problems_are_reported_at_once_with_their_fixes() {
    let file = "max-num-seq = 4\nshutdown-timeout = 30\n[serv]\nport = 1\n[worker]\nthread = 2";
    let environment = [
        ("SKEIN_PROT", "1"),
        ("SKEIN_KERNEL_CACHE", "x"),
        ("SKEIN_TEMPERATURE", "0.5"),
        ("SKEIN_SERVICE_HOST", "10.0.0.1"),
        ("SKEIN_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("HOME", "/"),
    ];
    let mut settings = layer(&[("max-num-seqs", "0"), ("port", "99999")], &environment, file);
    settings.value("port", count(0..=65535));
    settings.value("max-num-seqs", count(1..=4096));
    settings.value("shutdown-timeout", duration(std::time::Duration::ZERO..=std::time::Duration::MAX));
    let problems = settings.finish().expect_err("six mistakes").to_string();
    let expected = "\
7 problems with the settings:
  skein.toml: max-num-seq: no such setting; did you mean max-num-seqs?
  skein.toml: no such section [serv]; did you mean [serve]?
  skein.toml: [worker] thread: no such setting
  SKEIN_PROT: no such setting; did you mean SKEIN_PORT?
  --port: 99999 is out of range; it must be 0 to 65535
  --max-num-seqs: 0 is out of range; it must be 1 to 4096
  skein.toml: shutdown-timeout: `30` has no unit; did you mean 30s or 30ms?";
    assert_eq!(problems, expected);
}

#[test]
fn broken_files_and_wrong_types_are_reported_with_their_place() {
    let check = |file: &str, expected: &str| {
        let problems = layer(&[], &[], file).finish().expect_err(file).to_string();
        assert!(problems.contains(expected), "{problems}");
    };
    check("port = 1\nport ~ 2\n", "skein.toml, line 2: ");
    check("port = [1, 2]", "skein.toml: port: takes one value, got a list of 2");
    check("port = 1979-05-27", "skein.toml: port: takes text, a number, true or false, got datetime");
}

#[test]
fn lists_come_from_arrays_commas_and_repeated_flags_and_secrets_stay_hidden() {
    let mut settings = layer(&[], &[("SKEIN_API_KEY", "a, b")], "");
    assert_eq!(settings.list("api-key", text), ["a", "b"]);
    let mut settings = layer(&[], &[], "api-key = ['c', 'd']\nenable-prefix-caching = false");
    assert_eq!(settings.list("api-key", text), ["c", "d"]);
    assert!(!settings.switch("enable-prefix-caching"));
    let shown = settings.effective();
    assert!(shown.contains(&("api-key", "***".to_owned(), "file (skein.toml)".to_owned())), "{shown:?}");
}

#[test]
fn values_carry_their_units() {
    let counts = count(0..=u64::MAX);
    let sizes = bytes(0..=u64::MAX);
    let times = duration(std::time::Duration::ZERO..=std::time::Duration::MAX);
    let check =
        |got: Result<u64, String>, expected: Option<u64>| assert_eq!(got.clone().ok(), expected, "{got:?}");
    check(counts("512"), Some(512));
    check(counts("1k"), Some(1000));
    check(counts("1K"), Some(1024));
    check(counts("1.5k"), Some(1500));
    check(counts("16_384"), Some(16384));
    check(counts("1.5"), None);
    check(counts("-1"), None);
    check(counts("ten"), None);
    check(sizes("2GiB"), Some(2 << 30));
    check(sizes("3GB"), Some(3_000_000_000));
    check(sizes("4096"), Some(4096));
    check(sizes("2 parsecs"), None);
    check(sizes("99999999999TiB"), None);
    let millis = |text| times(text).map(|time| time.as_millis() as u64);
    check(millis("500ms"), Some(500));
    check(millis("1.5s"), Some(1500));
    check(millis("2m"), Some(120_000));
    check(millis("0"), Some(0));
    check(times("40us").map(|time| time.as_nanos() as u64), Some(40_000));
    assert!(times("2.5us").is_err());
    check(millis("30"), None);
    assert!(number(0.0..=2.0)("NaN").is_err());
    let word = one_of(&[("human", 1), ("json", 2)])("jsn");
    assert_eq!(word, Err("`jsn` is not one of human, json; did you mean json?".to_owned()));
}

#[test]
fn durations_out_of_range_are_shown_with_their_unit() {
    use std::time::Duration;
    let day = duration(Duration::from_secs(2)..=Duration::from_secs(86_400));
    let check = |given: &str, expected: &str| assert_eq!(day(given), Err(expected.to_owned()));
    check("0", "0s is out of range; it must be 2s to 24h");
    check("0s", "0s is out of range; it must be 2s to 24h");
    check("1500ms", "1.5s is out of range; it must be 2s to 24h");
    check("1441m", "1441m is out of range; it must be 2s to 24h");
    check("86401s", "86401s is out of range; it must be 2s to 24h");
}

#[test]
fn negative_numbers_are_reported_as_such() {
    use std::time::Duration;
    let negative = |given: &str| Err(format!("`{given}` must not be negative"));
    let times = duration(Duration::ZERO..=Duration::MAX);
    assert_eq!(times("-1").map(drop), negative("-1"));
    assert_eq!(times("-1.5s").map(drop), negative("-1.5s"));
    assert_eq!(count(0..=9)("-1").map(drop), negative("-1"));
    assert_eq!(bytes(0..=9)("-1GiB").map(drop), negative("-1GiB"));
    assert!(times("-s").is_err_and(|reason| reason.contains("is not a duration")));
}

#[test]
fn variables_of_a_kubernetes_service_called_skein_are_ignored_with_one_line() {
    let link = [
        ("SKEIN_PORT", "tcp://10.96.1.7:8000"),
        ("SKEIN_PORT_8000_TCP", "tcp://10.96.1.7:8000"),
        ("SKEIN_PORT_8000_TCP_ADDR", "10.96.1.7"),
        ("SKEIN_PORT_8000_TCP_PORT", "8000"),
        ("SKEIN_PORT_8000_TCP_PROTO", "tcp"),
        ("SKEIN_SERVICE_HOST", "10.96.1.7"),
        ("SKEIN_SERVICE_PORT", "8000"),
        ("SKEIN_SERVICE_PORT_HTTP", "8000"),
    ];
    let mut settings = layer(&[], &link, "port = 7000");
    assert_eq!(settings.value("port", count(0..=65535)), Some(7000), "the file's, not the Service's");
    assert_eq!(settings.finish(), Ok(()));
    let [note] = settings.notes() else { panic!("one line: {:?}", settings.notes()) };
    assert!(link.iter().all(|(name, _)| note.contains(name)), "{note}");
    let settings = layer(&[], &[("SKEIN_SERVICE_HOST", "somewhere")], "");
    assert!(settings.finish().is_err(), "that is no Service's");
}
