//! Memory that this process may still allocate: the machine's, or less if a control group sets a limit. All
//! groups from the process's own up to the root count, in versions 1 and 2 of the interface (cgroups(7)).

use std::fmt;
use std::path::{Path, PathBuf};

/// Memory available to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that can still be allocated. File pages count as free, because the kernel reclaims them.
    pub available: u64,
    /// Most bytes that the process and its neighbours may use together.
    pub limit: u64,
    /// Source of the limit.
    pub of: Limit,
}

/// The source of a memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// Physical memory of the machine.
    Machine,
    /// A control group, with the directory of its files.
    Group(PathBuf),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("the machine"),
            Self::Group(directory) => write!(f, "the control group {}", directory.display()),
        }
    }
}

/// Memory of this process; `None` if the system does not report it.
pub fn of_this_process() -> Option<Memory> {
    memory(|path| std::fs::read_to_string(path).ok())
}

/// [`of_this_process`] with the files that `read` returns: the minimum over the machine and all groups.
fn memory(read: impl Fn(&Path) -> Option<String>) -> Option<Memory> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| of_machine(&text));
    let membership = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let groups = hierarchies(&membership, &mounts).into_iter().flat_map(|(files, top, own)| {
        let within = own.ancestors().take_while(|directory| directory.starts_with(&top));
        within.filter_map(|directory| of_group(files, directory.into(), &read)).collect::<Vec<_>>()
    });
    machine.into_iter().chain(groups).reduce(|one, other| {
        let available = one.available.min(other.available);
        let tighter = if other.limit < one.limit { other } else { one };
        Memory { available, ..tighter }
    })
}

/// Names of a group's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Files {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` that count file pages.
    file_pages: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    file_pages: ["total_inactive_file ", "total_active_file "],
};
/// `memory.high` counts as a limit, because the kernel slows down a process above it drastically.
const VERSION_2: Files = Files {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    file_pages: ["inactive_file ", "active_file "],
};

/// Each hierarchy that accounts for memory: its file names, its mount point, and the process's own directory.
fn hierarchies(membership: &str, mounts: &str) -> Vec<(Files, PathBuf, PathBuf)> {
    let own = |wanted: &dyn Fn(&str) -> bool| {
        membership.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    let version_1 = own(&|controllers| controllers.split(',').any(|name| name == "memory"));
    let version_2 = own(&str::is_empty);
    mounts
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, top) = (fields.next()?, fields.next()?);
            let mut kind = kind.split(' ');
            let (name, options) = (kind.next()?, kind.next_back()?);
            let (files, path) = match name {
                "cgroup2" => (VERSION_2, version_2?),
                "cgroup" if options.split(',').any(|option| option == "memory") => (VERSION_1, version_1?),
                _ => return None,
            };
            Some((files, top.into(), below(top, root, path)))
        })
        .collect()
}

/// Directory of group `path` in a hierarchy whose group `root` is mounted at `top`. A container mounts only
/// its own part. If `path` lies outside it, its directory is not visible, and the nearest visible one is
/// `top`.
fn below(top: &str, root: &str, path: &str) -> PathBuf {
    match Path::new(path).strip_prefix(root) {
        Ok(relative) if relative.components().next().is_some() && !relative.starts_with("..") => {
            Path::new(top).join(relative)
        }
        _ => top.into(),
    }
}

/// Memory of the group in `directory`, if it sets a limit.
fn of_group(files: Files, directory: PathBuf, read: impl Fn(&Path) -> Option<String>) -> Option<Memory> {
    let number = |name: &str| read(&directory.join(name))?.trim().parse::<u64>().ok();
    let limit = files.limits.iter().filter_map(|name| number(name)).min()?;
    let stat = read(&directory.join("memory.stat")).unwrap_or_default();
    let pages =
        |start: &str| stat.lines().find_map(|line| line.strip_prefix(start)?.trim().parse::<u64>().ok());
    let file_pages: u64 = files.file_pages.into_iter().filter_map(pages).sum();
    let used = number(files.usage).unwrap_or(0).saturating_sub(file_pages);
    Some(Memory { available: limit.saturating_sub(used), limit, of: Limit::Group(directory) })
}

fn of_machine(meminfo: &str) -> Option<Memory> {
    let bytes = |start: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(start))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    let available = bytes("MemAvailable:")?;
    Some(Memory { available, limit: bytes("MemTotal:").unwrap_or(available), of: Limit::Machine })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const MIB: u64 = 1 << 20;
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw";
    const V1: &str = "36 25 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

    /// MiB available, MiB of the limit, and its directory; the machine has 8 GiB of 16.
    fn check(files: &[(&str, &str)], expected: (u64, u64, &str)) {
        let mut all = HashMap::from([("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")]);
        all.extend(files.iter().copied());
        let read = |path: &Path| all.get(path.to_str()?).map(|text| (*text).to_owned());
        let got = memory(read).expect("the machine is known");
        let directory = match &got.of {
            Limit::Machine => "",
            Limit::Group(directory) => directory.to_str().expect("plain"),
        };
        assert_eq!((got.available / MIB, got.limit / MIB, directory), expected, "{files:?}");
    }

    #[test]
    fn without_a_group_the_machine_decides() {
        check(&[], (8192, 16384, ""));
        let unlimited = [
            ("/proc/self/cgroup", "4:memory:/\n0::/\n"),
            ("/proc/self/mountinfo", V1),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n"),
        ];
        check(&unlimited, (8192, 16384, ""));
        assert_eq!(memory(|_| None), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts_in_version_2() {
        let files = [
            ("/proc/self/cgroup", "0::/pod/app/inner\n"),
            ("/proc/self/mountinfo", V2),
            ("/sys/fs/cgroup/pod/app/inner/memory.max", "max\n"),
            ("/sys/fs/cgroup/pod/app/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/pod/app/memory.current", "734003200\n"),
            (
                "/sys/fs/cgroup/pod/app/memory.stat",
                "anon 1\ninactive_file 104857600\nactive_file 104857600\n",
            ),
            ("/sys/fs/cgroup/pod/memory.max", "2147483648\n"),
        ];
        check(&files, (1024 - 500, 1024, "/sys/fs/cgroup/pod/app"));
    }

    #[test]
    fn version_1_is_read_where_memory_has_a_hierarchy_of_its_own() {
        let files = [
            ("/proc/self/cgroup", "5:cpu:/\n4:memory:/a/b\n0::/\n"),
            ("/proc/self/mountinfo", V1),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912"),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "104857600"),
            ("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 5\ntotal_inactive_file 52428800\n"),
        ];
        check(&files, (512 - 50, 512, "/sys/fs/cgroup/memory/a"));
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_hierarchy() {
        let mount = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw";
        for own in ["0::/docker/abc\n", "0::/../elsewhere\n"] {
            let files = [
                ("/proc/self/cgroup", own),
                ("/proc/self/mountinfo", mount),
                ("/sys/fs/cgroup/memory.max", "268435456"),
            ];
            check(&files, (256, 256, "/sys/fs/cgroup"));
        }
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal: 8 kB\nMemAvailable:    4 kB\n";
        assert_eq!(of_machine(text), Some(Memory { available: 4096, limit: 8192, of: Limit::Machine }));
        assert_eq!(of_machine("nonsense"), None);
    }
}
