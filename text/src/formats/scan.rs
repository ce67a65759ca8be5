//! Finds markers in text that arrives in pieces. It always holds back the longest suffix that may begin a
//! marker, so the result does not depend on where the text was cut.

use super::skim::is_space;

/// Suffix of the text that may begin a marker.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    held: String,
}

impl Scan {
    /// Consumes the next character. Passes each character that belongs to no marker to `release`, and returns
    /// the index of the marker that this character completes.
    pub fn step(&mut self, c: char, markers: &[&str], mut release: impl FnMut(char)) -> Option<usize> {
        if self.held.is_empty() && !markers.iter().any(|marker| marker.starts_with(c)) {
            release(c);
            return None;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            if let Some(at) = markers.iter().position(|marker| *marker == self.held) {
                self.held.clear();
                return Some(at);
            }
            if markers.iter().any(|marker| marker.starts_with(self.held.as_str())) {
                return None;
            }
            release(self.held.remove(0));
        }
        None
    }

    /// Whether no text is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes the held text when the answer ends.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Most markers searched for at once.
const MAX_MARKERS: usize = 16;

/// Markers searched for at once, without the white space around them, which is held back separately.
#[derive(Debug, Default)]
pub struct Markers {
    all: [&'static str; MAX_MARKERS],
    count: usize,
}

impl Markers {
    /// Adds a marker; an empty one stands for none.
    pub fn add(&mut self, marker: &'static str) {
        let marker = marker.trim_matches(is_space);
        if !marker.is_empty() && self.count < MAX_MARKERS {
            self.all[self.count] = marker;
            self.count += 1;
        }
    }

    /// The markers, in the order in which they were added.
    pub fn all(&self) -> &[&'static str] {
        &self.all[..self.count]
    }
}
