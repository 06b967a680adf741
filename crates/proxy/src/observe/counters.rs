//! Counters, one shard per worker.
//!
//! A shard is written by its worker alone, so adding is a load and a store, without a locked instruction; whoever reads
//! adds the shards up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use balance::limit::RetryAfterHandling;

use crate::accept::{h2, h3};
use crate::failure::Failure;
use crate::grpc::Code;
use crate::mirror::Fate;
use crate::observe::{Distribution, Exemplars};
use crate::orca;
use crate::quic::DatagramDropReason;
use crate::tls::Unsecured;

/// A number that one thread adds to and any thread reads.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
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
    buckets: [Counter; Self::BOUNDS.len() + 1],
    nanoseconds: Counter,
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
    pub(crate) fn sum<'h>(shards: impl Iterator<Item = &'h Self>) -> Distribution {
        let mut counts = vec![0; Self::BOUNDS.len() + 1];
        let mut nanoseconds = 0;
        for shard in shards {
            for (count, bucket) in counts.iter_mut().zip(&shard.buckets) {
                *count += bucket.value();
            }
            nanoseconds += shard.nanoseconds.value();
        }
        let sum = nanoseconds as f64 / 1e9;
        Distribution { bounds: &Self::BOUNDS, counts, sum, exemplars: Vec::new() }
    }
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ListenerCounters {
    pub(crate) accepted: Counter,
    pub(crate) closed: Counter,
    pub(crate) refused: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) datagrams_dropped: Counter,
    pub(crate) handshakes: HandshakeCounters,
    pub(crate) quic: QuicCounters,
}

/// QUIC with clients.
#[derive(Default)]
pub(crate) struct QuicCounters {
    pub(crate) connections: Counter,
    /// Datagrams.
    pub(crate) received: Counter,
    pub(crate) sent: Counter,
    /// By [`Dropped`].
    pub(crate) dropped: [Counter; DatagramDropReason::ALL.len()],
    /// To the worker whose they were.
    pub(crate) handed_over: Counter,
    pub(crate) retries: Counter,
}

/// TLS handshakes of clients.
#[derive(Default)]
pub(crate) struct HandshakeCounters {
    pub(crate) begun: Counter,
    pub(crate) full: Counter,
    pub(crate) resumed: Counter,
    /// None of our handshakes: the connection is passed through.
    pub(crate) passed_through: Counter,
    /// By [`Unsecured`].
    pub(crate) failed: [Counter; Unsecured::ALL.len()],
}

impl HandshakeCounters {
    /// Those that have come to an end, by what came of them.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let failed = Unsecured::ALL.iter().zip(&self.failed);
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
    pub(crate) responses: [Counter; 6],
    pub(crate) duration: Histogram,
    /// Of `duration`.
    pub(crate) exemplars: Exemplars,
    /// By [`Code::number`].
    pub(crate) calls: [Counter; Code::ALL.len()],
    /// Calls whose response has gone on for long, and those of them that have ended.
    pub(crate) streams: Counter,
    pub(crate) streams_ended: Counter,
    /// TCP connections and UDP flows that have ended.
    pub(crate) passages: Counter,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct BackendCounters {
    pub(crate) queued: Histogram,
    /// By [`Failure::refusal`].
    pub(crate) refused: [Counter; Failure::REFUSALS.len()],
    /// Requests whose header field said no priority.
    pub(crate) priorities_ignored: Counter,
    pub(crate) retries: Counter,
    pub(crate) retries_refused: Counter,
    pub(crate) abandoned: Counter,
    /// Of TCP connections and UDP flows.
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    /// By [`Fate`].
    pub(crate) mirrors: [Counter; Fate::ALL.len()],
    pub(crate) affinity: AffinityCounters,
}

/// Requests to a backend that keeps clients at their endpoints.
#[derive(Default)]
pub(crate) struct AffinityCounters {
    /// They belonged nowhere before.
    pub(crate) begun: Counter,
    /// They came where they belong.
    pub(crate) kept: Counter,
    /// They came elsewhere.
    pub(crate) broken: Counter,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct EndpointCounters {
    pub(crate) attempts: Counter,
    pub(crate) failures: Counter,
    /// Attempts that say nothing of the endpoint: it was busy, or the client left.
    pub(crate) untold: Counter,
    pub(crate) connections: Counter,
    /// Requests that were sent, and those of them that are not waited for any more: the others await an answer.
    pub(crate) asked: Counter,
    pub(crate) answered: Counter,
    pub(crate) http2: LinkCounters,
    pub(crate) http3: LinkCounters,
    /// Requests that went by TCP because HTTP/3 was not to be had.
    pub(crate) http3_fallbacks: Counter,
    /// Refusals for which it is given less, and those among them that asked for longer than is heeded.
    pub(crate) refusals: Counter,
    pub(crate) refusals_cut: Counter,
    /// What it said of its load, and what of that was of no use, by [`orca::Ignored`].
    pub(crate) load_reports: Counter,
    pub(crate) load_reports_ignored: [Counter; orca::Ignored::ALL.len()],
    /// Of TCP connections and UDP flows.
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
}

impl EndpointCounters {
    /// The endpoint has said that it is full.
    pub(crate) fn heeded(&self, heed: RetryAfterHandling) {
        self.refusals.add(1);
        self.refusals_cut.add(u64::from(heed == RetryAfterHandling::Capped));
    }
}

/// Connections that carry many requests at a time.
#[derive(Default)]
pub(crate) struct LinkCounters {
    /// Those that the endpoint ended in an orderly way.
    pub(crate) goaways: Counter,
    /// Requests that it gave back unprocessed.
    pub(crate) streams_refused: Counter,
}

/// What belongs to no route or backend.
#[repr(align(64))]
pub(crate) struct WorkerCounters {
    pub(crate) requests: Counter,
    /// By [`Failure::index`].
    pub(crate) failures: [Counter; Failure::ALL.len()],
    pub(crate) moved_in: Counter,
    pub(crate) replay_refused: Counter,
    pub(crate) log_dropped: Counter,
    /// By [`h2::Fault`].
    pub(crate) http2_ended: [Counter; h2::Fault::ALL.len()],
    pub(crate) http2_streams_reset: Counter,
    pub(crate) http2_streams_refused: Counter,
    /// By [`h3::Fault`].
    pub(crate) http3_ended: [Counter; h3::Fault::ALL.len()],
    pub(crate) http3_streams_reset: Counter,
}

impl WorkerCounters {
    pub(crate) fn new() -> Self {
        Self {
            requests: Counter::default(),
            failures: std::array::from_fn(|_| Counter::default()),
            moved_in: Counter::default(),
            replay_refused: Counter::default(),
            log_dropped: Counter::default(),
            http2_ended: std::array::from_fn(|_| Counter::default()),
            http2_streams_reset: Counter::default(),
            http2_streams_refused: Counter::default(),
            http3_ended: std::array::from_fn(|_| Counter::default()),
            http3_streams_reset: Counter::default(),
        }
    }
}
