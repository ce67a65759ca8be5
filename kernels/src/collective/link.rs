//! One-way connections over which a stage of a pipeline passes rows to the next: between threads, through
//! shared memory, and over TCP. Rows wait in the connection, so that a stage continues at once.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::ring::{RingError, RingReader, RingWriter};
use super::{Begun, How, Lost};

/// The end of a connection that passes values on.
pub trait Outlet: Send {
    /// Passes `values` on, and returns when they are in the connection.
    ///
    /// # Errors
    /// The other end has ended, or leaves no room in time.
    fn send(&mut self, values: &[f32]) -> Result<(), Lost>;
}

/// The end of a connection that gets values.
pub trait Inlet: Send {
    /// Waits for the values that the other end passes on next, which are as many as `values`.
    ///
    /// # Errors
    /// The other end has ended, passes nothing in time, or passes another number of values.
    fn receive(&mut self, values: &mut [f32]) -> Result<(), Lost>;
}

/// Words before the values: the number of the message, and how many values follow.
const HEADER: usize = 2;

/// The messages of one end.
#[derive(Debug)]
struct Messages {
    /// Rank at the other end.
    peer: usize,
    number: u64,
    patience: Duration,
}

impl Messages {
    fn new(peer: usize, patience: Duration) -> Self {
        Self { peer, number: 0, patience }
    }

