//! `--device`: the backend and the device it uses.

use skein_node::config::one_of;
use skein_worker::config::BackendKind;

/// `--device`: a backend, and a device number if one was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Which backend computes.
    pub kind: BackendKind,
    /// N of `cuda:N`.
    pub ordinal: Option<u32>,
}

impl DeviceChoice {
    /// Parses the flag's value.
    ///
    /// # Errors
    /// A message with the valid values.
    pub fn parse(given: &str) -> Result<Self, String> {
        let kinds = [
            ("auto", BackendKind::Auto),
            ("cpu", BackendKind::Cpu),
            ("cuda", BackendKind::Cuda),
            ("cuda:N", BackendKind::Cuda),
            ("fake", BackendKind::Fake),
        ];
        if let Some(ordinal) = given.trim().strip_prefix("cuda:").and_then(|number| number.parse().ok()) {
            return Ok(Self { kind: BackendKind::Cuda, ordinal: Some(ordinal) });
        }
        one_of(&kinds)(given).map(|kind| Self { kind, ordinal: None })
    }

    /// The text that [`DeviceChoice::parse`] reads back.
    pub fn text(&self) -> String {
        match (self.kind, self.ordinal) {
            (BackendKind::Auto, _) => "auto".into(),
            (BackendKind::Cpu, _) => "cpu".into(),
            (BackendKind::Fake, _) => "fake".into(),
            (BackendKind::Cuda, None) => "cuda".into(),
            (BackendKind::Cuda, Some(ordinal)) => format!("cuda:{ordinal}"),
        }
    }
}
