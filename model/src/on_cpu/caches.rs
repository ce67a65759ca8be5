//! Keys and values of all layers: in one cache, or in two if the layers with a window have blocks apart.

use std::io;

use skein_kernels::cpu::kv_cache::{KvCache, KvShape};

use crate::kv_blocks::WindowBlocks;
use crate::spec::Spec;

/// The caches of a model's layers.
pub struct Caches {
    /// Layers without a window, or all.
    main: KvCache,
    windowed: Option<KvCache>,
    /// Place of each layer; empty if all are in the main cache, in order.
    places: Vec<Place>,
}

/// Cache of a layer, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub is_windowed: bool,
    pub layer: usize,
}

/// Shapes of the main cache and of that for layers with a window, of a model whose layers would all have
/// `shape`.
pub fn shapes(spec: &Spec, shape: KvShape, windows: Option<WindowBlocks>) -> (KvShape, Option<KvShape>) {
    let Some(WindowBlocks { blocks, .. }) = windows else { return (shape, None) };
    let windowed = KvShape { layers: spec.windowed_layers(), blocks: blocks as usize, ..shape };
    (KvShape { layers: shape.layers - windowed.layers, ..shape }, Some(windowed))
}

impl From<KvCache> for Caches {
    fn from(main: KvCache) -> Self {
        Self { main, windowed: None, places: Vec::new() }
    }
}

impl Caches {
    /// Empty caches of [`shapes`].
    ///
    /// # Errors
    /// If there is not enough address space.
    pub fn new(spec: &Spec, shape: KvShape, windows: Option<WindowBlocks>) -> io::Result<Self> {
        let (main, windowed) = shapes(spec, shape, windows);
        let main = KvCache::new(main)?;
        let Some(windowed) = windowed else { return Ok(main.into()) };
        let mut counts = [0; 2];
        let place = |is_windowed: bool| {
            let count = &mut counts[usize::from(is_windowed)];
            *count += 1;
            Place { is_windowed, layer: *count - 1 }
        };
        let places = spec.layers.iter().map(|layer| layer.window.is_some()).map(place).collect();
        Ok(Self { main, windowed: Some(KvCache::new(windowed)?), places })
    }

    /// The cache without window blocks.
    pub fn main(&mut self) -> &mut KvCache {
        &mut self.main
    }

    /// The cache of window blocks.
    pub fn windowed(&mut self) -> Option<&mut KvCache> {
        self.windowed.as_mut()
    }

    /// Number of blocks in the main cache.
    pub fn blocks(&self) -> u32 {
        self.main.shape().blocks as u32
    }

    /// Size of both, in bytes.
    pub fn bytes(&self) -> u64 {
        self.main.bytes() + self.windowed.as_ref().map_or(0, KvCache::bytes)
    }

    pub(super) fn place(&self, layer: usize) -> Place {
        self.places.get(layer).copied().unwrap_or(Place { is_windowed: false, layer })
    }

    pub(super) fn at(&mut self, place: Place) -> &mut KvCache {
        match &mut self.windowed {
            Some(windowed) if place.is_windowed => windowed,
            _ => &mut self.main,
        }
    }
}
