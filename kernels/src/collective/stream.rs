//! What carries bytes between ranks on different machines: a TCP connection, or one that encrypts above it.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A connection to a rank on another machine. Reads and writes follow the socket's timeouts and its
/// non-blocking mode; what was written has left once [`flush`](Write::flush) succeeds.
pub trait Stream: Read + Write + Send + Debug {
    /// The socket below, for its settings, for waits, and to close it.
    fn socket(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}
