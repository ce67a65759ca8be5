//! What happens to the bytes of a connection.

use std::time::Duration;

/// Whether bytes arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// Bytes are passed on.
    #[default]
    Pass,
    /// Bytes wait until the stall is over and then arrive late, as after a partition that TCP survives.
    Stall,
    /// Bytes are read and dropped, end of stream included, as on a half-open connection. Once a connection
    /// has lost bytes, that direction stays silent to its end, because the bytes cannot be recovered.
    Swallow,
}

/// What happens to bytes in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Link {
    /// Whether bytes arrive at all.
    pub flow: Flow,
    /// Latency of every byte.
    pub delay: Duration,
    /// Bytes per second; `None` = unlimited.
    pub bandwidth: Option<u64>,
    /// Fraction of chunks that are lost and resent. All later bytes wait for [`Link::resend_after`].
    pub loss: f64,
    /// How long TCP takes to notice and repair a loss.
    pub resend_after: Duration,
}

impl Link {
    /// Bytes are kept until the link is good again.
    pub const STALL: Self = Self { flow: Flow::Stall, ..Self::GOOD };
    /// Bytes are thrown away.
    pub const SWALLOW: Self = Self { flow: Flow::Swallow, ..Self::GOOD };
    /// A network without faults.
    pub const GOOD: Self = Self {
        flow: Flow::Pass,
        delay: Duration::ZERO,
        bandwidth: None,
        loss: 0.0,
        resend_after: Duration::from_millis(200),
    };
}

/// Both directions of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// From the side that connected.
    pub up: Link,
    /// To the side that connected.
    pub down: Link,
}

impl Network {
    /// Both directions pass bytes on.
    pub const GOOD: Self = Self { up: Link::GOOD, down: Link::GOOD };

    /// The same in both directions.
    pub const fn both(link: Link) -> Self {
        Self { up: link, down: link }
    }
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both sides see a reset.
    Reset,
    /// Both sides see end of stream, as if the other had closed.
    Finish,
}
