//! Keys and values of all layers that attend: in one cache, or in two if the layers with a window have blocks
//! apart or keys of another size. Layers with a state have it in a third one. A layer that reads the keys and
//! values of another has that one's place.

use std::io;

use skein_kernels::cpu::kv_cache::{KvCache, KvShape};
use skein_kernels::cpu::recurrent::StateCache;

use crate::kv_blocks::WindowBlocks;
use crate::spec::{AttentionSpec, LayerSpec, Spec};
use crate::state_spec::Mixer;

/// The caches of a model's layers.
pub struct Caches {
    /// Layers without a window, or all.
    main: KvCache,
    windowed: Option<KvCache>,
    /// Whether the layers with a window have blocks apart.
    is_apart: bool,
    states: Option<StateCache>,
    /// Place of each layer; empty if all are in the main cache, in order.
    places: Vec<Place>,
}

/// Cache of a layer, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub is_windowed: bool,
    /// Number in that cache, or among the states.
    pub layer: usize,
}

/// Shapes of the main cache and of that for layers with a window, of a model whose layers that attend would
/// all have `shape`.
pub fn shapes(spec: &Spec, shape: KvShape, windows: Option<WindowBlocks>) -> (KvShape, Option<KvShape>) {
    if windows.is_none() && spec.windowed_attention.is_none() {
        return (shape, None);
    }
    let AttentionSpec { kv_heads, head_dim, .. } =
        *spec.windowed_attention.as_ref().unwrap_or(&spec.attention);
    let blocks = windows.map_or(shape.blocks, |windows| windows.blocks as usize);
    let windowed = KvShape { layers: spec.windowed_layers(), blocks, kv_heads, head_dim, ..shape };
    (KvShape { layers: shape.layers - windowed.layers, ..shape }, Some(windowed))
}

impl From<KvCache> for Caches {
    fn from(main: KvCache) -> Self {
        Self { main, windowed: None, is_apart: false, states: None, places: Vec::new() }
    }
}

/// Bytes of the states of a sequence; 0 for models without states.
pub fn state_slot_bytes(spec: &Spec) -> u64 {
    spec.state.map_or(0, |state| StateCache::slot_bytes(&state.shape(), spec.state_layers()))
}

impl Caches {
    /// Empty caches of [`shapes`], and states of `state_slots` sequences if the model has states.
    ///
    /// # Errors
    /// If there is not enough address space.
    pub fn new(
        spec: &Spec,
        shape: KvShape,
        windows: Option<WindowBlocks>,
        state_slots: u32,
    ) -> io::Result<Self> {
        let (main, windowed) = shapes(spec, shape, windows);
        let main = KvCache::new(main)?;
        let windowed = windowed.map(KvCache::new).transpose()?;
        let states = spec
            .state
            .map(|state| StateCache::new(state.shape(), spec.state_layers(), state_slots as usize))
            .transpose()?;
        let all_have_own = spec.layers.iter().all(LayerSpec::has_memory);
        if windowed.is_none() && states.is_none() && all_have_own {
            return Ok(main.into());
        }
        let (mut counts, mut places) = ([0; 3], Vec::with_capacity(spec.layers.len()));
        let mut place = |layer: &LayerSpec| {
            let is_windowed = windowed.is_some() && layer.window.is_some();
            let count = &mut counts[match layer.mixer {
                Mixer::Attention => usize::from(is_windowed),
                Mixer::State => 2,
                Mixer::None => return Place { is_windowed: false, layer: 0 }, // never asked for
            }];
            *count += 1;
            Place { is_windowed, layer: *count - 1 }
        };
        for layer in &spec.layers {
            places.push(layer.cache_of.map_or_else(|| place(layer), |of| places[of]));
        }
        Ok(Self { main, windowed, is_apart: windows.is_some(), states, places })
    }

    /// Copies a block that holds all layers, or all without a window if those with one have blocks apart.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        self.main.copy_block(from, to);
        if let Some(windowed) = self.windowed.as_mut().filter(|_| !self.is_apart) {
            windowed.copy_block(from, to);
        }
    }

    /// Copies a block of the layers with a window, if they have blocks apart.
    pub fn copy_window_block(&mut self, from: usize, to: usize) {
        if let Some(windowed) = self.windowed.as_mut().filter(|_| self.is_apart) {
            windowed.copy_block(from, to);
        }
    }

    /// The states, if the model has any.
    pub fn states(&mut self) -> Option<&mut StateCache> {
        self.states.as_mut()
    }

    /// Number of blocks in the main cache.
    pub fn blocks(&self) -> u32 {
        self.main.shape().blocks as u32
    }

    /// Size of the keys and values, in bytes.
    pub fn kv_bytes(&self) -> u64 {
        self.main.bytes() + self.windowed.as_ref().map_or(0, KvCache::bytes)
    }

    /// Size of the states, in bytes.
    pub fn state_bytes(&self) -> u64 {
        self.states.as_ref().map_or(0, StateCache::bytes)
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
