//! Downloads from a server with the hub's protocol, with and without faults.

#![allow(clippy::unwrap_used)] // a test may fail

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use skein_hub::{Environment, Hub, HubError, ModelName, Need, Progress, Revision, Watch};
use skein_tests::hub::{FakeHub, Faults, File, Model};
use skein_tests::seeded::SeededRng;
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "org/model";
const INDEX: &str =
    r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SeededRng::new(seed);
    (0..bytes).map(|_| rng.bits() as u8).collect()
}

/// Model of two shards, with files that are not needed.
fn model(seed: u64) -> Model {
    let files = vec![
        File::small("README.md", "unused"),
        File::small("config.json", "{}"),
        File::large("tokenizer.json", random(seed, 300_000)),
        File::small("tokenizer_config.json", "{ }"),
        File::small("special_tokens_map.json", ""),
        File::small("model.safetensors.index.json", INDEX),
        File::large("model-00001-of-00002.safetensors", random(seed + 1, 700_001)),
        File::large("model-00002-of-00002.safetensors", random(seed + 2, 500_000)),
        File::large("pytorch_model.bin", random(seed + 3, 10)),
        File::small("onnx/config.json", "unused"),
        File::small("additional_chat_templates/tool_use.jinja", "{{ tools }}"),
    ];
    Model { commit: COMMIT.to_owned(), files, token: None }
}

const NEEDED: [&str; 8] = [
    "additional_chat_templates/tool_use.jinja",
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

struct Scene {
    server: FakeHub,
    cache: TempDir,
    model: Model,
}

impl Scene {
    async fn new(seed: u64) -> Self {
        let model = model(seed);
        let server = FakeHub::start(seed, [(NAME.to_owned(), model.clone())]).await;
        Self { server, cache: tempfile::tempdir().expect("a temporary directory"), model }
    }

    fn hub(&self) -> Hub {
        hub(&self.server.endpoint, self.cache.path(), None)
    }

    async fn pull(&self) -> Result<PathBuf, HubError> {
        pull(&self.hub(), NAME, "main", Need::All).await
    }

    /// Checks that exactly the needed files exist, each with the hub's content.
    fn check_whole(&self, snapshot: &Path) {
        let entries = std::fs::read_dir(snapshot).expect("it is there");
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, NEEDED.map(|name| name.split('/').next().unwrap_or(name)));
        for file in self.model.files.iter().filter(|file| NEEDED.contains(&file.name.as_str())) {
            let place = snapshot.join(&file.name);
            assert!(std::fs::read(&place).unwrap() == file.content, "{}", file.name);
            let above = if file.name.contains('/') { "../../../blobs" } else { "../../blobs" };
            assert_eq!(std::fs::read_link(&place).unwrap(), Path::new(above).join(&file.etag));
        }
    }

    fn repository(&self) -> PathBuf {
        self.cache.path().join("models--org--model")
    }
}

/// The environment is read from variables; each test has its own server.
fn hub(endpoint: &str, cache: &Path, token: Option<&str>) -> Hub {
    let variables = [("HF_ENDPOINT", Some(endpoint)), ("HF_HUB_CACHE", cache.to_str()), ("HF_TOKEN", token)];
    let variable = |name: &str| variables.iter().find(|(known, _)| *known == name)?.1.map(str::to_owned);
    Hub::new(Environment::read(variable).expect("they are valid"))
}

async fn pull(hub: &Hub, name: &str, revision: &str, need: Need) -> Result<PathBuf, HubError> {
    let (name, revision) = (ModelName::parse(name)?, Revision::parse(revision)?);
    hub.pull(&name, &revision, need, &Watch { progress: &|_| {}, accepts: &|_| Ok(()) }).await
}

