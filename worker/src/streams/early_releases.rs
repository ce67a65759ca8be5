//! Releases that arrive before their request. A client that disconnects at once can make its Release overtake
//! its Generate, which is then not worth computing.

use std::collections::VecDeque;
use std::time::Duration;

use skein_node::clock::Timestamp;

/// Most names remembered; the oldest are forgotten.
const MAX_NAMES: usize = 256;
/// How late a request may arrive after its Release.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Released names, oldest first.
#[derive(Debug, Default)]
pub(super) struct EarlyReleases(VecDeque<(Timestamp, String)>);

impl EarlyReleases {
    pub fn note(&mut self, name: &str, now: Timestamp) {
        self.0.push_back((now, name.to_owned()));
        if self.0.len() > MAX_NAMES {
            self.0.pop_front();
        }
    }

    /// Whether that name was released recently; true only once.
    pub fn take(&mut self, name: &str, now: Timestamp) -> bool {
        while self.0.pop_front_if(|(noted, _)| now.since(*noted) > MAX_AGE).is_some() {}
        let place = self.0.iter().position(|(_, noted)| noted == name);
        place.and_then(|place| self.0.remove(place)).is_some()
    }
}
