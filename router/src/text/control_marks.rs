//! Where the control tokens of a sample begin in its text. A stop string may hold text back, so a token's
//! text can leave later than the token.

use std::collections::VecDeque;

/// Positions of control tokens whose text has not left yet. All positions are bytes of the sample's text.
#[derive(Debug, Default)]
pub struct ControlMarks {
    waiting: VecDeque<usize>,
    /// Length of the text so far.
    written: usize,
    /// Length of the text that has left.
    released: usize,
}

impl ControlMarks {
    /// Adds a piece of `length` bytes, in which a control token begins at `begin`.
    pub fn add(&mut self, begin: Option<usize>, length: usize) {
        self.waiting.extend(begin.map(|begin| self.written + begin));
        self.written += length;
    }

    /// Releases the next `length` bytes; returns where in them control tokens begin.
    pub fn released(&mut self, length: usize) -> Vec<usize> {
        let from = self.released;
        self.released += length;
        let gone = self.waiting.iter().take_while(|at| **at < self.released).count();
        self.waiting.drain(..gone).map(|at| at - from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ControlMarks;

    #[test]
    fn a_mark_leaves_with_its_first_byte() {
        let mut marks = ControlMarks::default();
        marks.add(None, 3);
        marks.add(Some(1), 8);
        assert_eq!(marks.released(4), [0_usize; 0]);
        assert_eq!(marks.released(2), [0]);
        marks.add(Some(0), 7);
        assert_eq!(marks.released(12), [5]);
    }
}
