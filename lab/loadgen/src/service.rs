//! Service times of endpoints, and their queues.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::defect::EndpointDefect;
use crate::http::ResponseSpec;
use crate::random::XorShiftRandom;

/// Service time of all endpoints without a defect.
pub(crate) struct ServiceTime {
    pub(crate) mean: Duration,
    /// True if service times are drawn from an exponential distribution; else they are constant.
    pub(crate) random: bool,
    /// Concurrency limit of one endpoint; further requests wait in its queue.
    pub(crate) at_once: usize,
    pub(crate) seed: u64,
}

/// A request that an endpoint has read.
pub(crate) struct PendingRequest {
    pub(crate) connection: usize,
    /// Serial number that distinguishes a connection from an earlier one at the same index.
    pub(crate) serial: u64,
    /// Stream of the request; 0 over HTTP/1.1.
    pub(crate) stream: u32,
    pub(crate) wanted: ResponseSpec,
}

pub(crate) struct ServiceModel {
    time: ServiceTime,
    random: XorShiftRandom,
    endpoints: Vec<EndpointServiceState>,
    due: BinaryHeap<Reverse<ServiceCompletion>>,
    begun: u64,
}

/// State of one endpoint.
#[derive(Default)]
struct EndpointServiceState {
    defect: Option<EndpointDefect>,
    serving: usize,
    waiting: VecDeque<PendingRequest>,
}

struct ServiceCompletion {
    at: Instant,
    /// Order of the starts: of two completions at the same time, the one that started first comes
    /// first.
    order: u64,
    endpoint: usize,
    pending: PendingRequest,
}

impl ServiceModel {
    pub(crate) fn new(time: ServiceTime, endpoints: usize) -> Self {
        let endpoints = (0..endpoints).map(|_| EndpointServiceState::default()).collect();
        let random = XorShiftRandom::new(time.seed);
        Self { time, random, endpoints, due: BinaryHeap::new(), begun: 0 }
    }

    pub(crate) fn inject_defect(&mut self, endpoint: usize, defect: EndpointDefect) {
        self.endpoints[endpoint].defect = Some(defect);
    }

    pub(crate) fn always_fails(&self, endpoint: usize) -> bool {
        self.endpoints[endpoint].defect == Some(EndpointDefect::Errors)
    }

    pub(crate) fn is_instant(&self) -> bool {
        self.time.mean.is_zero()
    }

    pub(crate) fn arrive(&mut self, endpoint: usize, pending: PendingRequest, now: Instant) {
        if self.endpoints[endpoint].serving < self.time.at_once {
            self.begin(endpoint, pending, now);
        } else {
            self.endpoints[endpoint].waiting.push_back(pending);
        }
    }

    /// Returns the next request whose service has ended. Its endpoint starts with the next one in
    /// its queue.
    pub(crate) fn finish_one(&mut self, now: Instant) -> Option<PendingRequest> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(due) = self.due.pop()?;
        let state = &mut self.endpoints[due.endpoint];
        state.serving -= 1;
        if let Some(next) = state.waiting.pop_front() {
            // Start at the time when the previous service ended: a late event loop must not make the endpoint slower.
            self.begin(due.endpoint, next, due.at);
        }
        Some(due.pending)
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    fn begin(&mut self, endpoint: usize, pending: PendingRequest, now: Instant) {
        let usual = match self.time.random {
            true => self.random.exponential(self.time.mean),
            false => self.time.mean,
        };
        let state = &mut self.endpoints[endpoint];
        let takes = match state.defect {
            Some(EndpointDefect::Slow(factor)) => usual.mul_f64(factor),
            Some(
                EndpointDefect::Errors | EndpointDefect::BlackHole | EndpointDefect::Dead { .. },
            )
            | None => usual,
        };
        state.serving += 1;
        self.begun += 1;
        self.due.push(Reverse(ServiceCompletion {
            at: now + takes,
            order: self.begun,
            endpoint,
            pending,
        }));
    }
}

impl Ord for ServiceCompletion {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for ServiceCompletion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ServiceCompletion {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for ServiceCompletion {}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN: Duration = Duration::from_millis(10);

    fn service(at_once: usize) -> (ServiceModel, Instant) {
        let time = ServiceTime { mean: MEAN, random: false, at_once, seed: 0 };
        (ServiceModel::new(time, 2), Instant::now())
    }

    fn request(connection: usize) -> PendingRequest {
        PendingRequest { connection, serial: 0, stream: 0, wanted: ResponseSpec::Bytes(0) }
    }

    fn finished(service: &mut ServiceModel, now: Instant) -> Vec<usize> {
        std::iter::from_fn(|| service.finish_one(now)).map(|done| done.connection).collect()
    }

    #[test]
    fn requests_over_the_concurrency_limit_queue_at_their_endpoint() {
        let (mut service, start) = service(1);
        for (endpoint, connection) in [(0, 1), (0, 2), (1, 3)] {
            service.arrive(endpoint, request(connection), start);
        }
        assert_eq!(finished(&mut service, start), [0; 0]);
        assert_eq!(finished(&mut service, start + MEAN), [1, 3]);
        assert_eq!(finished(&mut service, start + 2 * MEAN), [2]);
    }

    #[test]
    fn late_event_loop_does_not_slow_an_endpoint() {
        let (mut service, start) = service(1);
        service.arrive(0, request(1), start);
        service.arrive(0, request(2), start);
        assert_eq!(finished(&mut service, start + 2 * MEAN), [1, 2]);
    }

    #[test]
    fn slow_endpoint_takes_its_slowdown_factor() {
        let (mut service, start) = service(1);
        service.inject_defect(0, EndpointDefect::Slow(10.0));
        service.arrive(0, request(1), start);
        assert_eq!(finished(&mut service, start + 9 * MEAN), [0; 0]);
        assert_eq!(finished(&mut service, start + 10 * MEAN), [1]);
    }
}
