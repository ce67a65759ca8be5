//! Which process listens on a port of this machine, from `/proc`. Processes of other users keep that to
//! themselves.

use std::fmt;
use std::fs;
use std::path::Path;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A process that has what serving needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    name: String,
    process: u32,
}

impl Owner {
    /// The process of this number, if there is one.
    pub fn of(process: u32) -> Option<Self> {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
        Some(Self { name: name.trim().to_owned(), process })
    }

    /// Whether it is this program.
    pub fn is_skein(&self) -> bool {
        self.name == "skein"
    }
}

impl fmt::Display for Owner {
    /// Never its arguments, which may contain keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.process)
    }
}

/// The process that listens on `port`, if this user may know.
pub fn owner_of(port: u16) -> Option<Owner> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?;
    let mut numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let process = numbers.find(|process| has_one_of(*process, &sockets))?;
    Owner::of(process)
}

fn has_one_of(process: u32, sockets: &[String]) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    targets.any(|target| sockets.iter().any(|socket| target == Path::new(socket)))
}

/// Inodes of the sockets that listen on `port`, from a table as in `/proc/net/tcp`.
fn listening(table: &str, port: u16) -> Vec<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (_, hex) = local.rsplit_once(':')?;
        let is_it = *state == LISTENING && u16::from_str_radix(hex, 16) == Ok(port);
        is_it.then(|| (*inode).to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        let port = listener.local_addr().expect("it is bound").port();
        let owner = owner_of(port).expect("it is ours");
        assert_eq!(owner.process, std::process::id());
        assert!(!owner.is_skein(), "{owner}");
    }

    #[test]
    fn only_sockets_that_listen_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1\n\
             1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000  0 0 4712 1\n";
        assert_eq!(listening(table, 8000), ["4711"]);
        assert!(listening(table, 8001).is_empty());
    }
}
