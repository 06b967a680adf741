//! Metrics of transparent mode, beside those of the data plane (`sheave_intercepted_connections` and others).

use std::sync::atomic::{AtomicU64, Ordering};

use proxy::clock;
use proxy::observe::{MetricReader, MetricRow};

use super::agent_status::{AgentStatus, KernelOperation};

/// The metrics. A process without transparent mode has none of them.
pub(crate) static TRANSPARENT_METRICS: &[MetricRow<AgentStatus>] = &[
    MetricRow::new(
        "sheave_transparent_rules_in_force",
        &[],
        MetricReader::Gauge(|it| f64::from(u8::from(it.is_in_force(clock::now())))),
        "1 if the kernel's rules take connections now, 0 if new connections take the way of kube-proxy.",
    ),
    MetricRow::new(
        "sheave_transparent_addresses",
        &[],
        MetricReader::Gauge(|it| read(&it.addresses) as f64),
        "Addresses of Services, ClusterIP and port each, whose connections are taken.",
    ),
    MetricRow::new(
        "sheave_transparent_syns_taken",
        &[],
        MetricReader::Count(|it| read(&it.taken)),
        "SYNs that the rules have taken, repeated ones included.",
    ),
    MetricRow::new(
        "sheave_transparent_packets_refused",
        &[],
        MetricReader::Count(|it| read(&it.refused)),
        "Packets to the port of transparent mode that were refused with a reset, because no rule had taken them.",
    ),
    MetricRow::new(
        "sheave_transparent_withdrawals",
        &["cause"],
        MetricReader::Counts(|it, each| each("nothing_arrives", read(&it.withdrawals))),
        "Withdrawals of the rules, by cause; nothing_arrives: connections were taken and none arrived.",
    ),
    MetricRow::new(
        "sheave_transparent_bypassing_connections",
        &[],
        MetricReader::Gauge(|it| read(&it.bypassing) as f64),
        "Open connections to Services that are taken that do not go through Sheave: they are older than the rules. \
         Counted each 30 s, or less often on nodes with very many connections.",
    ),
    MetricRow::new(
        "sheave_transparent_resets",
        &[],
        MetricReader::Count(|it| read(&it.resets)),
        "Connections that bypassed and were reset, because their Service says sheave.dev/adopt: reset.",
    ),
    MetricRow::new(
        "sheave_transparent_dead_entries_deleted",
        &[],
        MetricReader::Count(|it| read(&it.dead_entries)),
        "Entries of the kernel's table of connections that led to an agent that is gone, and were deleted.",
    ),
    MetricRow::new(
        "sheave_transparent_client_marks",
        &[],
        MetricReader::Gauge(|it| read(&it.marks_in_use) as f64),
        "Clients whose address connections to endpoints keep now; at most 254 of each IP version.",
    ),
    MetricRow::new(
        "sheave_transparent_remote_clients",
        &[],
        MetricReader::Count(|it| read(&it.remote_clients)),
        "Connections of clients that are not on this node: replies to their addresses would not come back to it, so \
         connections to endpoints come from the node.",
    ),
    MetricRow::new(
        "sheave_transparent_findings",
        &["reason"],
        MetricReader::Gauges(|it, each| {
            let details = it.details();
            for (reason, messages) in &details.node_conditions {
                each(reason, messages.len() as f64);
            }
            for (reason, findings) in &details.service_findings {
                each(reason, findings.len() as f64);
            }
        }),
        "Things that are not taken or hinder it, on this node and of annotated Services, by the reason of their Event.",
    ),
    MetricRow::new(
        "sheave_transparent_errors",
        &["operation"],
        MetricReader::Counts(|it, each| {
            for operation in KernelOperation::ALL {
                each(operation.label(), read(&it.errors[operation as usize]));
            }
        }),
        "Errors of the kernel's rules and its table of connections, by operation. Each operation is tried again.",
    ),
];

fn read(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}
