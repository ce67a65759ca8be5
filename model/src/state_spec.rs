//! Sizes of layers that keep a recurrent state instead of keys and values.

use skein_kernels::cpu::recurrent::{
    ConvolutionShape, DeltaShape, KeyedDeltaShape, StateShape, StateSpaceShape,
};

/// What mixes the tokens of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Attention over cached keys and values.
    Attention,
    /// A recurrent state of fixed size, as [`StateSpec`] says.
    State,
    /// Nothing: the layer has only a feed-forward network.
    None,
}

/// The states of a model, all of one kind. Ranks divide a state into its units: a rank has some of them with
/// all that belongs to each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StateSpec {
    /// A gated delta network. Units are its key heads.
    Delta(DeltaSpec),
    /// The same with a decay for each dimension of a key. Units are its heads.
    KeyedDelta(KeyedDeltaSpec),
    /// A state space. Units are its groups of heads.
    Space(SpaceSpec),
    /// A gated short convolution. Units are its channels.
    Convolution(ConvolutionSpec),
}

/// A gated delta network (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464) as in Qwen3-Next: queries, keys
/// and values pass a short convolution, and a state of each value head is decayed and corrected by each
/// token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`. Consecutive ones share a key head.
    pub value_heads: usize,
    /// Values of a query or key.
    pub key_dim: usize,
    /// Values of a value.
    pub value_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub taps: usize,
    /// How checkpoints store it.
    pub stored: StoredState,
}

/// Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692): a gated delta network whose decays, and gates of
/// outputs, are projected from vectors as wide as a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedDeltaSpec {
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Values of a query, key or value, and of the vectors from which decays and gates are projected.
    pub head_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub taps: usize,
    /// Whether the rate of decay is stored, negated, instead of its logarithm.
    pub has_negative_rates: bool,
}

/// Mamba-2, a state space model (Dao & Gu 2024, arXiv 2405.21060): `x`, `B` and `C` pass a short convolution,
/// and a state of each head decays with the time that a token takes and adds the product of its `x` and `B`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpaceSpec {
    /// Groups of heads that share `B` and `C`, and are normalised together.
    pub groups: usize,
    /// Heads; a multiple of `groups`. Consecutive ones are in one group.
    pub heads: usize,
    /// Values of `B` and of `C`.
    pub state_dim: usize,
    /// Values of a head's `x`.
    pub head_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub taps: usize,
    /// Whether the convolution has biases.
    pub has_taps_bias: bool,
    /// Least and most time that a token takes.
    pub time_limits: (f32, f32),
    /// Added to the mean square in the norm of outputs.
    pub eps: f32,
    /// Whether the checkpoint stores the rate of decay, negated, instead of its logarithm.
    pub has_negative_rates: bool,
}

/// A gated short convolution as in LFM2 (Liquid AI 2025, arXiv 2511.23404): the output of a row is
/// `C * convolution(B * x)`, and its state is what the convolution has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionSpec {
    /// Convolved values of a row.
    pub channels: usize,
    /// Positions that the convolution sees, its own included.
    pub taps: usize,
    /// Whether the convolution and both projections have biases.
    pub has_bias: bool,
}

/// How a checkpoint stores the tensors of a gated delta network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredState {
    /// Whether one tensor has `[q | k | v | z]` of the first key head, then of the second.
    pub has_grouped_inputs: bool,
    /// Whether one tensor has `[b | a]` of the first key head, then of the second.
    pub has_grouped_rates: bool,
    /// Whether the first value head of each key head comes first, then the second of each. Otherwise those of
    /// one key head are consecutive.
    pub is_tiled: bool,
    /// Whether the rate of decay is stored, negated, instead of its logarithm.
    pub has_negative_rates: bool,
}

impl StateSpec {
    /// Number of units.
    pub fn units(&self) -> usize {
        match self {
            Self::Delta(delta) => delta.key_heads,
            Self::KeyedDelta(delta) => delta.heads,
            Self::Space(space) => space.groups,
            Self::Convolution(convolution) => convolution.channels,
        }
    }

