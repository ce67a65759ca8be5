//! [`EtcdApi`] over real servers. It talks to one server at a time; after a failed call, the next call uses
//! the next server. Spreading calls over all servers would keep hitting the one that is down.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, EventType, GetOptions, Identity, KeyValue,
    PutOptions, TlsOptions, Txn, TxnOp, WatchOptions, WatchResponse, WatchStream,
};

use super::api::{
    CALL_TIMEOUT, EtcdApi, EtcdError, EtcdWatch, KeyEntry, Lease, LeaseId, Snapshot, WatchEvent,
};

/// Timeout of a TCP and TLS connection; below [`CALL_TIMEOUT`], so that its error is the one reported.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of pings on a connection with a watch. By default, servers treat more than one ping in 5 s as
/// abuse.
const PING_EVERY: Duration = Duration::from_secs(7);
/// A server that does not answer a ping within this time is considered down.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Most keys read at once; further ones are ignored. Far more than a cluster's members.
const MAX_LISTED: i64 = 4096;

/// Servers and credentials of etcd.
#[derive(Clone, Default)]
pub struct EtcdSettings {
    /// `host:port` of each server, at least one.
    pub endpoints: Vec<String>,
    /// Name and password, if etcd has users.
    pub user: Option<(String, String)>,
    /// TLS instead of plain TCP.
    pub tls: Option<Tls>,
}

/// TLS settings, all PEM.
#[derive(Clone)]
pub struct Tls {
    /// Authority that signed the servers' certificates.
    pub ca: Vec<u8>,
    /// Client certificate and its key, if servers require one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Leaves out the password and the key.
impl std::fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdSettings")
            .field("endpoints", &self.endpoints)
            .field("user", &user)
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

/// A client of an etcd cluster.
#[derive(Debug)]
pub struct EtcdClient {
    settings: EtcdSettings,
    session: Arc<Session>,
}

/// The current connection. Shared with its watches, which are the first to notice when it fails.
#[derive(Default)]
struct Session(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    client: Option<Client>,
    /// Number of connections abandoned so far; also selects the endpoint.
    generation: usize,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        // The slot is consistent after every statement, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Abandons connection `generation`, if it is still the current one.
    fn lost(&self, generation: usize) {
        let mut slot = self.slot();
        if slot.generation == generation {
            *slot = Slot { client: None, generation: generation.wrapping_add(1) };
        }
    }
}

impl EtcdClient {
    /// Connects at the first call, so that an outage of etcd does not keep a process from starting. `seed`
    /// selects the first endpoint, so that processes start with different ones.
    ///
    /// # Errors
    /// If an endpoint is not an address, or a certificate cannot be parsed.
    pub async fn new(settings: EtcdSettings, seed: u64) -> Result<Self, EtcdError> {
        let count = settings.endpoints.len().max(1);
        let slot = Slot { client: None, generation: seed as usize % count };
        // Without a user this does not connect but checks the settings.
        let options = options(&EtcdSettings { user: None, ..settings.clone() });
        let urls: Vec<String> = (0..count).map(|index| settings.url(index)).collect();
        Client::connect(urls, Some(options)).await.map_err(|error| EtcdError::Refused(describe(&error)))?;
        Ok(Self { settings, session: Arc::new(Session(Mutex::new(slot))) })
    }

    /// Runs one call within [`CALL_TIMEOUT`]. If the connection or server is at fault, the connection is
    /// abandoned.
    async fn call<T>(
        &self,
        call: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>,
    ) -> Result<(T, usize), EtcdError> {
        let generation = self.session.slot().generation;
        let endpoint = self.settings.url(generation);
        let work = async { call(self.connected(generation, &endpoint).await?).await };
        let outcome = match tokio::time::timeout(CALL_TIMEOUT, work).await {
            Ok(outcome) => outcome.map_err(|error| translate(&error, &endpoint)),
            Err(_) => {
                Err(EtcdError::Unavailable(format!("{endpoint} gave no answer within {CALL_TIMEOUT:?}")))
            }
        };
        if let Err(EtcdError::Unavailable(_) | EtcdError::Refused(_)) = outcome {
            self.session.lost(generation);
        }
        outcome.map(|answer| (answer, generation))
    }

    async fn connected(&self, generation: usize, endpoint: &str) -> Result<Client, etcd_client::Error> {
        if let Some(client) = self.session.slot().client.clone() {
            return Ok(client);
        }
        let client = Client::connect([endpoint], Some(options(&self.settings))).await?;
        let mut slot = self.session.slot();
        if slot.generation == generation {
            slot.client = Some(client.clone());
        }
        Ok(client)
    }
}

impl EtcdSettings {
    fn url(&self, index: usize) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let count = self.endpoints.len().max(1);
        let endpoint = self.endpoints.get(index % count).map_or("", String::as_str);
        format!("{scheme}://{endpoint}")
    }
}

fn options(settings: &EtcdSettings) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_keep_alive(PING_EVERY, PING_TIMEOUT)
        // Servers also treat pings on a connection without a stream as abuse.
        .with_keep_alive_while_idle(false)
        // Otherwise a watch on a server that has lost its leader would stay silent instead of failing.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((name, password)) = &settings.user {
        options = options.with_user(name, password);
    }
    if let Some(tls) = &settings.tls {
        let mut config = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        options = options.with_tls(config);
    }
    options
}

