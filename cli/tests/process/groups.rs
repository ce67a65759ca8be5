//! Workers of two ranks generate the tokens of one rank, even if any rank is killed during many streams.
//!
//! Two rounds run by default. The long form:
//! `TEST_GROUP_ROUNDS=100 cargo test -p skein --test process groups -- --nocapture`

use std::time::Duration;

use skein_node::clock;
use skein_tests::process::{Cluster, children_of, send_signal};

use crate::chaos::{STREAMS, difference, run_all};
use crate::{SKEIN, block_on};

/// Time limit for a group to end after one of its ranks is killed, on a machine that runs other tests.
pub const ENDS_WITHIN: Duration = Duration::from_secs(5);

fn rounds() -> usize {
    std::env::var("TEST_GROUP_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2)
}

/// Process ids of every complete worker of two ranks: the leader and the other rank.
pub async fn wait_for_groups(cluster: &Cluster, count: usize) -> Vec<[u32; 2]> {
    for _ in 0..1500 {
        let workers = cluster.worker_pids();
        let groups: Vec<[u32; 2]> = workers
            .iter()
            .filter_map(|&leader| match children_of(leader)[..] {
                [rank] => Some([leader, rank]),
                _ => None,
            })
            .collect();
        if groups.len() == count {
            return groups;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the supervisor did not bring {count} groups back:\n{}", cluster.log());
}

pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn two_ranks_draw_the_tokens_of_one_also_when_ranks_are_killed() {
    block_on(async {
        let client = reqwest::Client::new();
        let alone = Cluster::serve(SKEIN, &["--device", "cpu", "--workers", "1"]).await;
        let expected = run_all(&client, &alone.url).await;
        drop(alone);
        let arguments = ["--device", "cpu", "--workers", "2", "-tp", "2", "--threads", "2"];
        let cluster = Cluster::serve(SKEIN, &arguments).await;
        let start = clock::now();
        check(&run_all(&client, &cluster.url).await, &expected, &cluster);
        let undisturbed = clock::now().since(start);
        let mut slowest = Duration::ZERO;
        for round in 0..rounds() {
            // Kill each rank of each worker in turn.
            let (rank, worker) = (1 - round % 2, (round / 2 + round) % 2);
            let group = wait_for_groups(&cluster, 2).await[worker];
            let (seen, ended) = tokio::join!(run_all(&client, &cluster.url), async {
                tokio::time::sleep(undisturbed * (20 + 30 * (round % 3) as u32) / 100).await;
                send_signal(group[rank], "KILL");
                let killed = clock::now();
                while group.into_iter().any(is_alive) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    assert!(clock::now().since(killed) < ENDS_WITHIN, "{group:?}\n{}", cluster.log());
                }
                clock::now().since(killed)
            });
            slowest = slowest.max(ended);
            println!(
                "round {round}, rank {rank} killed: the group had ended after {ended:?}, at most {slowest:?}"
            );
            check(&seen, &expected, &cluster);
        }
        wait_for_groups(&cluster, 2).await;
    });
}

fn check(
    seen: &[skein_tests::client::History],
    expected: &[skein_tests::client::History],
    cluster: &Cluster,
) {
    let differences: Vec<String> =
        (0..STREAMS).filter_map(|index| difference(index, &seen[index], &expected[index])).collect();
    assert!(differences.is_empty(), "{}\n{}", differences.join("\n"), cluster.log());
}