#[tokio::test]
async fn only_the_needed_files_come_and_they_come_once() {
    let scene = Scene::new(1).await;
    let seen = Mutex::new(Vec::new());
    let watch = Watch { progress: &|at| seen.lock().unwrap().push(at), accepts: &|_| Ok(()) };
    let (name, main) = (ModelName::parse(NAME).unwrap(), Revision::main());
    let hub = hub(&scene.server.endpoint, scene.cache.path(), Some("hf_abc"));
    let snapshot = hub.find(&name, &main, Need::All, &watch).await.unwrap();
    scene.check_whole(&snapshot);
    assert_eq!(snapshot, scene.repository().join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(scene.repository().join("refs/main")).unwrap(), COMMIT);
    let needed = scene.model.files.iter().filter(|file| NEEDED.contains(&file.name.as_str()));
    let total: u64 = needed.map(|file| file.content.len() as u64).sum();
    assert_eq!(seen.lock().unwrap().last(), Some(&Progress { done: total, total }));
    let sent = scene.server.take_sent();
    assert_eq!(sent.iter().map(|sent| sent.bytes).sum::<u64>(), total);
    assert_eq!(scene.server.tokens_at_store(), 0, "signed addresses get no token");

    // `find` needs no request; `pull` requests the listing.
    scene.server.take_requests();
    assert_eq!(hub.find(&name, &main, Need::All, &watch).await.unwrap(), snapshot);
    assert_eq!(scene.server.take_requests(), [""; 0]);
    assert_eq!(scene.pull().await.unwrap(), snapshot);
    assert_eq!(scene.server.take_requests(), [format!("GET /api/models/{NAME}/revision/main?blobs=true")]);
}

#[tokio::test]
async fn a_router_needs_no_weights_and_a_worker_fetches_only_those() {
    let scene = Scene::new(2).await;
    let snapshot = pull(&scene.hub(), NAME, "main", Need::Text).await.unwrap();
    assert!(snapshot.join("tokenizer.json").is_file() && !snapshot.join(NEEDED[2]).exists());
    scene.server.take_sent();
    scene.check_whole(&scene.pull().await.unwrap());
    assert!(scene.server.take_sent().iter().all(|sent| sent.file.starts_with("model")));
}

#[tokio::test]
async fn a_new_commit_shares_what_has_not_changed() {
    let mut scene = Scene::new(3).await;
    let before = scene.pull().await.unwrap();
    scene.server.take_sent();
    scene.model.commit = COMMIT.replace('0', "f");
    scene.model.files[1] = File::small("config.json", "{\"changed\": 1}");
    scene.server.publish([(NAME.to_owned(), scene.model.clone())]);
    let after = scene.pull().await.unwrap();
    scene.check_whole(&after);
    assert_eq!(
        scene.server.take_sent().iter().map(|sent| sent.file.as_str()).collect::<Vec<_>>(),
        ["config.json"]
    );
    assert_eq!(std::fs::read_to_string(before.join("config.json")).unwrap(), "{}");
    // The old commit is still found by its hash, without the network.
    let (name, old) = (ModelName::parse(NAME).unwrap(), Revision::parse(COMMIT).unwrap());
    assert_eq!(scene.hub().cache().find(&name, &old, Need::All), Some(before));
}

#[tokio::test]
async fn truncated_downloads_continue_where_they_ended() {
    for seed in 0..10 {
        let scene = Scene::new(100 + seed).await;
        scene.server.misbehave(Faults { cut: 600, ..Faults::default() });
        scene.check_whole(&scene.pull().await.unwrap());
        let sent = scene.server.take_sent();
        for name in NEEDED {
            let mut position = 0;
            for part in sent.iter().filter(|part| part.file == name) {
                assert_eq!(part.start, position, "seed {seed}, {name}: nothing twice, nothing left out");
                position += part.bytes;
            }
            let file = scene.model.files.iter().find(|file| file.name == name).unwrap();
            assert_eq!(position, file.content.len() as u64, "seed {seed}, {name}");
        }
    }
}

