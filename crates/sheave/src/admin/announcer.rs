//! `/metrics` of `sheave announce`: the state of its BGP sessions.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bgp::{PeerReport, SessionState};
use proxy::observe::{MetricReader, MetricRow};
use tokio::sync::watch::Receiver;
use tokio::task::AbortHandle;

use super::exposition::{ExpositionFormat, ExpositionWriter};
use super::{BoundedListener, start};

/// Metrics of each router. To add a metric, add a row.
pub(super) static ANNOUNCER_METRICS: &[MetricRow<Vec<PeerReport>>] = &[
    MetricRow::new(
        "sheave_bgp_session_up",
        &["peer"],
        MetricReader::Gauges(|peers, each| {
            for peer in peers {
                let is_up = peer.state == SessionState::Established;
                each(&peer.name, f64::from(u8::from(is_up)));
            }
        }),
        "1 if the session with the router is established, else 0.",
    ),
    MetricRow::new(
        "sheave_bgp_routes_announced",
        &["peer"],
        MetricReader::Gauges(|peers, each| {
            peers.iter().for_each(|peer| each(&peer.name, peer.routes as f64));
        }),
        "Routes that the router has been told by this node.",
    ),
    MetricRow::new(
        "sheave_bgp_sessions_established",
        &["peer"],
        MetricReader::Counts(|peers, each| {
            peers.iter().for_each(|peer| each(&peer.name, peer.counts.established));
        }),
        "Sessions that came up.",
    ),
    MetricRow::new(
        "sheave_bgp_session_failures",
        &["peer"],
        MetricReader::Counts(|peers, each| {
            peers.iter().for_each(|peer| each(&peer.name, peer.counts.failures));
        }),
        "Sessions and connection attempts that ended with an error; the log says which.",
    ),
    MetricRow::new(
        "sheave_bgp_updates_sent",
        &["peer"],
        MetricReader::Counts(|peers, each| {
            peers.iter().for_each(|peer| each(&peer.name, peer.counts.updates_sent));
        }),
        "UPDATE messages sent to the router.",
    ),
    MetricRow::new(
        "sheave_bgp_updates_discarded",
        &["peer"],
        MetricReader::Counts(|peers, each| {
            peers.iter().for_each(|peer| each(&peer.name, peer.counts.updates_discarded));
        }),
        "UPDATE messages of the router, which are discarded: no route is accepted.",
    ),
];

/// Serves the metrics until the returned task is aborted.
pub(crate) fn serve_announcer_metrics(
    listener: BoundedListener,
    reports: Receiver<Vec<PeerReport>>,
) -> AbortHandle {
    let router = Router::new().route("/metrics", get(metrics)).with_state(reports);
    start(listener, router, "metrics")
}

async fn metrics(State(reports): State<Receiver<Vec<PeerReport>>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::negotiate(&accept.collect::<Vec<_>>().join(","));
    let text = render(&reports.borrow(), format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

fn render(reports: &Vec<PeerReport>, format: ExpositionFormat) -> String {
    let mut exposition = ExpositionWriter::new(format);
    for row in ANNOUNCER_METRICS {
        row.visit(reports, &[], &mut |sample| exposition.add(&sample));
    }
    exposition.finish()
}
