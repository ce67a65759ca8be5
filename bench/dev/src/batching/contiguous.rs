//! KV memory in contiguous pieces, one per request.

/// Memory of `size` tokens with first-fit allocation.
#[derive(Debug)]
pub struct Contiguous {
    size: u32,
    /// Allocated pieces `(start, length)`, by start.
    pieces: Vec<(u32, u32)>,
}

impl Contiguous {
    /// Memory of `size` tokens, all of it free.
    pub fn new(size: u32) -> Self {
        Self { size, pieces: Vec::new() }
    }

    /// Total size, in tokens.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Free tokens, contiguous or not.
    pub fn free(&self) -> u32 {
        self.size - self.pieces.iter().map(|(_, length)| length).sum::<u32>()
    }

    /// Allocates `length` tokens and returns their start; `None` if no free piece is that long.
    pub fn take(&mut self, length: u32) -> Option<u32> {
        let mut start = 0;
        for (index, &(next, next_length)) in self.pieces.iter().enumerate() {
            if next - start >= length {
                self.pieces.insert(index, (start, length));
                return Some(start);
            }
            start = next + next_length;
        }
        (self.size - start >= length).then(|| {
            self.pieces.push((start, length));
            start
        })
    }

    /// Frees the piece at `start`.
    pub fn give_back(&mut self, start: u32) {
        let index = self.pieces.binary_search_by_key(&start, |piece| piece.0);
        self.pieces.remove(index.expect("a piece is given back once"));
    }
}