    /// What a unit is, for messages.
    pub fn unit_name(&self) -> &'static str {
        match self {
            Self::Delta(_) => "key heads",
            Self::KeyedDelta(_) => "heads",
            Self::Space(_) => "groups of heads",
            Self::Convolution(_) => "channels",
        }
    }

    /// The part with this many units.
    pub fn with_units(self, units: usize) -> Self {
        match self {
            Self::Delta(delta) => {
                Self::Delta(DeltaSpec { key_heads: units, value_heads: units * delta.group(), ..delta })
            }
            Self::KeyedDelta(delta) => Self::KeyedDelta(KeyedDeltaSpec { heads: units, ..delta }),
            Self::Space(space) => {
                Self::Space(SpaceSpec { groups: units, heads: units * space.heads_of_group(), ..space })
            }
            Self::Convolution(convolution) => {
                Self::Convolution(ConvolutionSpec { channels: units, ..convolution })
            }
        }
    }

    /// Values of a unit's output: the output projection is divided at multiples of it.
    pub fn output_unit(&self) -> usize {
        match self {
            Self::Delta(delta) => delta.group() * delta.value_dim,
            Self::KeyedDelta(delta) => delta.head_dim,
            Self::Space(space) => space.heads_of_group() * space.head_dim,
            Self::Convolution(_) => 1,
        }
    }

    /// Width of a row's output before the output projection.
    pub fn value_width(&self) -> usize {
        self.units() * self.output_unit()
    }

    /// Positions that the convolution sees, its own included.
    pub fn taps(&self) -> usize {
        match self {
            Self::Delta(DeltaSpec { taps, .. })
            | Self::KeyedDelta(KeyedDeltaSpec { taps, .. })
            | Self::Space(SpaceSpec { taps, .. })
            | Self::Convolution(ConvolutionSpec { taps, .. }) => *taps,
        }
    }

    /// Convolved values of a row.
    pub fn channels(&self) -> usize {
        self.channel_runs().iter().map(|each| each * self.units()).sum()
    }

    /// Channels of a unit in each run of the convolved values: a run has those of all units in order.
    pub fn channel_runs(&self) -> Vec<usize> {
        match self {
            Self::Delta(delta) => vec![delta.key_dim, delta.key_dim, self.output_unit()],
            Self::KeyedDelta(delta) => vec![delta.head_dim; 3],
            Self::Space(space) => vec![self.output_unit(), space.state_dim, space.state_dim],
            Self::Convolution(_) => vec![1],
        }
    }

    /// Whether the checkpoint has the units of a tensor in one piece each, so that ranks can divide them.
    pub fn is_divisible(&self) -> bool {
        match self {
            Self::Delta(delta) => delta.stored_order(0, 1).is_none(),
            Self::KeyedDelta(_) | Self::Space(_) | Self::Convolution(_) => true,
        }
    }

    /// Width of a row of all projections.
    pub fn width(&self) -> usize {
        self.shape().width()
    }

    /// The same sizes for the kernels.
    pub fn shape(&self) -> StateShape {
        match *self {
            Self::Delta(DeltaSpec { key_heads, value_heads, key_dim, value_dim, taps, .. }) => {
                DeltaShape { key_heads, value_heads, key_dim, value_dim, taps }.into()
            }
            Self::KeyedDelta(KeyedDeltaSpec { heads, head_dim, taps, .. }) => {
                KeyedDeltaShape { heads, key_dim: head_dim, value_dim: head_dim, taps }.into()
            }
            Self::Space(SpaceSpec { groups, heads, state_dim, head_dim, taps, .. }) => {
                StateSpaceShape { groups, heads, state_dim, head_dim, taps }.into()
            }
            Self::Convolution(ConvolutionSpec { channels, taps, .. }) => {
                ConvolutionShape { channels, taps }.into()
            }
        }
    }
}

impl SpaceSpec {
    /// Heads of a group.
    pub fn heads_of_group(&self) -> usize {
        self.heads / self.groups
    }
}

impl DeltaSpec {
    /// Value heads of a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Width of a row's queries, and of its keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of a row's values.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Index in the checkpoint of each of `each` values of every value head, which lie behind `before`
    /// others; `None` if the order is the same.
    pub fn stored_order(&self, before: usize, each: usize) -> Option<Vec<usize>> {
        let (heads, group) = (self.key_heads, self.group());
        let stored = |head: usize| head % group * heads + head / group;
        let index = |i: usize| before + stored(i / each) * each + i % each;
        let is_other = self.stored.is_tiled && heads > 1 && group > 1;
        is_other.then(|| (0..before).chain((0..self.value_heads * each).map(index)).collect())
    }
}
