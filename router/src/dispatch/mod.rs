//! Carries one request to a worker and its tokens back, whole: on any fault it goes on elsewhere.
//!
//! [`delivery`] decides, purely: what the client has, what to drop, when to move. `driver` holds the stream and
//! does as it is told. Neither knows where tokens come from nor what they mean.

pub mod delivery;
pub(crate) mod driver;

#[cfg(test)]
mod tests;