impl EtcdApi for EtcdClient {
    type Watch = ClientWatch;

    async fn list(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        let options = GetOptions::new().with_prefix().with_limit(MAX_LISTED);
        let call = async |mut client: Client| client.get(prefix, Some(options)).await;
        let (answer, _) = self.call(call).await?;
        let (cluster, revision) =
            answer.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        Ok(Snapshot { cluster, revision, entries: answer.kvs().iter().map(entry).collect() })
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<ClientWatch, EtcdError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(revision).with_progress_notify();
        let call = async |mut client: Client| {
            let mut stream = client.watch(prefix, Some(options)).await?;
            let created = stream.message().await?;
            Ok((stream, created))
        };
        let ((stream, created), generation) = self.call(call).await?;
        let watch = ClientWatch { stream, session: self.session.clone(), generation };
        let store = created.as_ref().and_then(WatchResponse::header).map_or(0, |header| header.revision());
        watch.events(created)?;
        if store + 1 < revision {
            self.session.lost(generation);
            return Err(EtcdError::Unavailable(format!("it is at revision {store}, before {revision}")));
        }
        Ok(watch)
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let (answer, _) =
            self.call(async |mut client: Client| client.lease_grant(seconds, None).await).await?;
        Ok(Lease { id: LeaseId(answer.id()), ttl: Duration::from_secs(answer.ttl().max(1).unsigned_abs()) })
    }

    /// Opens a stream for each renewal, because a long-lived stream can break unnoticed.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.call(async |mut client: Client| client.lease_keep_alive(lease.0).await).await.map(drop)
    }

    async fn put(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<(), EtcdError> {
        let options = PutOptions::new().with_lease(lease.0);
        self.call(async |mut client: Client| client.put(key, value, Some(options)).await).await.map(drop)
    }

    async fn put_if_held(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<bool, EtcdError> {
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease.0)));
        let held = Compare::lease(key, CompareOp::Equal, lease.0);
        let transaction = Txn::new().when([held]).and_then([put]);
        let (answer, _) = self.call(async |mut client: Client| client.txn(transaction).await).await?;
        Ok(answer.succeeded())
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.call(async |mut client: Client| client.lease_revoke(lease.0).await).await.map(drop)
    }
}

/// A watch at a real server.
#[derive(Debug)]
pub struct ClientWatch {
    stream: WatchStream,
    session: Arc<Session>,
    generation: usize,
}

impl EtcdWatch for ClientWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, EtcdError> {
        match self.stream.message().await {
            Ok(answer) => self.events(answer),
            Err(error) => {
                self.session.lost(self.generation);
                Err(translate(&error, "the watch"))
            }
        }
    }
}

impl ClientWatch {
    fn events(&self, answer: Option<WatchResponse>) -> Result<Vec<WatchEvent>, EtcdError> {
        let ended = |reason: String| {
            self.session.lost(self.generation);
            Err(EtcdError::Unavailable(reason))
        };
        match answer {
            None => ended("the server ended the watch".to_owned()),
            Some(answer) if answer.compact_revision() > 0 => {
                Err(EtcdError::Compacted { oldest: answer.compact_revision() })
            }
            Some(answer) if answer.canceled() => {
                ended(format!("the watch was ended: {}", answer.cancel_reason()))
            }
            Some(answer) => Ok(answer.events().iter().filter_map(event).collect()),
        }
    }
}

fn event(event: &etcd_client::Event) -> Option<WatchEvent> {
    let kv = event.kv()?;
    Some(match event.event_type() {
        EventType::Put => WatchEvent::Put(entry(kv)),
        EventType::Delete => WatchEvent::Delete { key: key(kv), revision: kv.mod_revision() },
    })
}

fn entry(kv: &KeyValue) -> KeyEntry {
    KeyEntry { key: key(kv), value: kv.value().to_vec(), revision: kv.mod_revision() }
}

/// A key that is not UTF-8 belongs to no worker; it is passed on so that a warning is logged.
fn key(kv: &KeyValue) -> String {
    String::from_utf8_lossy(kv.key()).into_owned()
}

/// Translates a failure, with gRPC codes as in etcd's `rpctypes`.
fn translate(error: &etcd_client::Error, endpoint: &str) -> EtcdError {
    use etcd_client::Error;
    let text = format!("{endpoint}: {}", describe(error));
    match error {
        Error::GRpcStatus(status) => match i32::from(status.code()) {
            grpc::NOT_FOUND => EtcdError::LeaseGone,
            grpc::OUT_OF_RANGE => EtcdError::Compacted { oldest: 0 },
            grpc::INVALID_ARGUMENT
            | grpc::PERMISSION_DENIED
            | grpc::FAILED_PRECONDITION
            | grpc::UNIMPLEMENTED
            | grpc::UNAUTHENTICATED => EtcdError::Refused(text),
            _ => EtcdError::Unavailable(text),
        },
        Error::LeaseKeepAliveError(reason) if reason == "lease not found" => EtcdError::LeaseGone,
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            EtcdError::Refused(text)
        }
        _ => EtcdError::Unavailable(text),
    }
}

/// The gRPC status codes that are distinguished.
mod grpc {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// An error with its causes; the outermost texts say only "transport error".
fn describe(error: &etcd_client::Error) -> String {
    use etcd_client::Error;
    use std::error::Error as _;
    let (mut text, mut cause) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        other => (other.to_string(), None),
    };
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}
