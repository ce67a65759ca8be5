//! Reads what a router exports in Prometheus' text format: the few gauges that tell its state.

/// The samples of a scrape.
pub struct Scrape {
    samples: Vec<Sample>,
}

struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Scrape {
    /// Reads `text`; lines that are no samples are passed over.
    pub fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self { samples: lines.filter_map(sample).collect() }
    }

    /// Value of the metric `name`, of which there is one sample.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
    }

    /// Versions of the program.
    pub fn versions(&self) -> Vec<String> {
        self.labels_where("skein_build_info", "version", |_| true)
    }

    /// What `label` says in each sample of `name` whose value is `wanted`.
    pub fn labels_where(&self, name: &str, label: &str, wanted: impl Fn(f64) -> bool) -> Vec<String> {
        let samples = self.samples.iter().filter(|sample| sample.name == name && wanted(sample.value));
        let label_of =
            |sample: &Sample| sample.labels.iter().find(|(key, _)| key == label).map(|it| it.1.clone());
        samples.filter_map(label_of).collect()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some(Sample { name: series.to_owned(), labels: Vec::new(), value });
    };
    let labels = labels.strip_suffix('}')?.split("\",").filter_map(|pair| {
        let (key, text) = pair.split_once("=\"")?;
        Some((key.trim().to_owned(), text.trim_end_matches('"').to_owned()))
    });
    Some(Sample { name: name.to_owned(), labels: labels.collect(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_and_labels_are_read() {
        let scrape = Scrape::of(
            "# TYPE skein_workers gauge\nskein_workers{model_name=\"m\"} 2\nskein_build_info{version=\"0.1.0\"} 1\n\
             skein_worker_ready{worker=\"10.0.0.1:9000\"} 1\nskein_worker_ready{worker=\"10.0.0.2:9000\",zone=\"a,b\"} 0\nnonsense\n",
        );
        assert_eq!(scrape.value("skein_workers"), Some(2.0));
        assert_eq!(scrape.versions(), ["0.1.0"]);
        let away = scrape.labels_where("skein_worker_ready", "worker", |value| value == 0.0);
        assert_eq!(away, ["10.0.0.2:9000"]);
        assert_eq!(Scrape::of("").value("skein_workers"), None);
    }
}
