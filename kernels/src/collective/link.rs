//! One-way links over which a pipeline stage sends rows to the next: between threads, through shared memory,
//! and over TCP. Rows are buffered in the link, so that the sending stage continues immediately.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::ring::{RingError, RingReader, RingWriter};
use super::stream::Stream;
use super::{Begun, How, Lost};

/// Sending end of a link.
pub trait Outlet: Send {
    /// Sends `values`; returns once they are buffered in the link.
    ///
    /// # Errors
    /// If the other end has ended, or makes no room in time.
    fn send(&mut self, values: &[f32]) -> Result<(), Lost>;
}

/// Receiving end of a link.
pub trait Inlet: Send {
    /// Waits for the next message, which must have the length of `values`.
    ///
    /// # Errors
    /// If the other end has ended, sends nothing in time, or sends a different number of values.
    fn receive(&mut self, values: &mut [f32]) -> Result<(), Lost>;
}

/// Header words: the number of the message, and the number of values.
const HEADER: usize = 2;

/// Message counter of one end.
#[derive(Debug)]
struct Messages {
    /// Rank at the other end.
    peer: usize,
    number: u64,
    timeout: Duration,
}

impl Messages {
    fn new(peer: usize, timeout: Duration) -> Self {
        Self { peer, number: 0, timeout }
    }

    fn begin(&mut self, values: usize) -> Begun {
        self.number += 1;
        Begun::new(self.number, 4 * values, self.timeout)
    }

    fn header(&self, values: usize) -> [u32; HEADER] {
        [self.number as u32, values as u32]
    }

    fn check(&self, got: [u32; HEADER], values: usize, begun: &Begun) -> Result<(), Lost> {
        if got == self.header(values) {
            return Ok(());
        }
        Err(begun.lost(self.peer, How::Differs(4 * u64::from(got[1]))))
    }

    fn lost(&self, error: RingError, begun: &Begun) -> Lost {
        match error {
            RingError::Ended(rank) => begun.lost(rank, How::Ended),
            RingError::Late { .. } => begun.lost(self.peer, How::Silent),
        }
    }
}

/// A link between threads, for tests, with room for `steps` messages. `ranks` are those of the sender and the
/// receiver.
pub fn between_threads(
    ranks: [usize; 2],
    steps: usize,
    timeout: Duration,
) -> (impl Outlet + 'static, impl Inlet + 'static) {
    let (sender, receiver) = sync_channel(steps);
    let [from, to] = ranks;
    let messages = |peer| Messages::new(peer, timeout);
    (ThreadOutlet { sender, messages: messages(to) }, ThreadInlet { receiver, messages: messages(from) })
}

struct ThreadOutlet {
    sender: SyncSender<Vec<f32>>,
    messages: Messages,
}