    fn begin(&mut self, values: usize) -> Begun {
        self.number += 1;
        Begun::new(self.number, 4 * values, self.patience)
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

/// A connection between threads, for tests: at most `steps` messages wait in it. `ranks` are those of the
/// sender and of the receiver.
pub fn between_threads(
    ranks: [usize; 2],
    steps: usize,
    patience: Duration,
) -> (impl Outlet + 'static, impl Inlet + 'static) {
    let (sender, receiver) = sync_channel(steps);
    let [from, to] = ranks;
    let messages = |peer| Messages::new(peer, patience);
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
        let got = self.receiver.recv_timeout(self.messages.patience).map_err(|error| match error {
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

/// Passes values to another process of this machine.
#[derive(Debug)]
pub struct RingOutlet {
    writer: RingWriter,
    messages: Messages,
}

impl RingOutlet {
    /// Writes to the ring that `peer` reads.
    pub fn new(writer: RingWriter, peer: usize, patience: Duration) -> Self {
        Self { writer, messages: Messages::new(peer, patience) }
    }
}

impl Outlet for RingOutlet {
    fn send(&mut self, values: &[f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        let put = self.writer.put(&self.messages.header(values.len()));
        let put = put.and_then(|()| self.writer.put(as_words(values)));
        put.map_err(|error| self.messages.lost(error, &begun))?;
        self.writer.publish();
        Ok(())
    }
}

/// Gets values from another process of this machine.
#[derive(Debug)]
pub struct RingInlet {
    reader: RingReader,
    messages: Messages,
}

impl RingInlet {
    /// Reads the ring that `peer` writes.
    pub fn new(reader: RingReader, peer: usize, patience: Duration) -> Self {
        Self { reader, messages: Messages::new(peer, patience) }
    }
}

impl Inlet for RingInlet {
    fn receive(&mut self, values: &mut [f32]) -> Result<(), Lost> {
        let (begun, most) = (self.messages.begin(values.len()), Some(self.messages.patience));
        let mut header = [0; HEADER];
        self.reader.take(&mut header, most).map_err(|error| self.messages.lost(error, &begun))?;
        self.messages.check(header, values.len(), &begun)?;
        self.reader.take(as_words_mut(values), most).map_err(|error| self.messages.lost(error, &begun))
    }
}

/// Passes values to a process of another machine. A thread writes them, so that the sender does not wait for
/// the network.
#[derive(Debug)]
pub struct StreamOutlet {
    queue: SyncSender<Vec<u8>>,
    messages: Messages,
}

impl StreamOutlet {
    /// Writes to `stream`, which `peer` reads; at most `steps` messages wait.
    ///
    /// # Errors
    /// If the socket cannot be set up or a thread cannot be started.
    pub fn start(stream: TcpStream, peer: usize, steps: usize, patience: Duration) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        let (queue, messages) = sync_channel::<Vec<u8>>(steps);
        let write = move || {
            let mut stream = stream;
            // Once this fails, the queue is closed, which the sender sees.
            while messages.recv().is_ok_and(|bytes| stream.write_all(&bytes).is_ok()) {}
        };
        std::thread::Builder::new().name(format!("skein-link-{peer}")).spawn(write)?;
        Ok(Self { queue, messages: Messages::new(peer, patience) })
    }
}

impl Outlet for StreamOutlet {
    fn send(&mut self, values: &[f32]) -> Result<(), Lost> {
        let begun = self.messages.begin(values.len());
        let mut bytes = Vec::with_capacity(4 * (HEADER + values.len()));
        for word in self.messages.header(values.len()).iter().chain(as_words(values)) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.queue.send(bytes).map_err(|_| begun.lost(self.messages.peer, How::Ended))
    }
}

/// Gets values from a process of another machine.
#[derive(Debug)]
pub struct StreamInlet {
    stream: TcpStream,
    messages: Messages,
    bytes: Vec<u8>,
}

impl StreamInlet {
    /// Reads `stream`, which `peer` writes.
    ///
    /// # Errors
    /// If the socket cannot be set up.
    pub fn new(stream: TcpStream, peer: usize, patience: Duration) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, messages: Messages::new(peer, patience), bytes: Vec::new() })
    }

    /// Fills `self.bytes[..count]`.
    fn fill(&mut self, count: usize, begun: &Begun) -> Result<(), Lost> {
        let (mut done, peer) = (0, self.messages.peer);
        self.bytes.resize(self.bytes.len().max(count), 0);
        while done < count {
            let left = begun.left();
            if left.is_zero() {
                return Err(begun.lost(peer, How::Silent));
            }
            let ended = || begun.lost(peer, How::Ended);
            self.stream.set_read_timeout(Some(left)).map_err(|_| ended())?;
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

/// Whether an operation on a socket may be tried again.
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

fn as_words(values: &[f32]) -> &[u32] {
    // SAFETY: both types have four bytes, the same alignment, and no invalid values.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

fn as_words_mut(values: &mut [f32]) -> &mut [u32] {
    // SAFETY: as in `as_words`, and `values` is borrowed uniquely.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use skein_sys::shared_memory::SharedMemory;

    use super::super::{Ring, Shared};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const IMPATIENT: Duration = Duration::from_millis(100);

    type Ends = (Box<dyn Outlet>, Box<dyn Inlet>);

    /// A connection of each kind, from rank 4 to rank 2.
    fn links(patience: Duration) -> Vec<(&'static str, Ends)> {
        let (outlet, inlet) = between_threads([4, 2], 2, patience);
        let before = Shared::bytes(1, 64);
        let memory = SharedMemory::create(before + Ring::size(4096, 1)).unwrap();
        let end = Shared::new(memory.clone(), 0, (0, 1), 64, PATIENCE).end();
        let ring = Ring::new(memory, before, 4096, 1, end);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        vec![
            ("threads", (Box::new(outlet), Box::new(inlet))),
            (
                "ring",
                (
                    Box::new(RingOutlet::new(ring.writer(patience), 2, patience)),
                    Box::new(RingInlet::new(ring.reader(0), 4, patience)),
                ),
            ),
            (
                "stream",
                (
                    Box::new(StreamOutlet::start(one, 2, 2, patience).unwrap()),
                    Box::new(StreamInlet::new(other, 4, patience).unwrap()),
                ),
            ),
        ]
    }

    fn values(number: usize) -> Vec<f32> {
        (0..(number * 517) % 3000).map(|i| (i as f32 - 7.0) * number as f32).collect()
    }

    #[test]
    fn values_arrive_in_order_with_their_bits() {
        for (kind, (mut outlet, mut inlet)) in links(PATIENCE) {
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
        for (kind, (mut outlet, mut inlet)) in links(IMPATIENT) {
            let lost = inlet.receive(&mut [0.0; 3]).unwrap_err();
            assert_eq!((lost.rank, lost.how, lost.doing.bytes), (4, How::Silent, 12), "{kind}");
            outlet.send(&[0.0; 2]).unwrap();
            outlet.send(&[0.0; 2]).unwrap();
            let differs = inlet.receive(&mut [0.0; 3]).unwrap_err();
            assert_eq!((differs.rank, differs.how), (4, How::Differs(8)), "{kind}");
        }
        for (kind, (outlet, mut inlet)) in links(PATIENCE) {
            drop(outlet);
            if kind != "ring" {
                assert_eq!(inlet.receive(&mut [0.0; 3]).unwrap_err().how, How::Ended, "{kind}");
            }
        }
    }
}
