//! Workers of two ranks generate the tokens of one rank, even if any rank is killed during many streams.
//!
//! Two rounds run by default. The long form:
//! `TEST_GROUP_ROUNDS=100 cargo test -p skein --test process groups -- --nocapture`

use std::time::Duration;

use skein_node::clock;
use skein_tests::process::{Cluster, children_of, send_signal};

use crate::chaos::{STREAMS, difference, run_all};
use crate::{SKEIN, block_on};

/// A group that takes longer to end hangs. It takes 0.1 s after a kill, and the heartbeat timeout in addition
/// after a stop, but the machine may be slow.
const HANGS_AFTER: Duration = Duration::from_secs(60);

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

/// Time until all processes of `group` have ended; those that hang, with their threads, if they do not.
pub async fn wait_for_end(group: &[u32]) -> Result<Duration, String> {
    let start = clock::now();
    while group.iter().any(|pid| is_alive(*pid)) {
        if clock::now().since(start) > HANGS_AFTER {
            return Err(group.iter().map(|pid| threads_of(*pid)).collect());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(clock::now().since(start))
}

/// Process, thread, name, state and kernel function of each thread of a process, a line each.
fn threads_of(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let line = |task: std::fs::DirEntry| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat: String = read("stat").chars().take(40).collect();
        format!("process {pid}: {stat} in {}\n", read("wchan"))
    };
    tasks.map(line).collect()
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
                let ended = wait_for_end(&group).await;
                ended.unwrap_or_else(|threads| panic!("{threads}\n{}", cluster.log()))
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