impl Outlet for ThreadOutlet {
    fn send(&mut self, values: &[f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        self.sender.send(values.to_vec()).map_err(|_| begun.lost(self.messages.peer, How::Ended))
    }
}

struct ThreadInlet {
    receiver: Receiver<Vec<f32>>,
    messages: Messages,
}

impl Inlet for ThreadInlet {
    fn receive(&mut self, values: &mut [f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        let peer = self.messages.peer;
        let got = self.receiver.recv_timeout(self.messages.timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => begun.lost(peer, How::Silent),
            RecvTimeoutError::Disconnected => begun.lost(peer, How::Ended),
        })?;
        if got.len() != values.len() {
            return Err(begun.lost(peer, How::Differs(4 * got.len() as u64)));
        }
        values.copy_from_slice(&got);
        Ok(())
    }
}

/// Sends values to another process on this machine.
#[derive(Debug)]
pub struct RingOutlet {
    writer: RingWriter,
    messages: Messages,
}

impl RingOutlet {
    /// Writes to the ring that `peer` reads.
    pub fn new(writer: RingWriter, peer: usize, timeout: Duration) -> Self {
        Self { writer, messages: Messages::new(peer, timeout) }
    }
}

impl Outlet for RingOutlet {
    fn send(&mut self, values: &[f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        let put = self.writer.put(&self.messages.header(values.len()));
        let put = put.and_then(|()| self.writer.put(bytemuck::cast_slice(values)));
        put.map_err(|error| self.messages.lost(error, &begun))?;
        self.writer.publish();
        Ok(())
    }
}

/// Receives values from another process on this machine.
#[derive(Debug)]
pub struct RingInlet {
    reader: RingReader,
    messages: Messages,
}

impl RingInlet {
    /// Reads the ring that `peer` writes.
    pub fn new(reader: RingReader, peer: usize, timeout: Duration) -> Self {
        Self { reader, messages: Messages::new(peer, timeout) }
    }
}

impl Inlet for RingInlet {
    fn receive(&mut self, values: &mut [f32]) -> Result<(), Lost> {
        let (begun, most) = (self.messages.begin(values.len()), Some(self.messages.timeout));
        let mut header = [0; HEADER];
        self.reader.take(&mut header, most).map_err(|error| self.messages.lost(error, &begun))?;
        self.messages.check(header, values.len(), &begun)?;
        self.reader
            .take(bytemuck::cast_slice_mut(values), most)
            .map_err(|error| self.messages.lost(error, &begun))
    }
}

/// Sends values to a process on another machine. A separate thread writes them, so that the sender does not
/// wait for the network.
#[derive(Debug)]
pub struct StreamOutlet {
    queue: SyncSender<Vec<u8>>,
    messages: Messages,
}

impl StreamOutlet {
    /// Writes to `stream`, which `peer` reads; up to `steps` messages are queued.
    ///
    /// # Errors
    /// If the socket cannot be configured or the thread cannot be started.
    pub fn start(
        stream: impl Stream + 'static,
        peer: usize,
        steps: usize,
        timeout: Duration,
    ) -> std::io::Result<Self> {
        stream.socket().set_nodelay(true)?;
        stream.socket().set_write_timeout(Some(timeout))?;
        let (queue, messages) = sync_channel::<Vec<u8>>(steps);
        let write = move || {
            let mut stream = stream;
            // After a failure the queue is closed, which the sender detects.
            let mut write = |bytes: Vec<u8>| stream.write_all(&bytes).and_then(|()| stream.flush());
            while messages.recv().is_ok_and(|bytes| write(bytes).is_ok()) {}
        };
        std::thread::Builder::new().name(format!("skein-link-{peer}")).spawn(write)?;
        Ok(Self { queue, messages: Messages::new(peer, timeout) })
    }
}

impl Outlet for StreamOutlet {
    fn send(&mut self, values: &[f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        let mut bytes = Vec::with_capacity(4 * (HEADER + values.len()));
        for word in self.messages.header(values.len()).iter().chain(bytemuck::cast_slice(values)) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.queue.send(bytes).map_err(|_| begun.lost(self.messages.peer, How::Ended))
    }
}

/// Receives values from a process on another machine.
#[derive(Debug)]
pub struct StreamInlet {
    stream: Box<dyn Stream>,
    messages: Messages,
    bytes: Vec<u8>,
}

impl StreamInlet {
    /// Reads `stream`, which `peer` writes.
    ///
    /// # Errors
    /// If the socket cannot be configured.
    pub fn new(stream: Box<dyn Stream>, peer: usize, timeout: Duration) -> std::io::Result<Self> {
        stream.socket().set_nodelay(true)?;
        Ok(Self { stream, messages: Messages::new(peer, timeout), bytes: Vec::new() })
    }

