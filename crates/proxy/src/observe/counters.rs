//! Counters, one shard per worker.
//!
//! Only its worker writes a shard, so an addition is a load and a store, without a locked instruction. A reader sums up
//! the shards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use balance::limit::RetryAfterHandling;
use codec::grpc::GrpcCode;
use codec::orca;
use quic::{DatagramCounts, DatagramDropReason};
use tls::ClientTlsError;

use crate::accept::detect::DetectedProtocol;
use crate::accept::listen::AcceptPause;
use crate::accept::{h2, h3};
use crate::compression::outcome::CompressionOutcome;
use crate::error_page::ErrorPageOutcome;
use crate::external_auth::AuthorizationOutcome;
use crate::failure::Failure;
use crate::mirror::MirrorOutcome;
use crate::observe::{ExemplarStore, HistogramData};
use crate::trace::TraceReason;

/// A counter that one thread increments and any thread reads.
#[derive(Default)]
pub(crate) struct SingleWriterCounter(AtomicU64);

impl SingleWriterCounter {
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Durations by bucket; the bounds are in seconds, from half a millisecond to a minute.
#[derive(Default)]
pub(crate) struct Histogram {
    buckets: [SingleWriterCounter; Self::BOUNDS.len() + 1],
    nanoseconds: SingleWriterCounter,
}

impl Histogram {
    const BOUNDS: [f64; 15] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
    ];
    /// The bounds in nanoseconds: integers compare faster.
    const BOUNDS_NANOSECONDS: [u64; Self::BOUNDS.len()] = {
        let mut nanoseconds = [0; Self::BOUNDS.len()];
        let mut index = 0;
        while index < nanoseconds.len() {
            nanoseconds[index] = (Self::BOUNDS[index] * 1e9) as u64;
            index += 1;
        }
        nanoseconds
    };

    /// Returns the upper bounds of the buckets, in seconds; the last bucket has none.
    pub(crate) fn bounds() -> &'static [f64] {
        &Self::BOUNDS
    }

    /// Adds a duration and returns the index of its bucket.
    pub(crate) fn add(&self, duration: Duration) -> usize {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS_NANOSECONDS.partition_point(|bound| *bound < nanoseconds);
        self.buckets[bucket].add(1);
        self.nanoseconds.add(nanoseconds);
        bucket
    }

    /// Sums up all shards.
    pub(crate) fn sum<'h>(shards: impl Iterator<Item = &'h Self>) -> HistogramData {
        let mut counts = vec![0; Self::BOUNDS.len() + 1];
        let mut nanoseconds = 0;
        for shard in shards {
            for (count, bucket) in counts.iter_mut().zip(&shard.buckets) {
                *count += bucket.value();
            }
            nanoseconds += shard.nanoseconds.value();
        }
        let sum = nanoseconds as f64 / 1e9;
        HistogramData { bounds: &Self::BOUNDS, counts, sum, exemplars: Vec::new() }
    }
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ListenerCounters {
    pub(crate) accepted: SingleWriterCounter,
    pub(crate) closed: SingleWriterCounter,
    pub(crate) refused: SingleWriterCounter,
    /// Connections and flows from outside of the networks that may connect.
    pub(crate) refused_sources: SingleWriterCounter,
    pub(crate) received_bytes: SingleWriterCounter,
    pub(crate) sent_bytes: SingleWriterCounter,
    pub(crate) datagrams_dropped: SingleWriterCounter,
    pub(crate) handshakes: HandshakeCounters,
    pub(crate) quic: QuicCounters,
}

/// QUIC with clients.
#[derive(Default)]
pub(crate) struct QuicCounters {
    pub(crate) connections: SingleWriterCounter,
    /// Datagrams received.
    pub(crate) received: SingleWriterCounter,
    pub(crate) sent: SingleWriterCounter,
    /// Datagrams dropped, by [`DatagramDropReason`].
    pub(crate) dropped: [SingleWriterCounter; DatagramDropReason::ALL.len()],
    /// Datagrams handed over to the worker that has the connection.
    pub(crate) handed_over: SingleWriterCounter,
    pub(crate) retries: SingleWriterCounter,
}

impl QuicCounters {
    pub(crate) fn add(&self, counts: &DatagramCounts) {
        let DatagramCounts { received, sent, dropped, handed_over, retries } = counts;
        self.received.add(*received);
        self.sent.add(*sent);
        self.dropped.iter().zip(dropped).for_each(|(counter, count)| counter.add(*count));
        self.handed_over.add(*handed_over);
        self.retries.add(*retries);
    }
}

