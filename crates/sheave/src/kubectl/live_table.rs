//! `kubectl sheave top`: the table of `sheave top` for all replicas together.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::replicas::{ReplicaAnswer, ReplicaGroup};
use super::text::escaped;
use crate::admin::{BackendInfo, BackendsResponse, EndpointInfo};

/// Sums of what replicas count. A replica that comes or goes changes no sum: its counts are added as they grow.
#[derive(Default)]
pub(super) struct ReplicaSums {
    /// Last answer of each replica.
    known: HashMap<String, BackendsResponse>,
    /// Requests and failures, by backend and endpoint.
    endpoints: HashMap<(String, SocketAddr), (u64, u64)>,
    /// Retries, by backend.
    retries: HashMap<String, u64>,
    /// Replicas that have answered last, and the others with the reasons.
    answered: usize,
    failed: Vec<(String, String)>,
}

impl ReplicaSums {
    /// Asks all replicas, and returns the sums.
    pub(super) fn ask(&mut self, group: &ReplicaGroup<'_>) -> Result<BackendsResponse, String> {
        self.add(group.ask("/api/v1/backends"))
    }

    /// Returns a line about replicas, if there are several or one does not answer.
    pub(super) fn summary(&self) -> Option<String> {
        let all = self.answered + self.failed.len();
        match self.failed.first() {
            None if all == 1 => None,
            None => Some(format!("{all} replicas")),
            Some((replica, reason)) => {
                let (replica, answered) = (escaped(replica), self.answered);
                Some(format!("{answered} of {all} replicas; {replica}: {reason}"))
            }
        }
    }

    fn add(
        &mut self,
        answers: Vec<ReplicaAnswer<BackendsResponse>>,
    ) -> Result<BackendsResponse, String> {
        (self.answered, self.failed) = (0, Vec::new());
        let mut sums = BackendsResponse { backends: Vec::new() };
        for (replica, answer) in answers {
            match answer {
                Ok(answer) => {
                    self.answered += 1;
                    self.count(&replica, &answer);
                    answer.backends.iter().for_each(|it| add_backend(&mut sums, it));
                    self.known.insert(replica, answer);
                }
                Err(reason) => self.failed.push((replica, reason)),
            }
        }
        if self.answered == 0 {
            let (replica, reason) = self.failed.first().cloned().unwrap_or_default();
            return Err(format!("{}: {reason}", escaped(&replica)));
        }
        for backend in &mut sums.backends {
            backend.retries = self.retries.get(&backend.name).copied().unwrap_or_default();
            for endpoint in &mut backend.endpoints {
                let key = (backend.name.clone(), endpoint.address);
                let counts = self.endpoints.get(&key).copied().unwrap_or_default();
                (endpoint.requests, endpoint.failures) = counts;
            }
        }
        Ok(sums)
    }

    /// Adds what a replica has counted since its last answer; the first one adds nothing.
    fn count(&mut self, replica: &str, now: &BackendsResponse) {
        let Some(before) = self.known.get(replica) else { return };
        let before: HashMap<&str, &BackendInfo> =
            before.backends.iter().map(|it| (it.name.as_str(), it)).collect();
        for backend in &now.backends {
            let earlier = before.get(backend.name.as_str());
            let retries = earlier.map_or(0, |it| it.retries);
            *self.retries.entry(backend.name.clone()).or_default() +=
                growth(retries, backend.retries);
            let earlier: HashMap<SocketAddr, &EndpointInfo> = earlier
                .into_iter()
                .flat_map(|it| &it.endpoints)
                .map(|it| (it.address, it))
                .collect();
            for endpoint in &backend.endpoints {
                let key = (backend.name.clone(), endpoint.address);
                let counts = self.endpoints.entry(key).or_default();
                let known = earlier.get(&endpoint.address);
                let (requests, failures) = known.map_or((0, 0), |it| (it.requests, it.failures));
                counts.0 += growth(requests, endpoint.requests);
                counts.1 += growth(failures, endpoint.failures);
            }
        }
    }
}

