//! What endpoints say of their load with a response (ORCA, gRFC A51): `endpoint-load-metrics` in a header, or in a
//! trailer of gRPC, as `TEXT`, `JSON` or `BIN`; and `endpoint-load-metrics-bin`.
//!
//! It is read only where limits are learned. What is of no use is ignored and counted, and so is all that is said with
//! it. The fields go on to the client as they are.

use balance::ConcurrencyCap;
use balance::limit::EndpointLoadReport;

use crate::backend::Slot;
use crate::clock;
use crate::exchange::RequestPolicy;
use crate::head::FieldSection;
use crate::worker::Worker;

/// The three ways of writing a report.
mod form;

/// A report that is longer is not read.
const LONGEST_BYTES: usize = 8 * 1024;
/// Nobody does a thousand times as much as they can.
const MOST_UTILIZATION: f64 = 1000.0;
/// The most requests at once that an endpoint may name.
const MOST_IN_FLIGHT: f64 = 1_000_000.0;
/// The named metric by which an endpoint says how many requests at once it wants to have.
pub const MAX_IN_FLIGHT: &str = "sheave_max_in_flight";

/// Why a report is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReportError {
    /// There are several in one response.
    Several,
    /// It is longer than 8 KiB.
    TooLong,
    /// It is not written in any of the forms.
    Malformed,
    /// A value is negative, no number, or beyond what can be.
    OutOfRange,
}

impl LoadReportError {
    pub(crate) const ALL: [Self; 4] =
        [Self::Several, Self::TooLong, Self::Malformed, Self::OutOfRange];

    /// The label in metrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Several => "several",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::OutOfRange => "out_of_range",
        }
    }
}

/// Takes note of what these fields of a response, or its trailers, say.
pub(crate) fn record_load_report(
    worker: &Worker,
    slot: &Slot,
    terms: &RequestPolicy<'_>,
    fields: &FieldSection,
) {
    if terms.backend_config.limits.cap != ConcurrencyCap::Learned {
        return;
    }
    let Some(read) = report_in(fields) else { return };
    let counters = &slot.endpoint.data.counters[worker.index];
    let report = match read {
        Ok(report) => report,
        Err(ignored) => return counters.load_reports_ignored[ignored as usize].add(1),
    };
    counters.load_reports.add(1);
    let now = clock::now();
    slot.endpoint.limit_counters.report(&report, slot.in_flight_at_start, now);
    if report.utilization.is_some_and(|utilization| utilization > 1.0) {
        slot.endpoint.record_overload(slot.in_flight_at_start, now);
        slot.backend.adaptive_limits.mark_overloaded(worker);
    }
}

/// The report in these fields; `None`: there is none.
fn report_in(fields: &FieldSection) -> Option<Result<EndpointLoadReport, LoadReportError>> {
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

/// Reads the value of `endpoint-load-metrics-bin` if `is_binary`, else that of `endpoint-load-metrics`.
pub fn read(is_binary: bool, value: &[u8]) -> Result<EndpointLoadReport, LoadReportError> {
    if value.len() > LONGEST_BYTES {
        return Err(LoadReportError::TooLong);
    }
    let said = if is_binary { form::parse_binary(value) } else { form::parse_tagged(value) }?;
    said.report()
}

/// What a report may say, as far as anybody here wants to know. In protobuf 0 is nothing.
#[derive(Debug, Default)]
struct RawLoadReport {
    application_utilization: f64,
    cpu_utilization: f64,
    max_in_flight: f64,
    /// Something else is negative or no number, so that nothing of it is to be believed.
    has_invalid_value: bool,
}

impl RawLoadReport {
    fn report(&self) -> Result<EndpointLoadReport, LoadReportError> {
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
        Ok(EndpointLoadReport { utilization, max_in_flight })
    }

    /// A value by its name in the definition of the message; `named`: it is one of `named_metrics`.
    fn set(&mut self, name: &str, named: bool, value: f64) {
        match (named, name) {
            (false, "application_utilization") => self.application_utilization = value,
            (false, "cpu_utilization") => self.cpu_utilization = value,
            (true, MAX_IN_FLIGHT) => {
                self.max_in_flight = value;
                self.has_invalid_value |= value < 1.0;
            }
            // Named metrics mean what their endpoint wants them to.
            (true, _) => {}
            (false, _) => self.has_invalid_value |= !value.is_finite() || value < 0.0,
        }
    }
}

#[cfg(test)]
mod tests;
