//! A worker whose step times `skein` measured.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use skein_bench::engine::steps::{Limits, MeasuredWorker, StepTimes, Timed};

use super::fit::fit;
use super::step_time::StepTime;
use crate::failure::Failure;

/// A worker with measured step times.
#[derive(Debug)]
pub struct Machine {
    name: String,
    /// Limits of the worker.
    pub limits: Limits,
    /// Step time fitted to the measurement.
    pub step_time: StepTime,
    times: StepTimes,
}

impl Machine {
    /// Lets the `skein` beside this program measure the worker described by `arguments`, which are those of
    /// `skein bench latency`.
    ///
    /// # Errors
    /// If there is no such program, or it fails.
    pub fn measure(arguments: &[String]) -> Result<Self, Failure> {
        let skein = skein_beside(&std::env::current_exe().map_err(Failure::other)?);
        let mut command = Command::new(&skein);
        command.args(["bench", "step-times"]).args(arguments).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| {
            let place = skein.display();
            Failure::Other(format!("--measure starts {place}: {error}; build it with cargo build -p skein"))
        })?;
        if !output.status.success() {
            let code = output.status.code().and_then(|code| u8::try_from(code).ok());
            return Err(code
                .map_or_else(|| Failure::Other(format!("skein ended: {}", output.status)), Failure::Skein));
        }
        let measured: MeasuredWorker = serde_json::from_slice(&output.stdout).map_err(|error| {
            let place = skein.display();
            Failure::Other(format!(
                "{place} bench step-times printed something else: {error}; is it of this version?"
            ))
        })?;
        Ok(Self::of(measured))
    }

    fn of(MeasuredWorker { model: name, limits, times }: MeasuredWorker) -> Self {
        Self { name, limits, step_time: fit(&times.made_from), times }
    }

    /// Largest relative error at a held-out step.
    fn worst(&self) -> f64 {
        self.times.held_out.iter().map(|step| self.step_time.error(step).abs()).fold(0.0, f64::max)
    }

    /// The model of step times, and what was measured.
    pub fn table(&self) -> String {
        let StepTime { overhead, weights, row, context_token } = self.step_time;
        let mut out = format!(
            "{}: step time {:.3} ms + the longer of {:.3} ms and {:.4} ms a row, + {:.4} us a token of context\n\
             {:<12}{:>8}{:>10}{:>12}{:>12}{:>9}\n",
            self.name,
            overhead * 1e3,
            weights * 1e3,
            row * 1e3,
            context_token * 1e6,
            "",
            "rows",
            "context",
            "measured ms",
            "model ms",
            "error"
        );
        let mut lines = |what: &str, steps: &[Timed]| {
            for step in steps {
                let model = self.step_time.of(step.work).as_secs_f64();
                let (rows, context) = (step.work.rows, step.work.context);
                let (measured, error) = (step.seconds * 1e3, self.step_time.error(step) * 100.0);
                // Writing to a `String` cannot fail.
                let _ = writeln!(
                    out,
                    "{what:<12}{rows:>8}{context:>10}{measured:>12.3}{:>12.3}{error:>+8.1}%",
                    model * 1e3
                );
            }
        };
        lines("made from", &self.times.made_from);
        lines("held out", &self.times.held_out);
        out + "\n"
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        let step = |step: &Timed| {
            json!({
                "rows": step.work.rows, "context": step.work.context, "measured_s": step.seconds,
                "error": self.step_time.error(step),
            })
        };
        json!({
            "model": self.name,
            "made_from": self.times.made_from.iter().map(step).collect::<Vec<_>>(),
            "held_out": self.times.held_out.iter().map(step).collect::<Vec<_>>(),
            "worst_error": self.worst(),
        })
    }
}

fn skein_beside(program: &Path) -> PathBuf {
    program.with_file_name(format!("skein{}", std::env::consts::EXE_SUFFIX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skein_bench::engine::steps::measure;
    use skein_worker::backend::fake::{FakeBackend, FakeOptions, StepCost};
    use skein_worker::config::SchedulerConfig;
    use skein_worker::engine::Engine;
    use skein_worker::scheduler::Scheduler;

    use super::*;

    #[tokio::test]
    async fn a_worker_of_known_speed_is_measured_as_such() {
        let cost = StepCost {
            fixed: Duration::from_millis(4),
            per_row: Duration::from_micros(20),
            per_context_token: Duration::ZERO,
        };
        let backend = FakeBackend::new(FakeOptions { kv_blocks: 1024, cost, ..FakeOptions::default() });
        let scheduler = Scheduler::new(&SchedulerConfig::default(), 1024, 512);
        let (engine, handle) = Engine::new(scheduler, Box::new(backend), 64);
        let thread = std::thread::spawn(move || engine.run());
        let limits = Limits { max_num_seqs: 8, max_model_len: 512, kv_tokens: 16_384, vocab_size: 100 };
        let times = measure(&handle, &limits, |_| {}).await.expect("all requests end");
        let machine = Machine::of(MeasuredWorker { model: "fake".into(), limits, times });
        let alone = machine.step_time.alone(64);
        assert!((0.0039..1.0).contains(&alone), "{:?}", machine.step_time);
        let said = machine.table();
        assert!(said.starts_with("fake: step time ") && said.contains("held out"), "{said}");
        handle.stop().await;
        assert!(thread.join().is_ok_and(|ended| ended.is_ok()));
    }

    #[test]
    fn skein_is_looked_for_beside_this_program() {
        assert_eq!(skein_beside(Path::new("/x/release/skein-dev")).parent(), Some(Path::new("/x/release")));
    }
}
