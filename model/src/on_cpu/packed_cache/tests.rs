use std::sync::{Arc, Barrier};
use std::time::SystemTime;

use super::*;

/// Slightly more than two slices, so that several checksums matter.
const BYTES: usize = (8 << 20) + 100;
/// Two slices more, because fewer bytes may be used than reserved.
const ROOM: usize = BYTES + (9 << 20);
const NAME: &str = "0123-int8.packed";

fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

fn is_whole(kept: &Kept) -> bool {
    kept.range.len() == BYTES
        && kept.bytes(0..BYTES).iter().enumerate().all(|(at, byte)| *byte == pattern(at))
}

/// Finds or fills in the bytes; returns whether they were found.
fn find_or_make(cache: &PackedCache, name: &str) -> (Kept, bool) {
    let cpu = &mut Cpu::new(2);
    match cache.find(cpu, name, ROOM).unwrap() {
        Found::Whole(kept) => (kept, true),
        Found::Blank(mut blank) => {
            assert_eq!(blank.bytes().len(), ROOM);
            blank.bytes()[..BYTES].iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
            (blank.keep(cpu, BYTES).unwrap(), false)
        }
    }
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn packed_weights_are_found_again_and_damage_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let cache = PackedCache::at(directory.path().join("below"));
    let path = directory.path().join("below").join(NAME);
    let (first, found) = find_or_make(&cache, NAME);
    assert!(!found && is_whole(&first));
    let (second, found) = find_or_make(&cache, NAME);
    assert!(found && is_whole(&second));
    drop((first, second));
    let whole = std::fs::read(&path).unwrap();
    let header = file::data_at(ROOM);
    for at in [0, 9, 17, 25, 33, 41, 49, 57, header, header + (5 << 20), whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        std::fs::write(&path, &damaged).unwrap();
        let (kept, found) = find_or_make(&cache, NAME);
        assert!(!found && is_whole(&kept), "byte {at} damaged");
        assert_eq!(std::fs::read(&path).unwrap(), whole, "rebuilt");
    }
    for foreign in [&b""[..], b"not ours", &whole[..whole.len() - 1], &vec![0; whole.len()]] {
        std::fs::write(&path, foreign).unwrap();
        assert!(!find_or_make(&cache, NAME).1, "{} bytes", foreign.len());
    }
    // The same content under another name belongs to another model.
    std::fs::copy(&path, path.with_file_name("4567-int8.packed")).unwrap();
    assert!(!find_or_make(&cache, "4567-int8.packed").1);
    assert_eq!(files(&directory.path().join("below")), [NAME, "4567-int8.packed"]);
}

#[test]
fn without_a_writable_directory_weights_are_packed_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("in the way");
    std::fs::write(&file, b"a file").unwrap();
    for cache in [PackedCache::none(), PackedCache::at(file.join("below")), PackedCache::at(file)] {
        for _ in 0..2 {
            let (kept, found) = find_or_make(&cache, NAME);
            assert!(!found && is_whole(&kept));
        }
    }
    // More than the disk has; there may not be this much memory either.
    let cache = PackedCache::at(directory.path().join("full"));
    if let Ok(Found::Blank(blank)) = cache.find(&mut Cpu::new(1), NAME, 1 << 46) {
        assert!(blank.place.is_none());
    }
    assert_eq!(files(&directory.path().join("full")), [""; 0], "nothing half made stays");
}

#[test]
fn workers_that_start_together_write_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let cache = PackedCache::at(directory.path().to_owned());
    let barrier = Arc::new(Barrier::new(4));
    let start = |_| {
        let (cache, barrier) = (cache.clone(), Arc::clone(&barrier));
        std::thread::spawn(move || {
            barrier.wait();
            let (kept, found) = find_or_make(&cache, NAME);
            (is_whole(&kept), found)
        })
    };
    let threads: Vec<_> = (0..4).map(start).collect();
    let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(ends.iter().all(|(is_whole, _)| *is_whole));
    assert_eq!(ends.iter().filter(|(_, found)| *found).count(), 3, "the others waited for the first");
    assert_eq!(files(directory.path()), [NAME]);
}

#[test]
fn a_writer_that_died_or_gave_up_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let cache = PackedCache::at(directory.path().to_owned());
    std::fs::write(directory.path().join(format!("{NAME}.new")), b"half of it").unwrap();
    let Ok(Found::Blank(blank)) = cache.find(&mut Cpu::new(1), NAME, ROOM) else { panic!("not there yet") };
    // A worker with a zero timeout does not wait for the writer but continues in memory.
    let hasty = PackedCache { wait_for_maker: Duration::ZERO, ..cache.clone() };
    let Ok(Found::Blank(other)) = hasty.find(&mut Cpu::new(1), NAME, ROOM) else { panic!("not there yet") };
    assert!(blank.place.is_some() && other.place.is_none());
    drop(blank);
    assert_eq!(files(directory.path()), [""; 0], "given up: nothing stays");
    assert!(!find_or_make(&cache, NAME).1);
    assert!(find_or_make(&cache, NAME).1);
}

#[test]
fn the_least_recently_used_files_are_deleted_and_those_in_use_stay() {
    let directory = tempfile::tempdir().unwrap();
    let two = (BYTES + ROOM + (2 << 16)) as u64;
    let cache = PackedCache { most_bytes: two, ..PackedCache::at(directory.path().to_owned()) };
    let used_at = |name: &str, second: u64| {
        let file = File::open(directory.path().join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    };
    std::fs::write(directory.path().join("left.packed.new"), b"by one that died").unwrap();
    let (in_use, _) = find_or_make(&cache, "a.packed");
    used_at("a.packed", 1);
    drop(find_or_make(&cache, "b.packed"));
    used_at("b.packed", 2);
    drop(find_or_make(&cache, "c.packed"));
    assert_eq!(files(directory.path()), ["a.packed", "c.packed"], "b went: a is older, but in use");
    drop(in_use);
    drop(find_or_make(&cache, "d.packed"));
    assert_eq!(files(directory.path()), ["c.packed", "d.packed"]);
}
