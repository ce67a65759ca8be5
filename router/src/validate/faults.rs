//! Several faults of one request, reported together: otherwise the client needs a request for each.

use crate::refusal::Refusal;

/// Most faults that one refusal lists.
const MAX_TOLD: usize = 8;

/// The faults found so far.
#[derive(Debug, Default)]
pub struct Faults {
    found: Vec<Refusal>,
    /// How many more were found after [`MAX_TOLD`].
    more: usize,
}

impl Faults {
    /// Adds a fault.
    pub fn note(&mut self, fault: impl Into<Refusal>) {
        if self.found.len() < MAX_TOLD {
            self.found.push(fault.into());
        } else {
            self.more += 1;
        }
    }

    /// Whether a fault of the field `name` was found.
    pub fn has(&self, name: &str) -> bool {
        self.found.iter().any(|fault| fault.param() == Some(name))
    }

    /// Fields that the faults name.
    pub fn params(&self) -> impl Iterator<Item = &'static str> {
        self.found.iter().filter_map(Refusal::param)
    }

    /// Returns the value; for an error, adds the fault and returns the default, so that checking continues.
    pub fn value_of<T: Default>(&mut self, checked: Result<T, impl Into<Refusal>>) -> T {
        checked.unwrap_or_else(|fault| {
            self.note(fault);
            T::default()
        })
    }

    /// Combines all faults into one refusal, whose field is that of the first.
    pub fn check(self) -> Result<(), Refusal> {
        let more = self.more;
        let mut found = self.found.into_iter();
        let Some(first) = found.next() else { return Ok(()) };
        let Refusal::Invalid { param, mut message } = first else { return Err(first) };
        for fault in found {
            message.push(' ');
            message.push_str(&fault.to_string());
        }
        if more > 0 {
            message.push_str(&format!(" And {more} more."));
        }
        Err(Refusal::Invalid { param, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(count: usize) -> Result<(), String> {
        let mut faults = Faults::default();
        (1..=count).for_each(|at| faults.note(Refusal::invalid("n", format!("Fault {at}."))));
        faults.check().map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn several_faults_are_one_refusal_of_bounded_length() {
        assert_eq!(summary(0), Ok(()));
        assert_eq!(summary(1), Err("Fault 1.".to_owned()));
        assert_eq!(summary(2), Err("Fault 1. Fault 2.".to_owned()));
        assert!(summary(100).unwrap_err().ends_with("Fault 8. And 92 more."));
    }

    #[test]
    fn the_first_fault_names_the_field_and_a_value_that_is_refused_reads_as_its_default() {
        let mut faults = Faults::default();
        assert_eq!(faults.value_of::<u32>(Err(Refusal::invalid("a", "A."))), 0);
        assert_eq!(faults.value_of::<u32>(Ok::<_, Refusal>(7)), 7);
        faults.note(Refusal::invalid("b", "B."));
        assert_eq!(faults.check().unwrap_err().param(), Some("a"));
    }
}
