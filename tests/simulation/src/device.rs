//! A worker's device: the fake backend, which checks every batch, with a model of step times and with faults.
//! It never sleeps; the task that drives the engine waits for the time that the steps took.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_worker::backend::fake::{FakeBackend, FakeOptions, StepCost};
use skein_worker::backend::{
    Answer, Backend, BackendError, Batch, Sampled, StepHandle, StepOutput, WindowBlocks,
};
use skein_worker::config::SchedulerConfig;
use tokio::time::Instant;

use crate::model::LAST_STOP_TOKEN;
use crate::report::Log;

/// Injected faults of a device, and the simulated time that steps have not yet waited for.
#[derive(Debug)]
pub struct Device {
    /// Nanoseconds of the launched steps that nobody has waited for yet.
    owed: AtomicU64,
    /// Factor on the duration of steps.
    pub slowness: AtomicU32,
    /// Whether the next launch fails.
    pub fails: AtomicBool,
    stuck_until: Mutex<Option<Instant>>,
}

impl Default for Device {
    fn default() -> Self {
        let owed = AtomicU64::new(0);
        Self {
            owed,
            slowness: AtomicU32::new(1),
            fails: AtomicBool::new(false),
            stuck_until: Mutex::default(),
        }
    }
}

impl Device {
    /// Duration of the steps launched since the last call.
    pub fn take_time(&self) -> Duration {
        Duration::from_nanos(self.owed.swap(0, Ordering::Relaxed))
    }

    /// Keeps any step from finishing before `until`.
    pub fn stick(&self, until: Instant) {
        *self.stuck_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// Waits while the device is stuck.
    pub async fn unstuck(&self) {
        let until = *self.stuck_until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A fake backend with step times and faults.
pub struct SimulatedBackend {
    fake: FakeBackend,
    cost: StepCost,
    limits: SchedulerConfig,
    /// Whether its tokens differ from those of the other workers.
    other_weights: bool,
    device: Arc<Device>,
    log: Arc<Log>,
    host: &'static str,
}

impl SimulatedBackend {
    /// A backend that reports violations of `limits`; `cost` gives the duration of steps.
    pub fn new(
        host: &'static str,
        options: FakeOptions,
        limits: SchedulerConfig,
        other_weights: bool,
        device: Arc<Device>,
        log: Arc<Log>,
    ) -> Self {
        let cost = options.cost;
        let fake = FakeBackend::new(FakeOptions { cost: StepCost::default(), ..options });
        Self { fake, cost, limits, other_weights, device, log, host }
    }

    fn check_limits(&self, batch: &Batch) {
        let (rows, sequences) = (batch.tokens.len(), batch.sequences.len());
        let SchedulerConfig { max_num_batched_tokens, max_num_seqs, .. } = self.limits;
        if rows > max_num_batched_tokens as usize {
            self.log.violated(
                self.host,
                format_args!("a step of {rows} tokens, at most {max_num_batched_tokens}"),
            );
        }
        if sequences > max_num_seqs as usize {
            self.log
                .violated(self.host, format_args!("a step of {sequences} sequences, at most {max_num_seqs}"));
        }
    }
}

/// Changes a token as other weights would; false if it stays the same.
fn change(sampled: &mut Sampled) -> bool {
    let changes = sampled.token > LAST_STOP_TOKEN + 1;
    sampled.token -= u32::from(changes);
    changes
}

impl Backend for SimulatedBackend {
    fn kv_blocks(&self) -> u32 {
        self.fake.kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.fake.window_blocks()
    }

    fn state_slots(&self) -> Option<u32> {
        self.fake.state_slots()
    }

    fn steps_in_flight(&self) -> usize {
        // Only the fake knows the tokens that it carries from one step to the next, so other weights allow
        // one step.
        if self.other_weights { 1 } else { self.fake.steps_in_flight() }
    }

    fn verifies(&self) -> bool {
        self.fake.verifies()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        if self.device.fails.load(Ordering::Relaxed) {
            return Err(BackendError::Stopped { backend: "fake", reason: "the simulator breaks it".into() });
        }
        self.check_limits(&batch);
        let cost = self.cost.of(&batch) * self.device.slowness.load(Ordering::Relaxed);
        self.device.owed.fetch_add(cost.as_nanos() as u64, Ordering::Relaxed);
        self.fake.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let mut output = self.fake.collect(step)?;
        let accepted = |answer: &Answer| match answer {
            Answer::Verified(drawn) => (drawn.len() as u64).saturating_sub(1),
            _ => 0,
        };
        self.log.accepted(output.answers.iter().map(accepted).sum());
        if self.other_weights {
            // Stop tokens stay as they are, because min_tokens may forbid them.
            for answer in &mut output.answers {
                match answer {
                    Answer::Sampled(sampled) => {
                        change(sampled);
                    }
                    // Draws after a changed token were conditioned on another one.
                    Answer::Verified(drawn) => {
                        let changed = drawn.iter_mut().position(change);
                        drawn.truncate(changed.map_or(drawn.len(), |at| at + 1));
                    }
                    Answer::Undrawn | Answer::Scored(_) | Answer::Pooled(_) => {}
                }
            }
        }
        Ok(output)
    }
}
