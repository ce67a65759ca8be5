//! What a process reads from etcd, and its settings.

use std::path::PathBuf;
use std::time::Duration;

use skein_node::config::{self, Key, Kind, Schema, Settings, Sources};
use skein_node::discovery::etcd::{KeyEntry, Record, check_name, prefix};
use skein_node::discovery::is_host_and_port;

use crate::input::{join, parts};
use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "membership",
            about: "a worker's registration in etcd",
            run: membership,
            seeds: membership_seeds,
            replays: 1000,
        },
        Target {
            name: "settings",
            about: "a configuration file, and the values in it",
            run: settings,
            seeds: settings_seeds,
            replays: 500,
        },
    ]
}

/// The key, then the value.
fn membership(data: &[u8]) {
    let parts = parts(data);
    let (key, value) =
        (String::from_utf8_lossy(parts[0]).into_owned(), parts.get(1).copied().unwrap_or_default());
    if let Ok(record) =
        Record::decode(&prefix("default"), &KeyEntry { key, value: value.to_vec(), revision: 1 })
    {
        assert!(check_name(&record.id).is_ok() && is_host_and_port(&record.address));
        let key = format!("{}{}", prefix("default"), record.id);
        let entry = KeyEntry { key, value: record.encode(), revision: 2 };
        // What we write may be longer than what was read.
        if entry.value.len() <= 4096 {
            assert_eq!(Record::decode(&prefix("default"), &entry).as_ref(), Ok(&record));
        }
    }
}

fn membership_seeds() -> Vec<Vec<u8>> {
    vec![join(&[
        "/skein/default/workers/w-1",
        r#"{"id":"w-1","address":"[::1]:9000","model":"m","epoch":7,"version":"0.1.0","leaving":true}"#,
    ])]
}

const KEY: Key = Key { name: "listen", kind: Kind::One, default: None, secret: false };

/// A file, then values.
fn settings(data: &[u8]) {
    let parts = parts(data);
    let Ok(text) = std::str::from_utf8(parts[0]) else { return };
    let keys =
        [KEY, Key { name: "api-key", secret: true, ..KEY }, Key { name: "workers", kind: Kind::Many, ..KEY }];
    let schema = Schema {
        keys: &keys,
        other_keys: &["device"],
        section: "router",
        sections: &["router", "worker"],
        foreign_variables: &[],
    };
    let file = Some((PathBuf::from("skein.toml"), text.to_owned()));
    let environment = vec![("SKEIN_LISTEN".to_owned(), text.chars().take(40).collect())];
    let mut settings = Settings::layer(&schema, &Sources { flags: Vec::new(), environment, file });
    let _ = settings.value("listen", config::duration(Duration::ZERO..=Duration::from_secs(3600)));
    let _ = (settings.list("workers", |text| Ok(text.to_owned())), settings.shown("api-key"));
    if let Err(problems) = settings.finish() {
        assert!(!problems.0.is_empty());
    }
    for value in parts.iter().filter_map(|part| std::str::from_utf8(part).ok()) {
        if let Ok(time) = config::duration(Duration::from_millis(1)..=Duration::from_secs(60))(value) {
            assert!((1..=60_000).contains(&time.as_millis()), "{value}");
        }
        let _ = config::number(0.0..=1.0)(value).map(|number| assert!((0.0..=1.0).contains(&number)));
        let _ = config::one_of(&[("on", true), ("off", false)])(value);
    }
}

fn settings_seeds() -> Vec<Vec<u8>> {
    vec![
        join(&[
            "listen = \"30s\"\napi-key = \"k\"\n[router]\nworkers = [\"a:1\", \"b:2\"]\n[worker]\ndevice = \"cpu\"\n",
            "500ms",
            "0.5",
            "on",
        ]),
        join(&["[router]\nlisten = 5\n", "1h", "40us", "1_000ms", "1e3s"]),
    ]
}
