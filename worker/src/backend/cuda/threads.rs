//! The backend's two threads: one launches steps, one waits for them. The engine's thread makes no CUDA call,
//! so if the driver hangs, the engine notices and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::stopped;
use super::gaps::StepGaps;
use super::graphs::CaptureProgress;
use super::stage::steps_in_flight;
use crate::backend::{Alarm, Backend, BackendError, Batch, KvBlocks, StepHandle, StepOutput, WindowBlocks};

/// Extra wait beyond the step's timeout, because the waiting thread's own error is more specific.
const GRACE: Duration = Duration::from_secs(1);
/// Idle time after which spare work is done.
const SPARE_TIME: Duration = Duration::from_millis(5);
/// Steps without a pause after which spare work is done anyway.
const STEPS_WITHOUT_SPARE_TIME: u32 = 16;

/// Launches steps on a device. Owned by the launching thread.
pub(super) trait Launcher: Send {
    /// A step in flight.
    type Launched: InFlight;
    /// Binds the calling thread to the device.
    fn bind(&self) -> Result<(), BackendError>;
    /// Queues a step and returns before it is done.
    fn launch(&mut self, batch: &Batch) -> Result<Self::Launched, BackendError>;
    /// Does some work that serving does not wait for; false once none is left.
    fn use_spare_time(&mut self) -> Result<bool, BackendError>;
}

/// A launched step.
pub(super) trait InFlight: Send {
    /// Binds the calling thread to the device.
    fn bind(&self) -> Result<(), BackendError>;
    /// Waits for it and reads its results.
    fn finish(self) -> Result<StepOutput, BackendError>;
}

/// A backend over a `Launcher` and its two threads.
pub struct CudaBackend {
    kv_blocks: KvBlocks,
    stages: usize,
    launched: u64,
    collected: u64,
    step_timeout: Duration,
    /// `None` while dropping, which ends the threads in turn.
    steps: Option<SyncSender<Batch>>,
    outputs: Receiver<Result<StepOutput, BackendError>>,
    /// Output of the oldest step in flight, if it has arrived but was not collected.
    early: Option<Result<StepOutput, BackendError>>,
    threads: Vec<JoinHandle<()>>,
    failed: bool,
    bell: Arc<Bell>,
    graphs: Arc<CaptureProgress>,
    gaps: Option<Arc<StepGaps>>,
    verifies: bool,
}

impl CudaBackend {
    /// Decode sizes that replay a captured graph so far; the others run kernel by kernel.
    pub fn captured_graphs(&self) -> usize {
        self.graphs.captured()
    }

    /// The first error of a capture: since then graphs are captured without overlapping launches, or no more.
    pub fn capture_refusal(&self) -> Option<&str> {
        self.graphs.refusal()
    }

    /// Idle times of the device between steps, if [`crate::config::CudaConfig::times_gaps`].
    pub fn gaps(&self) -> Option<Arc<StepGaps>> {
        self.gaps.clone()
    }

    /// Sets whether it verifies drafts.
    pub(super) fn verifying(mut self, verifies: bool) -> Self {
        self.verifies = verifies;
        self
    }

    pub(super) fn with_gaps(mut self, gaps: Option<Arc<StepGaps>>) -> Self {
        self.gaps = gaps;
        self
    }

    /// Starts the threads over `launcher`, which has one of `stages` pipeline stages.
    pub(super) fn start<L: Launcher + 'static>(
        launcher: L,
        kv_blocks: KvBlocks,
        stages: usize,
        step_timeout: Duration,
        graphs: Arc<CaptureProgress>,
    ) -> std::io::Result<Self> {
        let most = steps_in_flight(stages);
        let (steps, inbox) = sync_channel(most);
        let (launched, in_flight) = sync_channel(most);
        let (outbox, outputs) = sync_channel(most);
        let bell = Arc::<Bell>::default();
        let rung = Arc::clone(&bell);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let threads = vec![
            thread("skein-cuda-0").spawn(move || launch_steps(launcher, &inbox, &launched))?,
            thread("skein-cuda-0-wait").spawn(move || finish_steps(&in_flight, &outbox, &rung))?,
        ];
        let steps = Some(steps);
        Ok(Self {
            kv_blocks,
            stages,
            launched: 0,
            collected: 0,
            step_timeout,
            steps,
            outputs,
            early: None,
            threads,
            failed: false,
            bell,
            graphs,
            gaps: None,
            verifies: false,
        })
    }

    fn gone(&mut self) -> BackendError {
        self.failed = true;
        stopped("its thread has ended")
    }
}

