//! What a draw is given besides the logits.

/// A request's sampling parameters, in the layout that the device reads.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Controls {
    /// 0 = greedy.
    pub temperature: f32,
    /// Keep the fewest tokens that have this probability together; 1 = all.
    pub top_p: f32,
    /// Keep this many tokens; 0 = all.
    pub top_k: u32,
    /// Keep tokens at least this probable relative to the most probable one; 0 = all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that have occurred (as in CTRL, Keskar et
    /// al. 2019); 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens that occurred in the output.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each occurrence in the output.
    pub frequency_penalty: f32,
}

impl Controls {
    /// Greedy decoding without penalties.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
    };
}

/// All inputs of a draw besides the logits. Values are finite; requests are validated where they enter.
#[derive(Debug, Clone, Copy)]
pub struct Sampling<'a> {
    /// Temperature, cuts and penalties.
    pub controls: Controls,
    /// Added to these tokens' logits. Tokens outside the vocabulary are ignored.
    pub logit_bias: &'a [(u32, f32)],
    /// If one of these tokens has a finite logit, only they can be drawn; empty = no restriction.
    pub allowed: &'a [u32],
    /// Tokens that are only drawn if no other can be.
    pub forbidden: &'a [u32],
    /// Banned sequences. The last token of each is forbidden if the output ends with the tokens before it.
    pub bad_words: &'a [Vec<u32>],
    /// Tokens so far, prompt first. Needed only by penalties and by banned sequences of several tokens.
    pub history: &'a [u32],
    /// Number of prompt tokens at the start of `history`.
    pub prompt_len: usize,
    /// Key of the random stream.
    pub seed: u64,
    /// Index of the sample if a request has several.
    pub sample_index: u32,
    /// Absolute position of the token to draw.
    pub position: u32,
}

impl Sampling<'_> {
    /// Tokens that would complete a banned sequence.
    pub fn ends_of_bad_words(&self) -> impl Iterator<Item = u32> {
        let output = self.history.get(self.prompt_len..).unwrap_or_default();
        let ends = self.bad_words.iter().filter_map(|word| word.split_last());
        ends.filter(move |(_, before)| output.ends_with(before)).map(|(last, _)| *last)
    }

    /// Whether the logits are used unchanged.
    pub(super) fn is_plain(&self) -> bool {
        self.allowed.is_empty()
            && self.logit_bias.is_empty()
            && self.forbidden.is_empty()
            && self.bad_words.is_empty()
            && self.history.is_empty()
    }
}
