//! Tests of the table built from two API responses.

use clap::ValueEnum;
use serde_json::json;

use super::*;

fn endpoint(address: &str, in_flight: u32, requests: u64, failures: u64) -> serde_json::Value {
    json!({
        "address": address, "weight": 1, "health": "serving", "latency_seconds": 0.0123,
        "in_flight": in_flight, "limit": 4, "limit_reason": "fixed", "idle_connections": 0, "requests": requests, "failures": failures,
    })
}

fn backend(name: &str, waiting: u32, endpoints: Vec<serde_json::Value>) -> serde_json::Value {
    json!({
        "name": name, "namespace": "default", "service": "web", "port": 80,
        "algorithm": "LeastLoad", "max_in_flight_per_endpoint": 4, "auto_limit": false, "queue_max_requests": 8,
        "queue_timeout_seconds": 1.0, "queue_length": waiting, "panicking": false, "retries": 0,
        "demand": { "total": 4.25, "in_flight": 2.5, "queued": 1.25, "rejected": 0.5 },
        "service_time_seconds": 0.34,
        "endpoints": endpoints,
    })
}

fn backends(backends: &[serde_json::Value]) -> BackendsResponse {
    serde_json::from_value(json!({ "backends": backends })).unwrap()
}

/// Returns a table of two backends, with two seconds between the responses.
fn table() -> BackendTable {
    let look = |first: u64, second: u64| {
        let web = vec![
            endpoint("10.0.0.1:8080", 4, first, 0),
            endpoint("10.0.0.2:8080", 1, second, second / 10),
        ];
        let api = vec![endpoint("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:8080", 0, 7, 0)];
        backends(&[backend("default/web:80", 3, web), backend("default/api:80", 0, api)])
    };
    BackendTable::of(&look(100, 50), &look(300, 90), Duration::from_secs(2))
}

fn text(lines: &[TableLine]) -> String {
    lines.iter().map(|line| format!("{}\n", line.text.trim_end())).collect()
}

#[test]
fn rates_are_differences_and_the_table_fits_80_columns() {
    let lines = table().lines(SortOrder::Requests, 80);
    assert_eq!(
        text(&lines),
        "\
BACKEND           REQ/S IN FLIGHT QUEUE DEMAND FAIL/S RETRY/S LATENCY     HEALTH
default/web:80      120       5/8     3    4.2    2.0       0   12 ms
  10.0.0.1:8080     100       4/4                   0           12 ms    serving
  10.0.0.2:8080    20.0       1/4                 2.0           12 ms    serving
default/api:80        0       0/4     0    4.2      0       0   12 ms
  [2001:d…f]:8080     0       0/4                   0           12 ms    serving
"
    );
    let tones: Vec<LineStyle> = lines.iter().map(|line| line.style).collect();
    use LineStyle::{Backend, Bad, Full, Heading, Plain};
    assert_eq!(tones, [Heading, Bad, Full, Bad, Backend, Plain]);
}

#[test]
fn backends_are_sorted_by_the_selected_column() {
    let names = |order| {
        let lines = table().lines(order, 80);
        let backends = lines.iter().filter(|line| line.text.starts_with("default"));
        backends.map(|line| line.text[..14].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(SortOrder::Name), ["default/api:80", "default/web:80"]);
    for order in [SortOrder::Requests, SortOrder::InFlight, SortOrder::Queue, SortOrder::Failures] {
        assert_eq!(names(order), ["default/web:80", "default/api:80"], "{order:?}");
    }
    let keys = ['r', 'i', 'w', 'f', 't', 'l', 'n'];
    let orders: Vec<_> = keys.into_iter().filter_map(SortOrder::of_key).collect();
    assert_eq!(orders, SortOrder::value_variants());
}

#[test]
fn new_or_reset_counters_give_plausible_rates() {
    let look = |requests| {
        backends(&[backend("default/web:80", 0, vec![endpoint("10.0.0.1:80", 0, requests, 0)])])
    };
    let second = Duration::from_secs(1);
    let rate = |table: BackendTable| table.backends[0].0.requests;
    assert_eq!(rate(BackendTable::of(&look(100), &look(5), second)), 5.0);
    assert_eq!(rate(BackendTable::of(&backends(&[]), &look(100), second)), 0.0);
}

#[test]
fn numbers_are_abbreviated() {
    let rates = [0.04, 99.94, 100.0, 9999.0, 12_345.0, 2.5e6].map(rate);
    assert_eq!(rates, ["0.0", "99.9", "100", "9999", "12.3k", "2.5M"]);
    let latencies = [0.000_25, 0.0042, 0.25, 12.0].map(latency);
    assert_eq!(latencies, ["250 us", "4.2 ms", "250 ms", "12.0 s"]);
}