/// Reports, once, that the threads have ended with an error.
#[derive(Default)]
struct Bell(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    has_rung: bool,
    alarm: Option<Alarm>,
}

impl Bell {
    fn ring(&self) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.has_rung = true;
        let alarm = ring.alarm.take();
        drop(ring);
        alarm.into_iter().for_each(|alarm| alarm());
    }

    /// Calls `alarm` when the bell rings, or now if it has rung.
    fn connect(&self, alarm: Alarm) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.alarm = Some(alarm);
        if ring.has_rung {
            drop(ring);
            self.ring();
        }
    }
}

impl Backend for CudaBackend {
    fn kv_blocks(&self) -> u32 {
        self.kv_blocks.blocks
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.kv_blocks.window
    }

    fn steps_in_flight(&self) -> usize {
        steps_in_flight(self.stages)
    }

    fn stages(&self) -> usize {
        self.stages
    }

    fn verifies(&self) -> bool {
        self.verifies
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let sent = self.steps.as_ref().is_some_and(|steps| steps.send(batch).is_ok());
        if !sent {
            // The error that ended the thread, if it could report one.
            let last = self.outputs.try_iter().find_map(Result::err);
            self.failed = true;
            return Err(last.unwrap_or_else(|| self.gone()));
        }
        self.launched += 1;
        Ok(StepHandle(self.launched))
    }

    fn collect(&mut self, _step: StepHandle) -> Result<StepOutput, BackendError> {
        // Each stage may first have a step to compute; each of them notices by itself if its device hangs.
        let limit = self.step_timeout.saturating_mul(self.stages as u32) + GRACE;
        let come = self.early.take().map_or_else(|| self.outputs.recv_timeout(limit), Ok);
        let output = match come {
            Ok(output) => output,
            Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
            Err(RecvTimeoutError::Timeout) => Err(stopped(&format!(
                "a step did not end within {:?} (--step-timeout): a call to the driver hangs",
                self.step_timeout.saturating_mul(self.stages as u32)
            ))),
        };
        self.collected += 1;
        self.failed |= output.is_err();
        output
    }

    fn has_ended(&mut self) -> Option<bool> {
        if self.early.is_none() {
            self.early = match self.outputs.try_recv() {
                Ok(output) => Some(output),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Some(true), // collect says so
            };
        }
        Some(self.early.is_some())
    }

    fn on_failure(&mut self, alarm: Alarm) {
        self.bell.connect(alarm);
    }

    fn health(&mut self) -> Result<(), BackendError> {
        if self.launched != self.collected {
            return Ok(()); // collect reports it
        }
        match self.outputs.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(self.gone()),
            Ok(Ok(_)) => unreachable!("an output belongs to a step in flight"),
            Ok(Err(error)) => {
                self.failed = true;
                Err(error)
            }
        }
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        drop(self.steps.take());
        self.failed |= self.outputs.try_iter().any(|output| output.is_err());
        if self.failed {
            return; // a thread may hang in the driver; it ends with the process
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panics were caught
        }
    }
}