/// Returns the growth of a counter; one that has decreased has begun again.
fn growth(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn add_backend(sums: &mut BackendsResponse, backend: &BackendInfo) {
    let Some(sum) = sums.backends.iter_mut().find(|it| it.name == backend.name) else {
        sums.backends.push(backend.clone());
        return;
    };
    sum.queue_length += backend.queue_length;
    sum.demand.total += backend.demand.total;
    for endpoint in &backend.endpoints {
        match sum.endpoints.iter_mut().find(|it| it.address == endpoint.address) {
            None => sum.endpoints.push(endpoint.clone()),
            Some(sum) => {
                sum.in_flight += endpoint.in_flight;
                sum.limit = sum.limit.zip(endpoint.limit).map(|(a, b)| a.saturating_add(b));
                if sum.health != endpoint.health {
                    sum.health = "mixed".into();
                }
                let latencies = [sum.latency_seconds, endpoint.latency_seconds];
                sum.latency_seconds = latencies.into_iter().flatten().max_by(f64::total_cmp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(requests: u64, in_flight: u32, health: &str) -> BackendsResponse {
        let endpoint = json!({
            "address": "10.0.0.1:80", "weight": 1, "health": health, "in_flight": in_flight, "limit": 4,
            "limit_reason": "leased", "idle_connections": 0, "requests": requests, "failures": 0,
            "latency_seconds": null, "http3": null,
        });
        let demand = json!({ "total": 1.5, "in_flight": 1.5, "queued": 0.0, "rejected": 0.0 });
        serde_json::from_value(json!({ "backends": [{
            "name": "shop/web:80", "namespace": "shop", "service": "web", "port": 80,
            "algorithm": "LeastLoad", "max_in_flight_per_endpoint": 4, "auto_limit": false,
            "queue_max_requests": 0, "queue_timeout_seconds": 5.0, "queue_length": 1, "panicking": false,
            "retries": 0, "demand": demand, "service_time_seconds": null, "endpoints": [endpoint],
        }] }))
        .unwrap()
    }

    fn ok(replica: &str, answer: BackendsResponse) -> ReplicaAnswer<BackendsResponse> {
        (replica.to_owned(), Ok(answer))
    }

    fn requests(sums: &BackendsResponse) -> u64 {
        sums.backends[0].endpoints[0].requests
    }

    #[test]
    fn state_of_replicas_is_added_up() {
        let answers = vec![ok("a", answer(7, 2, "serving")), ok("b", answer(9, 3, "ejected"))];
        let mut sums = ReplicaSums::default();
        let sum = sums.add(answers).unwrap();
        let [backend] = sum.backends.as_slice() else { panic!("{sum:?}") };
        let [endpoint] = backend.endpoints.as_slice() else { panic!("{backend:?}") };
        assert_eq!((backend.queue_length, backend.demand.total), (2, 3.0));
        assert_eq!((endpoint.in_flight, endpoint.limit), (5, Some(8)));
        assert_eq!(endpoint.health, "mixed");
        assert_eq!(sums.summary().as_deref(), Some("2 replicas"));
    }

    #[test]
    fn replica_that_comes_or_goes_changes_no_sum() {
        let mut sums = ReplicaSums::default();
        let first = sums.add(vec![ok("a", answer(100, 0, "serving"))]).unwrap();
        assert_eq!(requests(&first), 0);
        let both = vec![ok("a", answer(110, 0, "serving")), ok("b", answer(5000, 0, "serving"))];
        assert_eq!(requests(&sums.add(both).unwrap()), 10);
        let gone = ("b".to_owned(), Err("the pod is Failed".to_owned()));
        let third = sums.add(vec![ok("a", answer(115, 0, "serving")), gone]).unwrap();
        assert_eq!(requests(&third), 15);
        assert_eq!(sums.summary().as_deref(), Some("1 of 2 replicas; b: the pod is Failed"));
        // Its counters begin again.
        let again = sums.add(vec![ok("a", answer(2, 0, "serving"))]).unwrap();
        assert_eq!(requests(&again), 17);
    }

    #[test]
    fn no_answer_at_all_is_an_error() {
        let failed = vec![("a".to_owned(), Err("you may not".to_owned()))];
        assert_eq!(ReplicaSums::default().add(failed).unwrap_err(), "a: you may not");
    }
}
