//! The speed of the kernels.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use skein_kernel_check::bench::{self, Ceilings, Measured};
use skein_kernels::cuda::{CudaError, Device};

use super::options::CheckOptions;

/// Measures the kernels and prints a table, row by row. Efficiencies are relative to the device's limits,
/// measured in the same run.
pub(super) fn run(
    device: &Arc<Device>,
    options: &CheckOptions,
    report: &mut Map<String, Value>,
) -> Result<(), CudaError> {
    // Printed as they are measured: a run that is stopped has said what it knows.
    let print_head: fn(Ceilings) = if options.as_json { |_| {} } else { |it| out!("{}", head(it)) };
    let print_row = if options.as_json { |_: Ceilings, _: &Measured| {} } else { print_row };
    let (ceilings, measured) = bench::run(device, options.scale, &options.only, print_head, print_row)?;
    let rows = measured.iter().map(|it| {
        json!({"name": it.name, "us": it.seconds * 1e6, "bytes": it.bytes, "operations": it.operations,
            "of_reading": it.bytes / it.seconds / ceilings.read_bytes_per_second,
            "of_matmul": ceilings.flops_per_second.map(|flops| it.operations / it.seconds / flops)})
    });
    let rows: Vec<Value> = rows.collect();
    let value = json!({"read_bytes_per_second": ceilings.read_bytes_per_second,
        "flops_per_second": ceilings.flops_per_second, "operations": rows});
    report.insert("bench".into(), value);
    Ok(())
}

fn print_row(ceilings: Ceilings, measured: &Measured) {
    out!("{}", row(ceilings, measured));
}

fn head(ceilings: Ceilings) -> String {
    format!(
        "measured in this run: reading {:.1} GB/s, multiplying {}\n\n{:<64}{:>10}{:>12}{:>9}{:>12}{:>9}{:>11}\n",
        ceilings.read_bytes_per_second / 1e9,
        ceilings.flops_per_second.map_or("unknown, no cuBLASLt".to_owned(), |flops| tera(flops) + " TFLOP/s"),
        "operation",
        "us",
        "bytes",
        "GB/s",
        "of reading",
        "TFLOP/s",
        "of matmul",
    )
}

fn row(ceilings: Ceilings, it: &Measured) -> String {
    let (bandwidth, rate) = (it.bytes / it.seconds, it.operations / it.seconds);
    let of_reading = 100.0 * bandwidth / ceilings.read_bytes_per_second;
    let multiplied = match (it.operations > 0.0, ceilings.flops_per_second) {
        (false, _) => String::new(),
        (true, None) => format!("{:>9}", tera(rate)),
        (true, Some(flops)) => format!("{:>9}{:>10.1}%", tera(rate), 100.0 * rate / flops),
    };
    format!(
        "{:<64}{:>10.1}{:>12.0}{:>9.1}{:>11.1}%{multiplied}\n",
        it.name,
        it.seconds * 1e6,
        it.bytes,
        bandwidth / 1e9,
        of_reading
    )
}

fn tera(rate: f64) -> String {
    format!("{:.1}", rate / 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_same_run() {
        let ceilings = Ceilings { read_bytes_per_second: 4e12, flops_per_second: Some(8e14) };
        let of =
            |name: &str, operations| Measured { name: name.into(), seconds: 1e-6, bytes: 2e6, operations };
        let table = row(ceilings, &of("gemv", 2e8)) + &row(ceilings, &of("norm", 0.0));
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
        assert!(
            line("gemv").ends_with("1.0     2000000   2000.0       50.0%    200.0      25.0%"),
            "{table}"
        );
        assert!(line("norm").ends_with("1.0     2000000   2000.0       50.0%"), "{table}");
    }
}
