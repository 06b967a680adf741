//! The table of backends and their endpoints: current values, and rates.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use super::table::{
    LineStyle, RateCalculator, SortOrder, StatisticsTable, TableLine, latency, rate, shortened,
};
use crate::admin::{BackendInfo, BackendsResponse, EndpointInfo};
use crate::check::pluralize;

/// Backends with their endpoints: current values, and rates.
#[derive(Debug, PartialEq)]
pub(super) struct BackendTable {
    backends: Vec<(TableRow, Vec<TableRow>)>,
}

/// One backend or endpoint; `None` if the value does not apply or is not known.
#[derive(Clone, Debug, Default, PartialEq)]
struct TableRow {
    name: String,
    requests: f64,
    in_flight: u64,
    slots: Option<u64>,
    waiting: Option<u64>,
    demand: Option<f64>,
    failures: f64,
    retries: Option<f64>,
    latency_seconds: Option<f64>,
    health: String,
}

impl StatisticsTable for BackendTable {
    type Response = BackendsResponse;
    const PATH: &'static str = "/api/v1/backends";

    fn of(before: &BackendsResponse, now: &BackendsResponse, passed: Duration) -> Self {
        let before: HashMap<&str, &BackendInfo> =
            before.backends.iter().map(|it| (it.name.as_str(), it)).collect();
        let rates = RateCalculator(passed.as_secs_f64());
        let row = |now: &BackendInfo| rates.backend(before.get(now.name.as_str()).copied(), now);
        Self { backends: now.backends.iter().map(row).collect() }
    }

    fn size(&self) -> String {
        let endpoints = self.backends.iter().map(|(_, endpoints)| endpoints.len()).sum();
        let backends = pluralize(self.backends.len(), "backend");
        format!("{backends}, {}", pluralize(endpoints, "endpoint"))
    }

    fn lines(&self, order: SortOrder, width: usize) -> Vec<TableLine> {
        let name_width = width.max(80) - COLUMNS_WIDTH;
        let mut backends: Vec<_> = self.backends.iter().collect();
        backends.sort_by(|(a, _), (b, _)| compare(order, a, b));
        let mut lines = vec![heading(name_width)];
        for (backend, endpoints) in backends {
            lines.push(backend.line(0, name_width, LineStyle::Backend));
            let mut endpoints: Vec<_> = endpoints.iter().collect();
            endpoints.sort_by(|a, b| compare(order, a, b));
            lines.extend(endpoints.into_iter().map(|it| it.line(2, name_width, LineStyle::Plain)));
        }
        lines
    }
}

impl RateCalculator {
    fn backend(
        &self,
        before: Option<&BackendInfo>,
        now: &BackendInfo,
    ) -> (TableRow, Vec<TableRow>) {
        let known: HashMap<_, _> = before.map_or_else(HashMap::new, |before| {
            before.endpoints.iter().map(|it| (it.address, it)).collect()
        });
        let endpoint = |it: &EndpointInfo| self.endpoint(known.get(&it.address).copied(), it);
        let endpoints: Vec<TableRow> = now.endpoints.iter().map(endpoint).collect();
        let slowest = endpoints.iter().filter_map(|it| it.latency_seconds);
        let row = TableRow {
            name: now.name.clone(),
            requests: endpoints.iter().map(|it| it.requests).sum(),
            in_flight: endpoints.iter().map(|it| it.in_flight).sum(),
            slots: endpoints.iter().map(|it| it.slots).sum(),
            waiting: Some(u64::from(now.queue_length)),
            demand: Some(now.demand.total),
            failures: endpoints.iter().map(|it| it.failures).sum(),
            retries: Some(self.rate(before.map(|it| it.retries), now.retries)),
            latency_seconds: slowest.max_by(f64::total_cmp),
            health: String::new(),
        };
        (row, endpoints)
    }

    fn endpoint(&self, before: Option<&EndpointInfo>, now: &EndpointInfo) -> TableRow {
        TableRow {
            name: now.address.to_string(),
            requests: self.rate(before.map(|it| it.requests), now.requests),
            in_flight: u64::from(now.in_flight),
            slots: now.limit.map(u64::from),
            failures: self.rate(before.map(|it| it.failures), now.failures),
            latency_seconds: now.latency_seconds,
            health: now.health.to_string(),
            ..TableRow::default()
        }
    }
}

fn compare(order: SortOrder, a: &TableRow, b: &TableRow) -> Ordering {
    let most = |of: fn(&TableRow) -> f64| of(b).total_cmp(&of(a));
    let by_value = match order {
        SortOrder::Requests => most(|row| row.requests),
        SortOrder::InFlight => b.in_flight.cmp(&a.in_flight),
        SortOrder::Queue => b.waiting.cmp(&a.waiting),
        SortOrder::Failures => most(|row| row.failures),
        SortOrder::Retries => most(|row| row.retries.unwrap_or_default()),
        SortOrder::Latency => most(|row| row.latency_seconds.unwrap_or_default()),
        SortOrder::Name => Ordering::Equal,
    };
    by_value.then_with(|| a.name.cmp(&b.name))
}

/// Width of all columns except the name.
const COLUMNS_WIDTH: usize = 6 + 10 + 6 + 7 + 7 + 8 + 8 + 11;

fn heading(name_width: usize) -> TableLine {
    let text = format!(
        "{:<name_width$}{:>6}{:>10}{:>6}{:>7}{:>7}{:>8}{:>8} {:>10}",
        "BACKEND",
        "REQ/S",
        "IN FLIGHT",
        "QUEUE",
        "DEMAND",
        "FAIL/S",
        "RETRY/S",
        "LATENCY",
        "HEALTH"
    );
    TableLine { text, style: LineStyle::Heading }
}

impl TableRow {
    fn line(&self, indent: usize, name_width: usize, otherwise: LineStyle) -> TableLine {
        let name = shortened(&self.name, name_width - indent);
        let in_flight = match self.slots {
            Some(slots) => format!("{}/{slots}", self.in_flight),
            None => self.in_flight.to_string(),
        };
        let waiting = self.waiting.map(|waiting| waiting.to_string()).unwrap_or_default();
        let demand = self.demand.map(rate).unwrap_or_default();
        let retries = self.retries.map(rate).unwrap_or_default();
        let latency = self.latency_seconds.map(latency).unwrap_or_default();
        let text = format!(
            "{:indent$}{name:<width$}{:>6}{in_flight:>10}{waiting:>6}{demand:>7}{:>7}{retries:>8}{latency:>8} {:>10}",
            "",
            rate(self.requests),
            rate(self.failures),
            self.health,
            width = name_width - indent,
        );
        TableLine { text, style: self.style(otherwise) }
    }

    fn style(&self, otherwise: LineStyle) -> LineStyle {
        let is_well = matches!(self.health.as_str(), "" | "serving");
        if self.failures > 0.0 || !is_well {
            LineStyle::Bad
        } else if self.waiting > Some(0) || self.slots.is_some_and(|slots| self.in_flight >= slots)
        {
            LineStyle::Full
        } else {
            otherwise
        }
    }
}

#[cfg(test)]
mod tests;
