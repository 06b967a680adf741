//! Metrics of replicas that lease slots to one another.

use std::sync::atomic::{AtomicU64, Ordering};

use proxy::leases::LeaseRefusal;
use proxy::limit::LimitRefusal;
use proxy::observe::{MetricReader, MetricRow};
use proxy::token_buckets::TokenRefusal;
use proxy::{KeyRefusal, ReportRefusal};
use replica::{ChannelCounts, RefusalReason};

use super::lease_status::ReplicaStatus;

/// The metrics. A process that leases no slots has none of them.
pub(crate) static REPLICA_METRICS: &[MetricRow<ReplicaStatus>] = &[
    MetricRow::new(
        "sheave_replica_peers_connected",
        &[],
        MetricReader::Gauge(|it| {
            let peers = it.channel().map(|channel| channel.peer_states()).unwrap_or_default();
            peers.iter().filter(|peer| peer.connected_for.is_some()).count() as f64
        }),
        "Replicas to which a connection is open.",
    ),
    MetricRow::new(
        "sheave_replica_peers",
        &[],
        MetricReader::Gauge(|it| {
            it.channel().map_or(0, |channel| channel.peer_states().len()) as f64
        }),
        "Other replicas. Those without a connection have failed, or are cut off.",
    ),
    MetricRow::new(
        "sheave_replica_certificate_expiry_timestamp_seconds",
        &[],
        MetricReader::Gauge(|it| it.certificates().expiry.unwrap_or_default() as f64),
        "Expiry time of this replica's own certificate, in seconds since the Unix epoch; 0 if it has none.",
    ),
    MetricRow::new(
        "sheave_replica_certificate_problem",
        &[],
        MetricReader::Gauge(|it| f64::from(u8::from(it.certificates().problem.is_some()))),
        "1 if the newest certificates of replicas cannot be used, and former ones are; `/api/v1/replicas` says why.",
    ),
    MetricRow::new(
        "sheave_replica_messages",
        &["direction"],
        MetricReader::Counts(|it, each| {
            if let Some(counts) = counts(it) {
                each("sent", read(&counts.messages_sent));
                each("received", read(&counts.messages_received));
            }
        }),
        "Messages exchanged with other replicas.",
    ),
    MetricRow::new(
        "sheave_replica_bytes",
        &["direction"],
        MetricReader::Counts(|it, each| {
            if let Some(counts) = counts(it) {
                each("sent", read(&counts.bytes_sent));
                each("received", read(&counts.bytes_received));
            }
        }),
        "Bytes of messages exchanged with other replicas, without TLS.",
    ),
    MetricRow::new(
        "sheave_replica_messages_replaced",
        &[],
        MetricReader::Count(|it| counts(it).map_or(0, |counts| read(&counts.messages_replaced))),
        "Messages that a newer one has replaced before they were sent: the peer reads slowly, or is not connected.",
    ),
    MetricRow::new(
        "sheave_replica_refusals",
        &["reason"],
        MetricReader::Counts(|it, each| {
            let leases = it.leases().counts.refused;
            for (refusal, count) in LeaseRefusal::ALL.iter().zip(leases) {
                each(&format!("lease_{}", refusal.name()), count);
            }
            for (refusal, count) in ReportRefusal::ALL.iter().zip(it.reports().refused) {
                each(&format!("report_{}", refusal.name()), count);
            }
            for (refusal, count) in LimitRefusal::ALL.iter().zip(it.limits().refused) {
                each(&format!("limits_{}", refusal.name()), count);
            }
            for (refusal, count) in KeyRefusal::ALL.iter().zip(it.ticket_keys().refused) {
                each(&format!("ticket_keys_{}", refusal.name()), count);
            }
            for (refusal, count) in TokenRefusal::ALL.iter().zip(it.token_refusals()) {
                each(&format!("tokens_{}", refusal.name()), count);
            }
            if let Some(counts) = counts(it) {
                for reason in RefusalReason::ALL {
                    each(reason.name(), counts.refused(reason));
                }
            }
        }),
        "Connections and messages of other replicas that were refused, by reason; lease_...: by the table of leases; \
         limits_...: about learned limits; tokens_...: about rate limits; report_...: reports about backends and endpoints; \
         ticket_keys_...: keys of session tickets.",
    ),
    MetricRow::new(
        "sheave_replica_reports",
        &["kind"],
        MetricReader::Counts(|it, each| {
            each("demand", it.reports().demand);
            each("refusal", it.reports().refusals);
            each("outage", it.reports().outages);
            each("ejection", it.reports().ejections);
        }),
        "Reports of other replicas that were taken, by kind: the demand for a backend, an endpoint that refuses, an \
         endpoint that a replica cannot reach, which is then checked, and an endpoint that a replica has ejected, whose \
         failures then count sooner.",
    ),
    MetricRow::new(
        "sheave_replica_limit_peers",
        &[],
        MetricReader::Gauge(|it| it.limits().peers_heard as f64),
        "Replicas with which this one learns limits (`maxInFlightPerEndpoint: auto`) together now.",
    ),
    MetricRow::new(
        "sheave_replica_ticket_keys",
        &[],
        MetricReader::Gauge(|it| it.ticket_keys().keys as f64),
        "Keys that open TLS session tickets here. Replicas with a channel have the same ones; this one may have one more, \
         from its start.",
    ),
    MetricRow::new(
        "sheave_replica_slots",
        &["state"],
        MetricReader::Gauges(|it, each| {
            let status = it.leases();
            each("held", status.held as f64);
            each("lent", status.lent as f64);
            each("borrowed", status.borrowed as f64);
        }),
        "Slots of endpoints with a fixed cap: those that this replica may use now (`held`), those that it has lent to \
         other replicas, and those of `held` that it has borrowed.",
    ),
    MetricRow::new(
        "sheave_replica_slots_moved",
        &["how"],
        MetricReader::Counts(|it, each| {
            let counts = it.leases().counts;
            each("lent", counts.lent);
            each("returned", counts.returned);
            each("taken_back", counts.taken_back);
        }),
        "Slots that this replica has lent, returned, or taken back from a replica that was silent.",
    ),
];

fn counts(status: &ReplicaStatus) -> Option<&ChannelCounts> {
    status.channel().map(|channel| &**channel.counts())
}

fn read(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}
