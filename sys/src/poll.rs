//! Waits for several sockets at once.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Set of sockets to wait for, reused between waits.
#[derive(Debug, Default)]
pub struct Poll {
    waits: Vec<libc::pollfd>,
}

impl Poll {
    /// Empties the set.
    pub fn clear(&mut self) {
        self.waits.clear();
    }

    /// Adds a socket, which is ready if it can be read or written, as requested, or has failed.
    pub fn add(&mut self, socket: &impl AsRawFd, read: bool, write: bool) {
        let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
        let fd: RawFd = socket.as_raw_fd();
        self.waits.push(libc::pollfd { fd, events, revents: 0 });
    }

    /// Waits until a socket is ready, for up to `most`, rounded up to a millisecond. May return early.
    pub fn wait(&mut self, most: Duration) {
        let milliseconds = most.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        // SAFETY: the list is valid for its length, and only borrowed during the call.
        unsafe { libc::poll(self.waits.as_mut_ptr(), self.waits.len() as libc::nfds_t, milliseconds) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_socket_with_bytes_ends_the_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        other.set_nonblocking(true).unwrap();
        let mut poll = Poll::default();
        poll.add(&other, true, false);
        poll.wait(Duration::from_millis(1)); // times out without data
        assert!(other.peek(&mut [0; 1]).is_err());
        one.write_all(b"x").unwrap();
        poll.wait(Duration::from_secs(60));
        assert_eq!(other.peek(&mut [0; 1]).unwrap(), 1);
    }
}
