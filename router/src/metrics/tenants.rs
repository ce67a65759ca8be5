//! Metrics of tenants, of the keys file and of the usage log. The label holds only tenants that the file
//! names, so the operator bounds its values.

use skein_node::clock;
use skein_node::metrics::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::outcome::Outcome;
use crate::tenants::usage_log::{Usage, UsageLog};
use crate::tenants::{Key, KeysFile};

/// Outcome of a request that a limit of its key or tenant refused.
const LIMITED: &str = "limited";

/// What each tenant used; where a usage log is, each request has a line there, too.
#[derive(Debug)]
pub struct TenantMetrics {
    log: Option<Log>,
    file: Option<File>,
}

#[derive(Debug)]
struct Log {
    log: UsageLog,
    written: IntCounter,
    lost: IntCounter,
}

#[derive(Debug)]
struct File {
    file: KeysFile,
    requests: IntCounterVec,
    prompt_tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    output_tokens: IntCounterVec,
    is_valid: IntGauge,
    reloads: IntCounterVec,
}

/// Outcomes of a reload.
const RELOADS: [&str; 2] = ["loaded", "refused"];

impl TenantMetrics {
    /// Those of a process with this file and this log; `None` if it has neither.
    pub fn new(r: &Registry, file: Option<KeysFile>, log: Option<UsageLog>) -> Option<Self> {
        if file.is_none() && log.is_none() {
            return None;
        }
        let log = log.map(|log| Log {
            log,
            written: r.counter("skein_usage_log_lines_total", "Lines in the usage log."),
            lost: r.counter(
                "skein_usage_log_lost_total",
                "Requests without a line in the usage log, because its disk took none for too long.",
            ),
        });
        let by_tenant = |name: &str, help: &str| r.counter_vec(name, help, &["tenant"]);
        let file = file.map(|file| File {
            file,
            requests: r.counter_vec(
                "skein_tenant_requests_total",
                "Requests of a tenant by how they ended; limited = refused by a limit of key or tenant.",
                &["tenant", "outcome"],
            ),
            prompt_tokens: by_tenant(
                "skein_tenant_prompt_tokens_total",
                "Prompt tokens, cached ones included.",
            ),
            cached_tokens: by_tenant(
                "skein_tenant_cached_tokens_total",
                "Prompt tokens found in a prefix cache.",
            ),
            output_tokens: by_tenant("skein_tenant_output_tokens_total", "Output tokens."),
            is_valid: r.gauge(
                "skein_keys_file_valid",
                "Whether the keys file, as it is now, can be used: 1 or 0. With 0, the keys before it count.",
            ),
            reloads: r.counters(
                "skein_keys_file_reloads_total",
                "Changes of the keys file, by whether they count.",
                "outcome",
                &RELOADS,
            ),
        });
        Some(Self { log, file })
    }

    /// Counts and logs a request that has ended.
    pub fn ended(&self, usage: Usage) {
        if let (Some(file), Some(tenant)) = (&self.file, &usage.tenant) {
            file.requests.with_label_values(&[&**tenant, usage.outcome]).inc();
            let of =
                |counters: &IntCounterVec, tokens| counters.with_label_values(&[&**tenant]).inc_by(tokens);
            of(&file.prompt_tokens, usage.prompt_tokens);
            of(&file.cached_tokens, usage.cached_tokens);
            of(&file.output_tokens, usage.output_tokens);
        }
        if let Some(log) = &self.log {
            log.log.add(usage);
        }
    }

    /// Counts a request whose tokens are not known.
    pub fn answered(&self, key: &Key, outcome: &str) {
        if let Some(file) = &self.file {
            file.requests.with_label_values(&[&*key.tenant, outcome]).inc();
        }
    }

    /// Counts a request that a limit of its key or tenant refused.
    pub fn limited(&self, key: &Key) {
        self.answered(key, LIMITED);
    }

    /// Whether ended requests are of interest.
    pub fn wants(&self, key: Option<&Key>) -> bool {
        self.log.is_some() || key.is_some()
    }

    /// Updates what is read at each scrape. A tenant's series exist before its first request.
    pub fn update(&self) {
        let to = |counter: &IntCounter, total: u64| counter.inc_by(total.saturating_sub(counter.get()));
        if let Some(Log { log, written, lost }) = &self.log {
            let counts = log.counts();
            to(written, counts.0);
            to(lost, counts.1);
        }
        let Some(file) = &self.file else { return };
        file.is_valid.set(file.file.is_valid().into());
        let (loaded, refused) = file.file.reloads();
        for (outcome, total) in RELOADS.iter().zip([loaded, refused]) {
            to(&file.reloads.with_label_values(&[outcome]), total);
        }
        for tenant in file.file.keys().tenants() {
            for outcome in Outcome::ALL.map(Outcome::label).into_iter().chain([LIMITED]) {
                file.requests.with_label_values(&[&**tenant, outcome]);
            }
            for counters in [&file.prompt_tokens, &file.cached_tokens, &file.output_tokens] {
                counters.with_label_values(&[&**tenant]);
            }
        }
    }

    /// A record without counts, as of now.
    pub fn usage(request: String, key: Option<&Key>, model: std::sync::Arc<str>) -> Usage {
        Usage {
            time: clock::unix_time(),
            request,
            tenant: key.map(|key| key.tenant.clone()),
            key: key.map(|key| key.id.clone()),
            model,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            is_estimated: false,
            outcome: "",
            duration: std::time::Duration::ZERO,
        }
    }
}
