//! Strided rows: values, and the distance from the start of one row to the start of the next.

/// Rows that are read.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, T = f32> {
    /// All rows, with what lies between them.
    pub values: &'a [T],
    /// Values from a row's start to the next one's.
    pub stride: usize,
}

/// Rows that are written.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// All rows, with what lies between them.
    pub values: &'a mut [f32],
    /// Values from a row's start to the next one's.
    pub stride: usize,
}

/// The same place in several rows or panels, inside a kernel: the first one's, and the distance to the next.
#[derive(Clone, Copy)]
pub(super) struct Strided<T> {
    pub(super) at: *const T,
    /// In values of `T`.
    pub(super) apart: usize,
}
