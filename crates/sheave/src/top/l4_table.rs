//! The table of Services that the layer-4 data path of a node serves, and their endpoints: rates of what passed the
//! node.

use std::collections::HashMap;
use std::time::Duration;

use super::table::{
    LineStyle, RateCalculator, SortOrder, StatisticsTable, TableLine, rate, shortened,
};
use crate::check::pluralize;
use crate::l4_agent::{L4EndpointInfo, L4Overview, L4ServiceInfo, L4Traffic};

/// Services with their endpoints.
#[derive(Debug, PartialEq)]
pub(super) struct L4TrafficTable {
    services: Vec<(TrafficRow, Vec<TrafficRow>)>,
}

/// One port of a Service at one address, or one endpoint. Rates are per second.
#[derive(Clone, Debug, PartialEq)]
struct TrafficRow {
    name: String,
    connections: f64,
    packets: f64,
    bits: f64,
    place: String,
    state: &'static str,
}

impl StatisticsTable for L4TrafficTable {
    type Response = L4Overview;
    const PATH: &'static str = "/api/v1/l4";

    fn of(before: &L4Overview, now: &L4Overview, passed: Duration) -> Self {
        let known: HashMap<_, _> = before.services.iter().map(|it| (key(it), it)).collect();
        let rates = RateCalculator(passed.as_secs_f64());
        let rows = |it: &L4ServiceInfo| rates.service(known.get(&key(it)).copied(), it);
        Self { services: now.services.iter().map(rows).collect() }
    }

    fn size(&self) -> String {
        let endpoints = self.services.iter().map(|(_, endpoints)| endpoints.len()).sum();
        let ports = pluralize(self.services.len(), "port");
        format!("{ports}, {}", pluralize(endpoints, "endpoint"))
    }

    fn lines(&self, order: SortOrder, width: usize) -> Vec<TableLine> {
        let name_width = width.max(80) - COLUMNS_WIDTH;
        let mut services: Vec<_> = self.services.iter().collect();
        sort(order, &mut services, |it| &it.0);
        let mut lines = vec![heading(name_width)];
        for (service, endpoints) in services {
            lines.push(service.line(0, name_width, LineStyle::Backend));
            let mut endpoints: Vec<_> = endpoints.iter().collect();
            sort(order, &mut endpoints, |it| it);
            lines.extend(endpoints.into_iter().map(|it| it.line(2, name_width, LineStyle::Plain)));
        }
        lines
    }
}

fn key(service: &L4ServiceInfo) -> (&str, &str) {
    (&service.address, &service.protocol)
}

/// Sorts by name, or by packets, which are what all other orders mean here.
fn sort<T>(order: SortOrder, rows: &mut [&T], row: impl Fn(&T) -> &TrafficRow) {
    rows.sort_by(|a, b| {
        let (a, b) = (row(a), row(b));
        let most_packets = b.packets.total_cmp(&a.packets);
        let by_value = if order == SortOrder::Name { a.name.cmp(&b.name) } else { most_packets };
        by_value.then_with(|| a.name.cmp(&b.name))
    });
}

impl RateCalculator {
    fn service(
        &self,
        before: Option<&L4ServiceInfo>,
        now: &L4ServiceInfo,
    ) -> (TrafficRow, Vec<TrafficRow>) {
        let known: HashMap<&str, &L4EndpointInfo> = before.map_or_else(HashMap::new, |before| {
            before.endpoints.iter().map(|it| (&*it.address, it)).collect()
        });
        let endpoints = now.endpoints.iter().map(|it| {
            let before = known.get(&*it.address).map(|it| it.traffic);
            let (place, state) = (it.place.clone(), state(it));
            TrafficRow { place, state, ..self.traffic(it.address.clone(), before, it.traffic) }
        });
        let name = format!("{} {} {}", now.service, now.address, now.protocol);
        (self.traffic(name, before.map(|it| it.traffic), now.traffic), endpoints.collect())
    }

    fn traffic(&self, name: String, before: Option<L4Traffic>, now: L4Traffic) -> TrafficRow {
        let rate = |of: fn(L4Traffic) -> u64| self.rate(before.map(of), of(now));
        TrafficRow {
            name,
            connections: rate(|it| it.connections),
            packets: rate(|it| it.packets),
            bits: 8.0 * rate(|it| it.bytes),
            place: String::new(),
            state: "",
        }
    }
}

fn state(endpoint: &L4EndpointInfo) -> &'static str {
    match (endpoint.draining, endpoint.new_connections) {
        (true, _) => "draining",
        (false, true) => "serving",
        (false, false) => "unready",
    }
}

/// Width of all columns except the name.
const COLUMNS_WIDTH: usize = 8 + 10 + 8 + 15 + 9;

fn heading(name_width: usize) -> TableLine {
    let text = format!(
        "{:<name_width$}{:>8}{:>10}{:>8} {:>14} {:>8}",
        "SERVICE", "CONN/S", "PACKETS/S", "BIT/S", "PLACE", "STATE"
    );
    TableLine { text, style: LineStyle::Heading }
}

impl TrafficRow {
    fn line(&self, indent: usize, name_width: usize, otherwise: LineStyle) -> TableLine {
        let text = format!(
            "{:indent$}{:<width$}{:>8}{:>10}{:>8} {:>14} {:>8}",
            "",
            shortened(&self.name, name_width - indent),
            rate(self.connections),
            rate(self.packets),
            rate(self.bits),
            shortened(&self.place, 14),
            self.state,
            width = name_width - indent,
        );
        let is_well = matches!(self.state, "" | "serving");
        TableLine { text, style: if is_well { otherwise } else { LineStyle::Bad } }
    }
}

#[cfg(test)]
mod tests;
