//! Tests of the table built from two responses of `sheave l4`.

use serde_json::json;

use super::*;

fn overview(packets: u64) -> L4Overview {
    let traffic = |number: u64, place: &str, draining: bool| {
        json!({
            "address": format!("10.0.0.{number}:8080"), "place": place, "draining": draining,
            "new_connections": !draining, "packets": number * packets, "bytes": 1000 * packets, "connections": packets / 10,
        })
    };
    serde_json::from_value(json!({
        "addresses": {}, "nodes": {}, "not_served": [], "problems": [],
        "services": [{
            "service": "shop/web", "address": "192.0.2.65:443", "protocol": "tcp",
            "packets": 3 * packets, "bytes": 2000 * packets, "connections": packets / 5,
            "endpoints": [traffic(1, "local", true), traffic(2, "node-b", false)],
        }],
    }))
    .unwrap()
}

#[test]
fn rates_are_differences_and_the_table_fits_80_columns() {
    let table = L4TrafficTable::of(&overview(100), &overview(1100), Duration::from_secs(2));
    assert_eq!(table.size(), "1 port, 2 endpoints");
    let lines = table.lines(SortOrder::Requests, 80);
    let text: String = lines.iter().map(|it| format!("{}\n", it.text.trim_end())).collect();
    assert_eq!(
        text,
        "\
SERVICE                         CONN/S PACKETS/S   BIT/S          PLACE    STATE
shop/web 192.0.2.65:443 tcp        100      1500    8.0M
  10.0.0.2:8080                   50.0      1000    4.0M         node-b  serving
  10.0.0.1:8080                   50.0       500    4.0M          local draining
"
    );
    assert!(lines.iter().all(|it| it.text.chars().count() <= 80));
    assert_eq!(lines[3].style, LineStyle::Bad);
}

#[test]
fn new_service_has_no_rate_yet() {
    let empty = L4Overview::default();
    let table = L4TrafficTable::of(&empty, &overview(1100), Duration::from_secs(2));
    assert_eq!(table.services[0].0.packets.to_bits(), 0);
}
