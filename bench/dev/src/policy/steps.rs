//! State of a simulated worker that computes in steps, and the rates that it measures over them. What a
//! step does is in [`stepping`](super::stepping).

/// Tokens after which an observation has lost half its weight, as with a real worker.
const PREFILL_HALF_LIFE: f64 = 4096.0;
const DECODE_HALF_LIFE: f64 = 256.0;

/// A worker's steps.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The step that is computed now.
    pub now: Option<Step>,
    /// Requests with the tokens that their answers still need.
    pub answers: Vec<(usize, u32)>,
    prefill: Rate,
    decode: Rate,
}

/// A step.
#[derive(Debug)]
pub(super) struct Step {
    /// Its beginning, in nanoseconds.
    pub began: u64,
    /// Prompt tokens.
    pub chunk: u64,
}

/// Mean of tokens a second over the latest ones.
#[derive(Debug, Default)]
struct Rate {
    tokens: f64,
    seconds: f64,
}

impl Rate {
    fn observe(&mut self, tokens: f64, seconds: f64, half_life: f64) {
        let keep = 0.5_f64.powf(tokens / half_life);
        (self.tokens, self.seconds) = (self.tokens * keep + tokens, self.seconds * keep + seconds);
    }

    fn per_second(&self) -> f32 {
        if self.seconds > 0.0 { (self.tokens / self.seconds) as f32 } else { 0.0 }
    }
}

impl Steps {
    /// Whether a step is computed now.
    pub fn is_under_way(&self) -> bool {
        self.now.is_some()
    }

    /// Measured prefill and decode rates; 0 = not measured yet.
    pub fn rates(&self) -> (f32, f32) {
        (self.prefill.per_second(), self.decode.per_second())
    }

    /// Measures a step that ends now and was of this many answers.
    pub fn observe(&mut self, step: &Step, answers: usize, now: u64) {
        let (chunk, answers, seconds) = (step.chunk as f64, answers as f64, (now - step.began) as f64 / 1e9);
        if chunk > answers {
            self.prefill.observe(chunk + answers, seconds, PREFILL_HALF_LIFE);
        } else if chunk == 0.0 {
            self.decode.observe(answers, seconds, DECODE_HALF_LIFE);
        }
    }
}
