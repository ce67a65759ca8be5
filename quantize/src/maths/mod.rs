//! The mathematics of quantisation, over plain slices: grids of codes, GPTQ, and the searches of AWQ. It
//! knows no files, tensors or models.
//!
//! A matrix is `[rows, cols]`, row by row: outputs by inputs. Results do not depend on the number of threads.

pub mod awq;
mod factor;
pub mod gptq;
pub mod grid;
#[cfg(test)]
mod tests;

use std::num::NonZero;

/// Threads to compute with.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Calls `work(index, part)` for each part of `each` values, on all threads.
pub fn for_each_part<T: Send>(values: &mut [T], each: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let parts: Vec<(usize, &mut [T])> = values.chunks_mut(each.max(1)).enumerate().collect();
    let queue = std::sync::Mutex::new(parts.into_iter());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while let Some((index, part)) = next() {
                    work(index, part);
                }
            });
        }
    });
}

/// Sums that are kept apart in a dot product, so that the compiler can use vectors.
const LANES: usize = 16;

/// Dot product of two slices of equal length.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Adds `factor * from` to `to`.
fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}
