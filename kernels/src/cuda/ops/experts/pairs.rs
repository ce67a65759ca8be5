//! Pairs of rows and experts, and their tiles.

use crate::cuda::DeviceSlice;

/// Sizes of a step in a layer with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    /// Rows, including padding.
    pub rows: usize,
    /// Experts of each row.
    pub per_token: usize,
    /// Experts of the layer; where pairs are sorted and multiplied, those of a rank.
    pub experts: usize,
}

impl Pairs {
    /// Number of pairs.
    pub fn count(self) -> usize {
        self.rows * self.per_token
    }

    /// Most tiles of `tile_rows` pairs, none of which has pairs of two experts.
    pub fn most_tiles(self, tile_rows: usize) -> usize {
        let chosen = self.count().min(self.experts);
        chosen + (self.count() - chosen) / tile_rows
    }
}

/// How the weights of experts are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In the activations' type.
    Same,
    /// FP8 with a scale for each row.
    E4m3,
    /// In codes of 4, 6 or 8 bits.
    Packed(usize),
}

/// Size of the tiles of an expert's pairs. Does not change the bits of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tile {
    /// 8 rows: limited by reading the experts' weights.
    Few,
    /// 64 rows; 32 with weights in codes.
    Medium,
    /// 128 rows; 64 with e4m3 weights or codes. Twice the outputs of [`Self::Medium`].
    Large,
}

impl Tile {
    /// All tile sizes.
    pub const ALL: [Self; 3] = [Self::Few, Self::Medium, Self::Large];
    /// Rows of the smallest tile.
    pub const FEWEST_ROWS: usize = 8;

    /// The tile for these sizes, by the pairs of an average expert. Not yet measured on a GPU.
    pub fn of(pairs: Pairs) -> Self {
        match pairs.count() / pairs.experts {
            0..=4 => Self::Few,
            5..=95 => Self::Medium,
            _ => Self::Large,
        }
    }

    /// Most rows of a tile.
    pub fn rows(self, weight: Storage) -> usize {
        match (self, weight) {
            (Self::Few, _) => Self::FEWEST_ROWS,
            (Self::Medium, Storage::Packed(_)) => 32,
            (Self::Medium, _) | (Self::Large, Storage::E4m3 | Storage::Packed(_)) => 64,
            (Self::Large, Storage::Same) => 128,
        }
    }
}

/// Pairs by expert, in tiles.
#[derive(Debug, Clone, Copy)]
pub struct SortedPairs {
    /// `[pairs]`: pairs by expert.
    pub sorted: DeviceSlice<u32>,
    /// [`Self::tile_words`] words: a tile is an expert, its first pair's position and its number of rows.
    pub tiles: DeviceSlice<u32>,
    /// Sizes of the step.
    pub pairs: Pairs,
    /// Size of the tiles.
    pub tile: Tile,
    /// Most rows of a tile: at most [`Tile::rows`] of each weight that multiplies them.
    pub tile_rows: usize,
}

impl SortedPairs {
    /// Words of the list of tiles.
    pub fn tile_words(pairs: Pairs, tile_rows: usize) -> usize {
        4 * (1 + pairs.most_tiles(tile_rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_tiles_are_those_of_the_worst_choice() {
        for (rows, per_token, experts) in [(1, 2, 8), (5, 2, 3), (9, 1, 4), (40, 3, 5)] {
            let pairs = Pairs { rows, per_token, experts };
            for tile_rows in [1, 4, 8] {
                // As many experts as possible with one row more than whole tiles, the rest in one expert.
                let (mut left, mut tiles) = (pairs.count(), 0);
                for expert in 0..experts {
                    let of_expert = if expert + 1 < experts { left.min(1) } else { left };
                    tiles += of_expert.div_ceil(tile_rows);
                    left -= of_expert;
                }
                assert_eq!(pairs.most_tiles(tile_rows), tiles, "{pairs:?} in tiles of {tile_rows}");
            }
        }
    }
}
