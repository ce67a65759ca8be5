//! Splits a snapshot into parts, so that the fleet is locked for only a fraction of a millisecond each time.
//! Pure.

use skein_proto::runs::RunStored;
use skein_proto::watch::{Snapshot, WatchBody, WatchEvent};

/// Most blocks per part.
const PART: usize = 4096;

/// An event with the first part of its snapshot, and the remaining parts.
pub(super) struct Split {
    pub event: WatchEvent,
    pub epoch: u64,
    pub parts: std::vec::IntoIter<Vec<RunStored>>,
}

/// Splits `event` if it is a large snapshot.
pub(super) fn split(event: WatchEvent) -> Split {
    let epoch = event.epoch;
    let WatchEvent { sequence, body, .. } = event;
    let (body, parts) = match body {
        WatchBody::Snapshot(Snapshot { runs, gaps, stream_keys }) => {
            let mut parts = parts(runs).into_iter();
            let runs = parts.next().unwrap_or_default();
            (WatchBody::Snapshot(Snapshot { runs, gaps, stream_keys }), parts)
        }
        other => (other, Vec::new().into_iter()),
    };
    Split { event: WatchEvent { epoch, sequence, body }, epoch, parts }
}

/// Splits runs into parts of at most [`PART`] blocks; the rest of a divided run extends it.
fn parts(runs: Vec<RunStored>) -> Vec<Vec<RunStored>> {
    let (mut parts, mut part, mut blocks) = (Vec::new(), Vec::new(), 0);
    for mut run in runs {
        while run.hashes.len() > PART - blocks {
            let hashes = run.hashes.split_off(PART - blocks);
            let depth = run.depth + run.hashes.len() as u32;
            let rest = RunStored { handle: run.handle, parent: run.parent, depth, hashes };
            part.push(std::mem::replace(&mut run, rest));
            parts.push(std::mem::take(&mut part));
            blocks = 0;
        }
        blocks += run.hashes.len();
        part.push(run);
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_every_block_once_and_runs_continue_where_they_were_cut() {
        let lengths = [10, PART - 10, 1, 3 * PART, 5];
        let run = |(index, &length): (usize, &usize)| RunStored {
            handle: index as u64 + 1,
            parent: 0,
            depth: 7,
            hashes: (0..length as u64).map(|block| index as u64 * 1_000_000 + block).collect(),
        };
        let runs: Vec<RunStored> = lengths.iter().enumerate().map(run).collect();
        let parts = parts(runs.clone());
        let blocks = |part: &Vec<RunStored>| part.iter().map(|run| run.hashes.len()).sum::<usize>();
        assert!(parts.iter().all(|part| blocks(part) <= PART), "{:?}", parts.iter().map(blocks));
        let mut joined: Vec<RunStored> = Vec::new();
        for run in parts.into_iter().flatten() {
            match joined.last_mut().filter(|last| last.handle == run.handle) {
                Some(last) => {
                    assert_eq!(run.depth, last.depth + last.hashes.len() as u32);
                    last.hashes.extend(run.hashes);
                }
                None => joined.push(run),
            }
        }
        assert_eq!(joined, runs);
    }
}