#[tokio::test]
async fn changed_bytes_are_noticed_and_fetched_again() {
    for seed in 0..10 {
        let scene = Scene::new(200 + seed).await;
        scene.server.misbehave(Faults { cut: 300, corrupted: 150, ..Faults::default() });
        // A file with a wrong checksum three times is an error; the next start downloads it.
        let mut pulled = scene.pull().await;
        while let Err(HubError::Checksum { .. }) = pulled {
            pulled = scene.pull().await;
        }
        scene.check_whole(&pulled.unwrap());
    }
    let scene = Scene::new(300).await;
    scene.server.misbehave(Faults { corrupted: 1000, ..Faults::default() });
    let error = scene.pull().await.unwrap_err().to_string();
    assert!(error.contains("3 times with a wrong checksum"), "{error}");
    let blobs = std::fs::read_dir(scene.repository().join("blobs")).unwrap();
    let names = blobs.map(|blob| blob.unwrap().file_name().into_string().unwrap());
    let whole: Vec<String> = names.filter(|name| !name.ends_with(".incomplete")).collect();
    assert!(
        whole.iter().all(|name| name == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        "only the empty file: {whole:?}"
    );
}

#[tokio::test]
async fn two_processes_share_one_download() {
    let scene = Scene::new(4).await;
    let (first, second) = (scene.hub(), scene.hub());
    let both = tokio::join!(pull(&first, NAME, "main", Need::All), pull(&second, NAME, "main", Need::All));
    scene.check_whole(&both.0.unwrap());
    scene.check_whole(&both.1.unwrap());
    let mut files: Vec<String> = scene.server.take_sent().into_iter().map(|sent| sent.file).collect();
    files.sort();
    assert!(files.is_sorted_by(|a, b| a < b), "each file once: {files:?}");
}

#[tokio::test]
async fn servers_that_are_busy_or_ignore_ranges_or_say_little_are_served_by() {
    for faults in [
        Faults { busy: 3, ..Faults::default() },
        Faults { cut: 400, ignores_ranges: true, ..Faults::default() },
        Faults { has_bare_listing: true, cut: 300, ..Faults::default() },
    ] {
        let scene = Scene::new(5).await;
        scene.server.misbehave(faults.clone());
        scene.check_whole(&scene.pull().await.unwrap_or_else(|error| panic!("{faults:?}: {error}")));
    }
}

#[tokio::test]
async fn old_names_of_models_go_on() {
    let scene = Scene::new(6).await;
    let snapshot = pull(&scene.hub(), "old-org/model", "main", Need::All).await.unwrap();
    scene.check_whole(&snapshot);
}

#[tokio::test]
async fn bytes_of_another_file_are_replaced() {
    let scene = Scene::new(7).await;
    let blobs = scene.repository().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let etags: Vec<&str> = scene.model.files.iter().map(|file| file.etag.as_str()).collect();
    std::fs::write(blobs.join(format!("{}.incomplete", etags[6])), random(9, 1000)).unwrap();
    std::fs::write(blobs.join(format!("{}.incomplete", etags[7])), random(9, 900_000)).unwrap();
    std::fs::write(blobs.join(etags[2]), "cut off by a full disk").unwrap();
    scene.check_whole(&scene.pull().await.unwrap());
}

#[tokio::test]
async fn a_model_without_tokenizer_json_comes_with_what_replaces_it() {
    let mut scene = Scene::new(12).await;
    scene.model.files[2] = File::large("tokenizer.model", random(12, 300_000));
    scene.server.publish([(NAME.to_owned(), scene.model.clone())]);
    let snapshot = scene.pull().await.unwrap();
    assert_eq!(std::fs::read(snapshot.join("tokenizer.model")).unwrap(), random(12, 300_000));
    assert!(snapshot.join("config.json").is_file() && !snapshot.join("tokenizer.json").exists());
}

#[tokio::test]
async fn what_cannot_be_had_says_why_and_what_to_do() {
    let scene = Scene::new(8).await;
    let gated = Model { token: Some("hf_right".to_owned()), ..scene.model.clone() };
    let unsafe_weights = Model {
        files: vec![
            File::small("config.json", "{}"),
            File::small("tokenizer.json", "{}"),
            File::small("a.gguf", "x"),
        ],
        ..scene.model.clone()
    };
    let no_tokenizer = Model { files: vec![File::small("config.json", "{}")], ..scene.model.clone() };
    let named = |name: &str, model: &Model| (format!("org/{name}"), model.clone());
    let mut hostile = scene.model.clone();
    hostile.files[5] =
        File::small("model.safetensors.index.json", r#"{"weight_map": {"a": "../../../x.safetensors"}}"#);
    let mut unnamed = scene.model.clone();
    unnamed.commit = "../../x".to_owned();
    scene.server.publish([
        named("model", &scene.model),
        named("gated", &gated),
        named("gguf", &unsafe_weights),
        named("bare", &no_tokenizer),
        named("hostile", &hostile),
        named("unnamed", &unnamed),
    ]);
    let check = async |name: &str, revision: &str, token: Option<&str>, words: &[&str]| {
        let hub = hub(&scene.server.endpoint, scene.cache.path(), token);
        let error = pull(&hub, name, revision, Need::All).await.expect_err(name).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
    };
    check("org/nothing", "main", None, &["has no model `org/nothing`", "set HF_TOKEN"]).await;
    check("org/model", "v9", None, &["no revision `v9`"]).await;
    check("org/gated", "main", None, &["is gated", "accept its terms", "then set HF_TOKEN"]).await;
    check("org/gated", "main", Some("hf_other"), &["is gated", "with the account of your HF_TOKEN"]).await;
    check("org/gated", "main", Some("expired"), &["rejected the token (401)"]).await;
    check("org/gguf", "main", None, &["no safetensors weights", ".gguf", "model.safetensors"]).await;
    check("org/bare", "main", None, &["no tokenizer (tokenizer.json, tekken.json, tokenizer.model"]).await;
    check("org/hostile", "main", None, &["../../../x.safetensors", "not a safetensors file beside it"]).await;
    check("org/unnamed", "main", None, &["no commit", "is HF_ENDPOINT a hub?"]).await;
    let hub = hub(&scene.server.endpoint, scene.cache.path(), Some("hf_right"));
    assert!(pull(&hub, "org/gated", "main", Need::All).await.is_ok());
    assert!(pull(&hub, "org/gated", COMMIT, Need::All).await.is_ok(), "a pinned commit");
    let refused = Watch { progress: &|_| {}, accepts: &|_| Err("model_type is unknown".to_owned()) };
    let other = Revision::parse(COMMIT).unwrap();
    std::fs::remove_dir_all(scene.repository()).ok();
    scene.server.take_sent();
    let error = hub.pull(&ModelName::parse(NAME).unwrap(), &other, Need::All, &refused).await.unwrap_err();
    assert!(error.to_string().contains("not downloaded: model_type"), "{error}");
    assert!(
        scene.server.take_sent().iter().all(|sent| !sent.file.starts_with("model")),
        "no weights were fetched"
    );
}

#[tokio::test]
async fn without_the_network_cached_models_are_served() {
    let scene = Scene::new(9).await;
    let snapshot = scene.pull().await.unwrap();
    let environment = |offline: &str| {
        let (offline, cache) = (offline.to_owned(), scene.cache.path().to_str().unwrap().to_owned());
        Environment::read(move |name: &str| match name {
            // Nothing listens on this port.
            "HF_ENDPOINT" => Some("http://127.0.0.1:1".to_owned()),
            "HF_HUB_CACHE" => Some(cache.clone()),
            "HF_HUB_OFFLINE" => Some(offline.clone()),
            _ => None,
        })
    };
    let (name, main) = (ModelName::parse(NAME).unwrap(), Revision::main());
    let watch = Watch { progress: &|_| {}, accepts: &|_| Ok(()) };
    for offline in ["0", "1"] {
        let hub = Hub::new(environment(offline).unwrap());
        assert_eq!(hub.find(&name, &main, Need::All, &watch).await.unwrap(), snapshot);
    }
    let other = ModelName::parse("org/other").unwrap();
    let offline = Hub::new(environment("1").unwrap());
    let error = offline.find(&other, &main, Need::All, &watch).await.unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_hub_is_given_up() {
    let cache = tempfile::tempdir().unwrap();
    let error =
        pull(&hub("http://127.0.0.1:1", cache.path(), None), NAME, "main", Need::All).await.unwrap_err();
    assert!(matches!(error, HubError::Unreachable { attempts: 8, .. }), "{error}");
    assert!(error.to_string().contains("Connection refused"), "{error}");
}