/// The launching thread.
fn launch_steps<L: Launcher>(
    mut launcher: L,
    inbox: &Receiver<Batch>,
    launched: &SyncSender<Result<L::Launched, BackendError>>,
) {
    let outcome = caught(|| {
        launcher.bind()?;
        let (mut has_more_work, mut steps_since) = (true, 0);
        loop {
            let received = if has_more_work {
                inbox.recv_timeout(SPARE_TIME)
            } else {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match received {
                Ok(batch) => {
                    if launched.send(Ok(launcher.launch(&batch)?)).is_err() {
                        return Ok(()); // the waiting thread has reported why
                    }
                    steps_since += 1;
                }
                Err(RecvTimeoutError::Timeout) => steps_since = STEPS_WITHOUT_SPARE_TIME,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if has_more_work && steps_since >= STEPS_WITHOUT_SPARE_TIME {
                (has_more_work, steps_since) = (launcher.use_spare_time()?, 0);
            }
        }
    });
    if let Err(error) = outcome {
        // Leaked until the process ends, because freeing it would wait for the device.
        std::mem::forget(launcher);
        // If the waiting thread is gone, it has reported why.
        let _ = launched.send(Err(error));
    }
}

/// The waiting thread.
fn finish_steps<S: InFlight>(
    in_flight: &Receiver<Result<S, BackendError>>,
    outbox: &SyncSender<Result<StepOutput, BackendError>>,
    bell: &Bell,
) {
    let outcome = caught(|| {
        let mut is_bound = false;
        for step in in_flight {
            let step = step?;
            if !std::mem::replace(&mut is_bound, true) {
                step.bind()?;
            }
            if outbox.send(Ok(step.finish()?)).is_err() {
                break;
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        // If the engine is gone, nobody needs the error.
        let _ = outbox.send(Err(error));
        bell.ring();
    }
}

/// Runs `work` and turns a panic into an error with its message.
fn caught(work: impl FnOnce() -> Result<(), BackendError>) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(stopped(text.unwrap_or("its thread panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Answer;

    /// Answers with one sample for each row, or misbehaves as its first token says.
    struct Scripted;
    struct Scripts(u32, usize);
    const HANGS: u32 = 1;
    const FAILS: u32 = 2;
    const PANICS: u32 = 3;
    const FAILS_TO_LAUNCH: u32 = 4;

    impl Launcher for Scripted {
        type Launched = Scripts;
        fn bind(&self) -> Result<(), BackendError> {
            Ok(())
        }
        fn launch(&mut self, batch: &Batch) -> Result<Scripts, BackendError> {
            match batch.tokens[0] {
                FAILS_TO_LAUNCH => Err(stopped("no launch")),
                script => Ok(Scripts(script, batch.tokens.len())),
            }
        }
        fn use_spare_time(&mut self) -> Result<bool, BackendError> {
            Ok(false)
        }
    }

    impl InFlight for Scripts {
        fn bind(&self) -> Result<(), BackendError> {
            Ok(())
        }
        fn finish(self) -> Result<StepOutput, BackendError> {
            match self.0 {
                HANGS => std::thread::park(),
                FAILS => return Err(stopped("illegal address")),
                PANICS => panic!("a broken invariant"),
                _ => {}
            }
            let sampled = Answer::Sampled(crate::backend::Sampled { token: 7, logprobs: None });
            Ok(StepOutput { answers: vec![sampled; self.1] })
        }
    }

    fn batch(script: u32, rows: usize) -> Batch {
        Batch { tokens: vec![script; rows], ..Batch::default() }
    }

    #[test]
    fn two_steps_are_in_flight_and_end_in_order() {
        let mut backend =
            CudaBackend::start(Scripted, 5.into(), 1, Duration::from_secs(20), Arc::default()).unwrap();
        let first = backend.launch(batch(0, 3)).unwrap();
        let second = backend.launch(batch(0, 1)).unwrap();
        while backend.has_ended() == Some(false) {
            std::thread::yield_now();
        }
        assert_eq!((backend.has_ended(), backend.collect(first).unwrap().answers.len()), (Some(true), 3));
        assert_eq!(backend.collect(second).unwrap().answers.len(), 1);
        assert_eq!((backend.kv_blocks(), backend.steps_in_flight()), (5, 2));
    }

    #[test]
    fn errors_are_reported_and_a_hang_is_noticed() {
        for (script, said) in [
            (FAILS, "illegal address"),
            (PANICS, "a broken invariant"),
            (FAILS_TO_LAUNCH, "no launch"),
            (HANGS, "did not end within 10ms (--step-timeout)"),
        ] {
            let mut backend =
                CudaBackend::start(Scripted, 5.into(), 1, Duration::from_millis(10), Arc::default()).unwrap();
            let step = backend.launch(batch(script, 1)).unwrap();
            let error = backend.collect(step).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("cuda"), "{error}");
            drop(backend); // does not wait for a thread that hangs
        }
    }
}
