//! The workers that etcd or a DNS name lists: whether the source answers, whether each worker does, and
//! whether they are of one kind.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use skein_node::discovery::etcd::{EtcdApi, EtcdClient, EtcdError, EtcdSettings, Record, prefix};
use skein_node::discovery::{Member, MembershipSource};
use skein_proto::worker::v1::InfoResponse;
use skein_router::links::transport::{Connector, Grpc};

use super::report::Report;
use crate::settings::{DiscoverySettings, Guards};

/// Longest wait for a worker, or for a name server.
const WITHIN: Duration = Duration::from_secs(5);
/// Most workers that are called.
const MAX_CALLED: usize = 256;

/// Checks the source of `settings` and the workers that it lists.
pub async fn check(report: &mut Report, settings: DiscoverySettings, guards: &Guards) {
    let members = match settings.source {
        None => return,
        Some(MembershipSource::Dns(name)) => in_dns(report, &name.host, name.port).await,
        Some(MembershipSource::Etcd { cluster, .. }) => in_etcd(report, settings.etcd, &cluster).await,
    };
    if let Some(members) = members {
        workers(report, members, &guards.connector(None).unwrap_or_default()).await;
    }
}

async fn in_dns(report: &mut Report, host: &str, port: u16) -> Option<Vec<Member>> {
    let fix = "check the spelling; a headless service in Kubernetes lists a pod once it is ready";
    match tokio::time::timeout(WITHIN, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(addresses)) => {
            let members: Vec<Member> = addresses
                .map(|address| Member { id: address.to_string(), address: address.to_string() })
                .collect();
            report.ok("DNS", format!("`{host}` has {} address(es)", members.len()));
            Some(members)
        }
        Ok(Err(error)) => {
            report.fail("DNS", format!("`{host}` does not resolve: {error}"), fix);
            None
        }
        Err(_) => {
            report.fail("DNS", format!("no answer for `{host}` within {} s", WITHIN.as_secs()), fix);
            None
        }
    }
}

async fn in_etcd(report: &mut Report, etcd: EtcdSettings, cluster: &str) -> Option<Vec<Member>> {
    let endpoints = etcd.endpoints.clone();
    let mut listed = None;
    // Each server by itself: a client that finds one of three hides that two are down.
    for endpoint in &endpoints {
        let one = EtcdSettings { endpoints: vec![endpoint.clone()], ..etcd.clone() };
        let found = async { EtcdClient::new(one, 0).await?.list(&prefix(cluster)).await }.await;
        match found {
            Ok(snapshot) => {
                report.ok("etcd", format!("{endpoint} answers, at revision {}", snapshot.revision));
                listed = Some(snapshot);
            }
            Err(error) => report.fail("etcd", format!("{endpoint}: {error}"), fix_of(&error)),
        }
    }
    let prefix = prefix(cluster);
    let mut members = Vec::new();
    let entries = listed?.entries;
    if entries.is_empty() {
        report.fail(
            "membership",
            format!("etcd has no worker under {prefix}"),
            "start workers with the same --discovery, or correct the name of the cluster at its end \
             (etcd://host:2379/NAME)",
        );
    }
    for entry in entries {
        match Record::decode(&prefix, &entry) {
            Ok(record) => {
                if record.leaving {
                    report.warn("membership", format!("{} is about to leave", record.id), "nothing, it drains");
                }
                members.push(record.member());
            }
            Err(why) => report.fail(
                "membership",
                format!("{} is no worker's entry: {why}", entry.key),
                "another program writes there, or a newer Skein: delete the key, or take another name for the cluster",
            ),
        }
    }
    Some(members)
}

fn fix_of(error: &EtcdError) -> &'static str {
    match error {
        EtcdError::Refused(_) => {
            "check --etcd-user, --etcd-password-file and the certificates (--etcd-ca, --etcd-cert)"
        }
        _ => {
            "start etcd, correct the address (port 2379), or open the way to it; with TLS the source is etcds://. Routers \
             and workers serve on without etcd, but new workers are not found"
        }
    }
}

