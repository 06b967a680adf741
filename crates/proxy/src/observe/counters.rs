//! Counters, one shard per worker.
//!
//! A shard is written by its worker alone, so adding is a load and a store, without a locked instruction; whoever reads
//! adds the shards up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use balance::limit::RetryAfterHandling;

use crate::accept::{h2, h3};
use crate::failure::Failure;
use crate::grpc::GrpcCode;
use crate::mirror::MirrorOutcome;
use crate::observe::{ExemplarStore, HistogramData};
use crate::orca;
use crate::quic::DatagramDropReason;
use crate::tls::ClientTlsError;

/// A number that one thread adds to and any thread reads.
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
    /// The same in nanoseconds: whole numbers compare faster.
    const BOUNDS_NANOSECONDS: [u64; Self::BOUNDS.len()] = {
        let mut nanoseconds = [0; Self::BOUNDS.len()];
        let mut index = 0;
        while index < nanoseconds.len() {
            nanoseconds[index] = (Self::BOUNDS[index] * 1e9) as u64;
            index += 1;
        }
        nanoseconds
    };

    /// Returns the bucket it fell into.
    pub(crate) fn add(&self, duration: Duration) -> usize {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS_NANOSECONDS.partition_point(|bound| *bound < nanoseconds);
        self.buckets[bucket].add(1);
        self.nanoseconds.add(nanoseconds);
        bucket
    }

    /// All shards as one.
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
    /// Datagrams.
    pub(crate) received: SingleWriterCounter,
    pub(crate) sent: SingleWriterCounter,
    /// By [`DatagramDropReason`].
    pub(crate) dropped: [SingleWriterCounter; DatagramDropReason::ALL.len()],
    /// To the worker whose they were.
    pub(crate) handed_over: SingleWriterCounter,
    pub(crate) retries: SingleWriterCounter,
}

/// TLS handshakes of clients.
#[derive(Default)]
pub(crate) struct HandshakeCounters {
    pub(crate) begun: SingleWriterCounter,
    pub(crate) full: SingleWriterCounter,
    pub(crate) resumed: SingleWriterCounter,
    /// None of our handshakes: the connection is passed through.
    pub(crate) passed_through: SingleWriterCounter,
    /// By [`ClientTlsError`].
    pub(crate) failed: [SingleWriterCounter; ClientTlsError::ALL.len()],
}