/// TLS handshakes of clients.
#[derive(Default)]
pub(crate) struct HandshakeCounters {
    pub(crate) begun: SingleWriterCounter,
    pub(crate) full: SingleWriterCounter,
    pub(crate) resumed: SingleWriterCounter,
    /// TLS passthrough: the endpoint does the handshake.
    pub(crate) passed_through: SingleWriterCounter,
    /// Failed handshakes, by [`ClientTlsError`].
    pub(crate) failed: [SingleWriterCounter; ClientTlsError::ALL.len()],
}

impl HandshakeCounters {
    /// Returns the number of ended handshakes by outcome.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let failed = ClientTlsError::ALL.iter().zip(&self.failed);
        let succeeded = [
            ("full", &self.full),
            ("resumed", &self.resumed),
            ("passed_through", &self.passed_through),
        ];
        let all = succeeded.into_iter().chain(failed.map(|(why, count)| (why.label(), count)));
        all.map(|(label, count)| (label, count.value()))
    }
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct RouteCounters {
    /// Responses by the first digit of the status; 0: requests without an answer.
    pub(crate) responses: [SingleWriterCounter; 6],
    pub(crate) duration: Histogram,
    /// Requests that their backend's slots and queue rejected.
    pub(crate) refused: SingleWriterCounter,
    /// Exemplars of `duration`.
    pub(crate) exemplars: ExemplarStore,
    /// gRPC calls by [`GrpcCode::number`].
    pub(crate) calls: [SingleWriterCounter; GrpcCode::ALL.len()],
    /// Calls with a long-lasting response, and below those of them that have ended.
    pub(crate) streams: SingleWriterCounter,
    pub(crate) streams_ended: SingleWriterCounter,
    /// TCP connections and UDP flows that have ended.
    pub(crate) l4_sessions: SingleWriterCounter,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct BackendCounters {
    pub(crate) queued: Histogram,
    /// Rejected requests by [`Failure::refusal_index`].
    pub(crate) refused: [SingleWriterCounter; Failure::REFUSALS.len()],
    /// Requests whose priority header field had an invalid value.
    pub(crate) priorities_ignored: SingleWriterCounter,
    pub(crate) retries: SingleWriterCounter,
    pub(crate) retries_refused: SingleWriterCounter,
    pub(crate) abandoned: SingleWriterCounter,
    /// Bytes of TCP connections and UDP flows.
    pub(crate) received_bytes: SingleWriterCounter,
    pub(crate) sent_bytes: SingleWriterCounter,
    /// Mirrored requests by [`MirrorOutcome`].
    pub(crate) mirrors: [SingleWriterCounter; MirrorOutcome::ALL.len()],
    pub(crate) affinity: AffinityCounters,
    pub(crate) authorizations: [SingleWriterCounter; AuthorizationOutcome::ALL.len()],
    pub(crate) error_pages: [SingleWriterCounter; ErrorPageOutcome::ALL.len()],
    pub(crate) compressions: [SingleWriterCounter; CompressionOutcome::ALL.len()],
}

/// Requests to a backend with session affinity.
#[derive(Default)]
pub(crate) struct AffinityCounters {
    /// Requests of clients without an affinity target.
    pub(crate) begun: SingleWriterCounter,
    /// Requests that reached their affinity target.
    pub(crate) kept: SingleWriterCounter,
    /// Requests that reached another endpoint than their affinity target.
    pub(crate) broken: SingleWriterCounter,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct EndpointCounters {
    pub(crate) attempts: SingleWriterCounter,
    pub(crate) failures: SingleWriterCounter,
    /// Attempts that say nothing about the endpoint's health: it was busy, or the client disconnected.
    pub(crate) inconclusive: SingleWriterCounter,
    pub(crate) connections: SingleWriterCounter,
    /// Requests that were sent, and below those of them that were answered or given up: the difference awaits an
    /// answer.
    pub(crate) requests_sent: SingleWriterCounter,
    pub(crate) requests_settled: SingleWriterCounter,
    pub(crate) http2: MultiplexCounters,
    pub(crate) http3: MultiplexCounters,
    /// Requests that fell back to TCP because HTTP/3 was not available.
    pub(crate) http3_fallbacks: SingleWriterCounter,
    /// Refusals that reduced the endpoint's limit, and below those of them with a `Retry-After` above the maximum.
    pub(crate) refusals: SingleWriterCounter,
    pub(crate) refusals_cut: SingleWriterCounter,
    /// Load reports, and below the ignored ones by [`orca::LoadReportError`].
    pub(crate) load_reports: SingleWriterCounter,
    pub(crate) load_reports_ignored: [SingleWriterCounter; orca::LoadReportError::ALL.len()],
    /// Bytes of TCP connections and UDP flows.
    pub(crate) received_bytes: SingleWriterCounter,
    pub(crate) sent_bytes: SingleWriterCounter,
}

impl EndpointCounters {
    /// Counts a refusal with which the endpoint reported overload.
    pub(crate) fn count_refusal(&self, heed: RetryAfterHandling) {
        self.refusals.add(1);
        self.refusals_cut.add(u64::from(heed == RetryAfterHandling::Capped));
    }
}

/// Counters of multiplexed connections to an endpoint.
#[derive(Default)]
pub(crate) struct MultiplexCounters {
    /// Connections that the endpoint ended gracefully (GOAWAY).
    pub(crate) goaways: SingleWriterCounter,
    /// Requests that the endpoint refused without processing.
    pub(crate) streams_refused: SingleWriterCounter,
}

/// Counters of a worker that belong to no route or backend.
#[repr(align(64))]
pub(crate) struct WorkerCounters {
    pub(crate) requests: SingleWriterCounter,
    /// Failures by [`Failure::index`].
    pub(crate) failures: [SingleWriterCounter; Failure::ALL.len()],
    pub(crate) moved_in: SingleWriterCounter,
    pub(crate) replay_refused: SingleWriterCounter,
    pub(crate) log_dropped: SingleWriterCounter,
    /// Traced requests by [`TraceReason`].
    pub(crate) traces: [SingleWriterCounter; TraceReason::ALL.len()],
    /// Requests that were not traced because there were too many traces.
    pub(crate) traces_limited: SingleWriterCounter,
    /// Spans dropped because too many waited for the exporter.
    pub(crate) spans_dropped: SingleWriterCounter,
    /// Idle client connections closed to free their descriptors.
    pub(crate) idle_connections_shed: SingleWriterCounter,
    /// Pauses in accepting connections, by `AcceptPause`.
    pub(crate) accept_pauses: [SingleWriterCounter; AcceptPause::ALL.len()],
    /// Closed HTTP/2 connections by `H2ClientFault`.
    pub(crate) http2_ended: [SingleWriterCounter; h2::H2ClientFault::ALL.len()],
    pub(crate) http2_streams_reset: SingleWriterCounter,
    pub(crate) http2_streams_refused: SingleWriterCounter,
    /// Closed HTTP/3 connections by `H3ClientFault`.
    pub(crate) http3_ended: [SingleWriterCounter; h3::H3ClientFault::ALL.len()],
    pub(crate) http3_streams_reset: SingleWriterCounter,
    /// Ticks since the start.
    pub(crate) ticks: SingleWriterCounter,
    /// Intercepted connections, and below those of them that were reset because no listener has their destination.
    pub(crate) intercepted: SingleWriterCounter,
    pub(crate) intercepted_unknown: SingleWriterCounter,
    /// Connections by the protocol of their first bytes.
    pub(crate) detected: [SingleWriterCounter; DetectedProtocol::ALL.len()],
    /// Requests for a client's mark that failed.
    pub(crate) client_marks_unavailable: SingleWriterCounter,
}

impl WorkerCounters {
    pub(crate) fn new() -> Self {
        Self {
            requests: SingleWriterCounter::default(),
            failures: std::array::from_fn(|_| SingleWriterCounter::default()),
            moved_in: SingleWriterCounter::default(),
            replay_refused: SingleWriterCounter::default(),
            log_dropped: SingleWriterCounter::default(),
            traces: std::array::from_fn(|_| SingleWriterCounter::default()),
            traces_limited: SingleWriterCounter::default(),
            spans_dropped: SingleWriterCounter::default(),
            idle_connections_shed: SingleWriterCounter::default(),
            accept_pauses: std::array::from_fn(|_| SingleWriterCounter::default()),
            http2_ended: std::array::from_fn(|_| SingleWriterCounter::default()),
            http2_streams_reset: SingleWriterCounter::default(),
            http2_streams_refused: SingleWriterCounter::default(),
            http3_ended: std::array::from_fn(|_| SingleWriterCounter::default()),
            http3_streams_reset: SingleWriterCounter::default(),
            ticks: SingleWriterCounter::default(),
            intercepted: SingleWriterCounter::default(),
            intercepted_unknown: SingleWriterCounter::default(),
            detected: std::array::from_fn(|_| SingleWriterCounter::default()),
            client_marks_unavailable: SingleWriterCounter::default(),
        }
    }
}