/// Calls every worker, all at once.
async fn workers(report: &mut Report, members: Vec<Member>, way: &Grpc) {
    if members.len() > MAX_CALLED {
        report.warn(
            "workers",
            format!("only the first {MAX_CALLED} of {} are called", members.len()),
            "nothing",
        );
    }
    let calls =
        members.iter().take(MAX_CALLED).map(async |member| (member, info(way, &member.address).await));
    let mut answered = Vec::new();
    for (member, answer) in join_all(calls).await {
        match answer {
            Ok(info) => answered.push((member.id.clone(), info)),
            Err(why) => report.fail(
                "workers",
                format!("{} is listed at {} and does not answer: {why}", member.id, member.address),
                "if it has ended, its entry goes with its lease (10 s by default); if it runs, its --advertise must be an \
                 address that reaches it from here; workers of a guarded cluster answer only with its --cluster-ca, \
                 --cluster-cert and --cluster-key, or its --cluster-secret-file",
            ),
        }
    }
    if !answered.is_empty() {
        report.ok("workers", format!("{} of {} answer", answered.len(), members.len()));
    }
    of_one_kind(report, &answered);
}

async fn info(way: &Grpc, address: &str) -> Result<InfoResponse, String> {
    let call = async {
        let transport = way.connect(address).await?;
        transport.info().await.map_err(|status| format!("{:?}: {}", status.code(), status.message()))
    };
    let late = || Err(format!("no answer within {} s", WITHIN.as_secs()));
    tokio::time::timeout(WITHIN, call).await.unwrap_or_else(|_| late())
}

/// Compares what must be equal in all workers of a cluster.
fn of_one_kind(report: &mut Report, workers: &[(String, InfoResponse)]) {
    type Read = fn(&InfoResponse) -> String;
    let compared: [(&str, Read, &str); 4] = [
        (
            "served model",
            |info| info.model.clone(),
            "a cluster serves one model: give them the same --served-model-name",
        ),
        ("release", |info| info.version.clone(), "finish the upgrade, so that all run one release"),
        (
            "model version",
            |info| format!("{:016x}", info.model_fingerprint),
            "during a change of the model this is normal; else give all workers the same files and flags",
        ),
        (
            "tokenizer",
            |info| format!("{:016x}", info.tokenizer_fingerprint),
            "routers use only workers with their own tokenizer.json: copy the model's files again",
        ),
    ];
    for (what, read, fix) in compared {
        let mut by_value: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (id, info) in workers {
            by_value.entry(read(info)).or_default().push(id);
        }
        if by_value.len() > 1 {
            let each = by_value.iter().map(|(value, ids)| format!("{value} at {}", ids.join(", ")));
            report.warn(what, format!("workers differ: {}", each.collect::<Vec<_>>().join("; ")), fix);
        } else if let Some(value) = by_value.keys().next() {
            report.ok(what, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    #[test]
    fn workers_that_differ_are_named_by_what_differs() {
        let worker = |id: &str, version: &str, model_fingerprint| {
            let info = InfoResponse {
                model: "m".into(),
                version: version.into(),
                model_fingerprint,
                ..InfoResponse::default()
            };
            (id.to_owned(), info)
        };
        let mut report = Report::default();
        of_one_kind(
            &mut report,
            &[worker("a", "0.1.0", 1), worker("b", "0.2.0", 1), worker("c", "0.2.0", 1)],
        );
        let text = report.text();
        assert_eq!((report.count(Status::Warn), report.count(Status::Ok)), (1, 3), "{text}");
        assert!(text.contains("0.1.0 at a; 0.2.0 at b, c"), "{text}");
        let mut none = Report::default();
        of_one_kind(&mut none, &[]);
        assert_eq!(none.count(Status::Ok), 0);
    }
}