    /// Reads bytes until `self.bytes[..count]` is full.
    fn fill(&mut self, count: usize, begun: &Begun) -> Result<(), Lost> {
        let (mut done, peer) = (0, self.messages.peer);
        self.bytes.resize(self.bytes.len().max(count), 0);
        while done < count {
            let left = begun.left();
            if left.is_zero() {
                return Err(begun.lost(peer, How::Silent));
            }
            let ended = || begun.lost(peer, How::Ended);
            self.stream.socket().set_read_timeout(Some(left)).map_err(|_| ended())?;
            match self.stream.read(&mut self.bytes[done..count]) {
                Ok(0) => return Err(ended()),
                Ok(read) => done += read,
                Err(error) if is_passing(&error) => {}
                Err(_) => return Err(ended()),
            }
        }
        Ok(())
    }
}

/// Whether a failed socket operation can be retried.
pub(super) fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

impl Inlet for StreamInlet {
    fn receive(&mut self, values: &mut [f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        self.fill(4 * HEADER, &begun)?;
        let word = |bytes: &[u8], i: usize| {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        };
        let header = [word(&self.bytes, 0), word(&self.bytes, 1)];
        self.messages.check(header, values.len(), &begun)?;
        self.fill(4 * values.len(), &begun)?;
        for (i, value) in values.iter_mut().enumerate() {
            *value = f32::from_bits(word(&self.bytes, i));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use skein_sys::shared_memory::SharedMemory;

    use super::super::{Ring, Shared};
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

    type Ends = (Box<dyn Outlet>, Box<dyn Inlet>);

    /// A link of each kind, from rank 4 to rank 2.
    fn links(timeout: Duration) -> Vec<(&'static str, Ends)> {
        let (outlet, inlet) = between_threads([4, 2], 2, timeout);
        let before = Shared::bytes(1, 64);
        let memory = SharedMemory::create(before + Ring::size(4096, 1)).unwrap();
        let end = Shared::new(memory.clone(), 0, (0, 1), 64, TIMEOUT).end();
        let ring = Ring::new(memory, before, 4096, 1, end);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        vec![
            ("threads", (Box::new(outlet), Box::new(inlet))),
            (
                "ring",
                (
                    Box::new(RingOutlet::new(ring.writer(timeout), 2, timeout)),
                    Box::new(RingInlet::new(ring.reader(0), 4, timeout)),
                ),
            ),
            (
                "stream",
                (
                    Box::new(StreamOutlet::start(one, 2, 2, timeout).unwrap()),
                    Box::new(StreamInlet::new(Box::new(other), 4, timeout).unwrap()),
                ),
            ),
        ]
    }

    fn values(number: usize) -> Vec<f32> {
        (0..(number * 517) % 3000).map(|i| (i as f32 - 7.0) * number as f32).collect()
    }

    #[test]
    fn values_arrive_in_order_with_their_bits() {
        for (kind, (mut outlet, mut inlet)) in links(TIMEOUT) {
            let sender = std::thread::spawn(move || {
                (0..50).for_each(|number| outlet.send(&values(number)).unwrap());
                outlet.send(&[-0.0, f32::from_bits(0x7fc0_1234)]).unwrap();
                outlet
            });
            for number in 0..50 {
                let mut got = values(number);
                got.fill(9.0);
                inlet.receive(&mut got).unwrap();
                assert_eq!(got, values(number), "message {number} over {kind}");
            }
            let mut got = [0.0; 2];
            inlet.receive(&mut got).unwrap();
            assert_eq!(got.map(f32::to_bits), [1 << 31, 0x7fc0_1234], "{kind}");
            drop(sender.join().unwrap());
        }
    }

    #[test]
    fn an_end_that_is_silent_or_differs_or_has_ended_is_named() {
        for (kind, (mut outlet, mut inlet)) in links(SHORT_TIMEOUT) {
            let lost = inlet.receive(&mut [0.0; 3]).unwrap_err();
            assert_eq!((lost.rank, lost.how, lost.doing.bytes), (4, How::Silent, 12), "{kind}");
            outlet.send(&[0.0; 2]).unwrap();
            outlet.send(&[0.0; 2]).unwrap();
            let differs = inlet.receive(&mut [0.0; 3]).unwrap_err();
            assert_eq!((differs.rank, differs.how), (4, How::Differs(8)), "{kind}");
        }
        for (kind, (outlet, mut inlet)) in links(TIMEOUT) {
            drop(outlet);
            if kind != "ring" {
                assert_eq!(inlet.receive(&mut [0.0; 3]).unwrap_err().how, How::Ended, "{kind}");
            }
        }
    }
}
