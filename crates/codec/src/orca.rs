//! Load reports of endpoints in responses (ORCA, gRFC A51): `endpoint-load-metrics` in a header or in a gRPC trailer,
//! as `TEXT`, `JSON` or `BIN`; and `endpoint-load-metrics-bin`.
//!
//! An invalid report is an error as a whole. This module does not know what follows from a report.

use crate::head::FieldSection;

/// The three formats of a report.
mod form;

/// Longest report that is parsed.
const LONGEST_BYTES: usize = 8 * 1024;
/// Largest valid utilization; a thousand times full load is implausible.
const MOST_UTILIZATION: f64 = 1000.0;
/// Largest valid number of concurrent requests.
const MOST_IN_FLIGHT: f64 = 1_000_000.0;
/// Named metric with the number of concurrent requests that an endpoint wants.
const MAX_IN_FLIGHT: &str = "sheave_max_in_flight";

/// The values of a valid report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrcaLoadReport {
    /// Utilization of the application, else of its processors; `None` if absent.
    pub utilization: Option<f64>,
    /// Number of concurrent requests that the endpoint wants; `None` if absent.
    pub max_in_flight: Option<u32>,
}

/// Reason to ignore a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReportError {
    /// More than one report in a response.
    Several,
    /// Longer than 8 KiB.
    TooLong,
    /// In none of the formats.
    Malformed,
    /// A value is negative, not a number, or implausibly large.
    OutOfRange,
}

impl LoadReportError {
    pub const ALL: [Self; 4] = [Self::Several, Self::TooLong, Self::Malformed, Self::OutOfRange];

    /// Returns the metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Several => "several",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::OutOfRange => "out_of_range",
        }
    }
}

/// Returns the report in these fields; `None` if there is none.
pub fn report_in(fields: &FieldSection) -> Option<Result<OrcaLoadReport, LoadReportError>> {
    let mut found = fields.iter().filter_map(|(_, name, value)| {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let is_binary = is("endpoint-load-metrics-bin");
        (is_binary || is("endpoint-load-metrics")).then_some((is_binary, value))
    });
    let (is_binary, value) = found.next()?;
    if found.next().is_some() {
        return Some(Err(LoadReportError::Several));
    }
    Some(read(is_binary, value))
}

/// Parses the value of `endpoint-load-metrics-bin` if `is_binary`, else of `endpoint-load-metrics`.
fn read(is_binary: bool, value: &[u8]) -> Result<OrcaLoadReport, LoadReportError> {
    if value.len() > LONGEST_BYTES {
        return Err(LoadReportError::TooLong);
    }
    let raw = if is_binary { form::parse_binary(value) } else { form::parse_tagged(value) }?;
    raw.report()
}

/// The values of a report that this proxy uses. As in protobuf, 0 means absent.
#[derive(Debug, Default)]
struct RawLoadReport {
    application_utilization: f64,
    cpu_utilization: f64,
    max_in_flight: f64,
    /// True if another value is negative or not a number, so that the whole report is invalid.
    has_invalid_value: bool,
}

impl RawLoadReport {
    fn report(&self) -> Result<OrcaLoadReport, LoadReportError> {
        let within = |value: f64, most: f64| (0.0..=most).contains(&value);
        let is_sound = within(self.application_utilization, MOST_UTILIZATION)
            && within(self.cpu_utilization, MOST_UTILIZATION)
            && within(self.max_in_flight, MOST_IN_FLIGHT)
            && !self.has_invalid_value;
        if !is_sound {
            return Err(LoadReportError::OutOfRange);
        }
        let utilizations = [self.application_utilization, self.cpu_utilization];
        let utilization = utilizations.into_iter().find(|&utilization| utilization > 0.0);
        let max_in_flight = (self.max_in_flight >= 1.0).then_some(self.max_in_flight as u32);
        Ok(OrcaLoadReport { utilization, max_in_flight })
    }

    /// Sets a value by its name in the message definition; `named` is true for an entry of `named_metrics`.
    fn set(&mut self, name: &str, named: bool, value: f64) {
        match (named, name) {
            (false, "application_utilization") => self.application_utilization = value,
            (false, "cpu_utilization") => self.cpu_utilization = value,
            (true, MAX_IN_FLIGHT) => {
                self.max_in_flight = value;
                self.has_invalid_value |= value < 1.0;
            }
            // The endpoint alone defines the meaning of other named metrics.
            (true, _) => {}
            (false, _) => self.has_invalid_value |= !value.is_finite() || value < 0.0,
        }
    }
}

#[cfg(test)]
mod tests;
