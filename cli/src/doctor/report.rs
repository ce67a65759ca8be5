//! What the checks found, and how it is printed.

use serde_json::{Value, json};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, and will surprise.
    Warn,
    /// Does not work.
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Heading under which it is printed.
    pub area: &'static str,
    /// What was looked at.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing.
    pub fix: String,
}

/// All checks, in the order in which they ran.
#[derive(Debug, Default)]
pub struct Report {
    checks: Vec<Check>,
    area: &'static str,
}

impl Report {
    /// Starts a heading.
    pub fn begin(&mut self, area: &'static str) {
        self.area = area;
    }

    /// Records that `name` is as it should be.
    pub fn ok(&mut self, name: &str, found: impl Into<String>) {
        self.add(name, Status::Ok, found.into(), String::new());
    }

    /// Records that `name` works, and what about it will surprise.
    pub fn warn(&mut self, name: &str, found: impl Into<String>, fix: impl Into<String>) {
        self.add(name, Status::Warn, found.into(), fix.into());
    }

    /// Records that `name` does not work.
    pub fn fail(&mut self, name: &str, found: impl Into<String>, fix: impl Into<String>) {
        self.add(name, Status::Fail, found.into(), fix.into());
    }

    fn add(&mut self, name: &str, status: Status, found: String, fix: String) {
        self.checks.push(Check { area: self.area, name: name.to_owned(), status, found, fix });
    }

    /// Number of checks that ended so.
    pub fn count(&self, status: Status) -> usize {
        self.checks.iter().filter(|check| check.status == status).count()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        let mut area = "";
        for check in &self.checks {
            if check.area != area {
                area = check.area;
                text += &format!("{}{area}\n", if text.is_empty() { "" } else { "\n" });
            }
            let indent = width + 10;
            let found = check.found.trim_end().replace('\n', &format!("\n{:indent$}", ""));
            text += &format!("  {:<4}  {:<width$}  {found}\n", check.status.name(), check.name);
            if !check.fix.is_empty() {
                text += &format!("{:indent$}-> {}\n", "", check.fix);
            }
        }
        text
    }

    /// One sentence about the whole.
    pub fn summary(&self) -> String {
        let plural =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let (failed, warned) = (self.count(Status::Fail), self.count(Status::Warn));
        match (failed, warned) {
            (0, 0) => format!("No problem found in {}.", plural(self.checks.len(), "check")),
            (0, _) => format!("No problem found; {}.", plural(warned, "warning")),
            _ => format!("{}, {}.", plural(failed, "problem"), plural(warned, "warning")),
        }
    }

    /// The report for programs.
    pub fn json(&self) -> Value {
        let check = |check: &Check| {
            json!({"area": check.area, "name": check.name, "status": check.status.name(), "found": check.found,
                "fix": Some(&check.fix).filter(|fix| !fix.is_empty())})
        };
        json!({
            "healthy": self.count(Status::Fail) == 0,
            "failed": self.count(Status::Fail),
            "warnings": self.count(Status::Warn),
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
        })
    }
}

/// Bytes as people read them.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("TiB", 40), ("GiB", 30), ("MiB", 20)];
    let found = UNITS.iter().find(|(_, bits)| bytes >= 1 << bits);
    found.map_or_else(
        || format!("{} KiB", bytes >> 10),
        |(name, bits)| format!("{:.1} {name}", bytes as f64 / (1_u64 << bits) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_as_a_list_with_the_fix_under_what_is_wrong() {
        let mut report = Report::default();
        report.begin("this machine");
        report.ok("memory", "7.8 GiB");
        report.begin("settings");
        report.fail("port", "8000 is in use\nby nginx", "choose another with --port");
        let expected = "this machine\n  ok    memory  7.8 GiB\n\nsettings\n  fail  port    8000 is in use\n                by nginx\n                -> choose another with --port\n";
        assert_eq!((report.text().as_str(), report.summary().as_str()), (expected, "1 problem, 0 warnings."));
        let json = report.json();
        assert_eq!((&json["healthy"], &json["failed"]), (&json!(false), &json!(1)));
        assert_eq!(json["checks"][0]["fix"], Value::Null);
    }

    #[test]
    fn sizes_have_one_digit_behind_the_point() {
        for (bytes, expected) in [(512 << 10, "512 KiB"), (3 << 29, "1.5 GiB"), (64 << 20, "64.0 MiB")] {
            assert_eq!(size(bytes), expected);
        }
    }
}