impl HandshakeCounters {
    /// Those that have come to an end, by what came of them.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let failed = ClientTlsError::ALL.iter().zip(&self.failed);
        let succeeded = [
            ("full", &self.full),
            ("resumed", &self.resumed),
            ("passed_through", &self.passed_through),
        ];
        let all = succeeded.into_iter().chain(failed.map(|(why, count)| (why.word(), count)));
        all.map(|(word, count)| (word, count.value()))
    }
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct RouteCounters {
    /// By the status' first digit; 0 for those that got no answer.
    pub(crate) responses: [SingleWriterCounter; 6],
    pub(crate) duration: Histogram,
    /// Of `duration`.
    pub(crate) exemplars: ExemplarStore,
    /// By [`Code::number`].
    pub(crate) calls: [SingleWriterCounter; GrpcCode::ALL.len()],
    /// Calls whose response has gone on for long, and those of them that have ended.
    pub(crate) streams: SingleWriterCounter,
    pub(crate) streams_ended: SingleWriterCounter,
    /// TCP connections and UDP flows that have ended.
    pub(crate) l4_sessions: SingleWriterCounter,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct BackendCounters {
    pub(crate) queued: Histogram,
    /// By [`Failure::refusal_index`].
    pub(crate) refused: [SingleWriterCounter; Failure::REFUSALS.len()],
    /// Requests whose header field said no priority.
    pub(crate) priorities_ignored: SingleWriterCounter,
    pub(crate) retries: SingleWriterCounter,
    pub(crate) retries_refused: SingleWriterCounter,
    pub(crate) abandoned: SingleWriterCounter,
    /// Of TCP connections and UDP flows.
    pub(crate) received_bytes: SingleWriterCounter,
    pub(crate) sent_bytes: SingleWriterCounter,
    /// By [`MirrorOutcome`].
    pub(crate) mirrors: [SingleWriterCounter; MirrorOutcome::ALL.len()],
    pub(crate) affinity: AffinityCounters,
}

/// Requests to a backend that keeps clients at their endpoints.
#[derive(Default)]
pub(crate) struct AffinityCounters {
    /// They belonged nowhere before.
    pub(crate) begun: SingleWriterCounter,
    /// They came where they belong.
    pub(crate) kept: SingleWriterCounter,
    /// They came elsewhere.
    pub(crate) broken: SingleWriterCounter,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct EndpointCounters {
    pub(crate) attempts: SingleWriterCounter,
    pub(crate) failures: SingleWriterCounter,
    /// Attempts that say nothing of the endpoint: it was busy, or the client left.
    pub(crate) inconclusive: SingleWriterCounter,
    pub(crate) connections: SingleWriterCounter,
    /// Requests that were sent, and those of them that are not waited for any more: the others await an answer.
    pub(crate) requests_sent: SingleWriterCounter,
    pub(crate) requests_settled: SingleWriterCounter,
    pub(crate) http2: MultiplexCounters,
    pub(crate) http3: MultiplexCounters,
    /// Requests that went by TCP because HTTP/3 was not to be had.
    pub(crate) http3_fallbacks: SingleWriterCounter,
    /// Refusals for which it is given less, and those among them that asked for longer than is heeded.
    pub(crate) refusals: SingleWriterCounter,
    pub(crate) refusals_cut: SingleWriterCounter,
    /// What it said of its load, and what of that was of no use, by [`orca::Ignored`].
    pub(crate) load_reports: SingleWriterCounter,
    pub(crate) load_reports_ignored: [SingleWriterCounter; orca::LoadReportError::ALL.len()],
    /// Of TCP connections and UDP flows.
    pub(crate) received_bytes: SingleWriterCounter,
    pub(crate) sent_bytes: SingleWriterCounter,
}

impl EndpointCounters {
    /// The endpoint has said that it is full.
    pub(crate) fn count_refusal(&self, heed: RetryAfterHandling) {
        self.refusals.add(1);
        self.refusals_cut.add(u64::from(heed == RetryAfterHandling::Capped));
    }
}

/// Connections that carry many requests at a time.
#[derive(Default)]
pub(crate) struct MultiplexCounters {
    /// Those that the endpoint ended in an orderly way.
    pub(crate) goaways: SingleWriterCounter,
    /// Requests that it gave back unprocessed.
    pub(crate) streams_refused: SingleWriterCounter,
}

/// What belongs to no route or backend.
#[repr(align(64))]
pub(crate) struct WorkerCounters {
    pub(crate) requests: SingleWriterCounter,
    /// By [`Failure::index`].
    pub(crate) failures: [SingleWriterCounter; Failure::ALL.len()],
    pub(crate) moved_in: SingleWriterCounter,
    pub(crate) replay_refused: SingleWriterCounter,
    pub(crate) log_dropped: SingleWriterCounter,
    /// By [`h2::Fault`].
    pub(crate) http2_ended: [SingleWriterCounter; h2::H2ClientFault::ALL.len()],
    pub(crate) http2_streams_reset: SingleWriterCounter,
    pub(crate) http2_streams_refused: SingleWriterCounter,
    /// By [`h3::Fault`].
    pub(crate) http3_ended: [SingleWriterCounter; h3::H3ClientFault::ALL.len()],
    pub(crate) http3_streams_reset: SingleWriterCounter,
}

impl WorkerCounters {
    pub(crate) fn new() -> Self {
        Self {
            requests: SingleWriterCounter::default(),
            failures: std::array::from_fn(|_| SingleWriterCounter::default()),
            moved_in: SingleWriterCounter::default(),
            replay_refused: SingleWriterCounter::default(),
            log_dropped: SingleWriterCounter::default(),
            http2_ended: std::array::from_fn(|_| SingleWriterCounter::default()),
            http2_streams_reset: SingleWriterCounter::default(),
            http2_streams_refused: SingleWriterCounter::default(),
            http3_ended: std::array::from_fn(|_| SingleWriterCounter::default()),
            http3_streams_reset: SingleWriterCounter::default(),
        }
    }
}
