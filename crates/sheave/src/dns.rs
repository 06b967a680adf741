//! Names as endpoints: what DNS says of them, asked again as often as the answers' TTL wants.
//!
//! It knows names and addresses; what is made of them is for others to know. A failure changes nothing: the last answer
//! stays.

/// One question, and what came of it.
mod ask;
/// What is known of a name.
mod known;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::report::Report;
use ask::{Ask, Round};
use known::Known;

/// Names that are asked for at the same time.
const CONCURRENT: usize = 16;
/// How soon a name is asked for again, whatever its TTL; and the first pause after a failure, doubled with each.
const SHORTEST: Duration = Duration::from_secs(1);
/// So that a mistake with a long TTL heals.
const LONGEST: Duration = Duration::from_secs(3600);
const LONGEST_AFTER_FAILURE: Duration = Duration::from_secs(30);
/// How long a configuration waits for the first answer to its names.
const FIRST_ANSWER: Duration = Duration::from_secs(3);

/// The names that somebody wants to know.
pub(crate) struct Names {
    ask: Arc<Ask>,
    known: BTreeMap<Arc<str>, Followed>,
    permits: Arc<Semaphore>,
    sender: mpsc::Sender<(Arc<str>, Round)>,
    rounds: mpsc::Receiver<(Arc<str>, Round)>,
    report: watch::Sender<Report>,
}

struct Followed {
    known: Known,
    task: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Names {
    /// Asks this server, or those of `/etc/resolv.conf`.
    pub(crate) fn new(server: Option<SocketAddr>, report: watch::Sender<Report>) -> Self {
        let (sender, rounds) = mpsc::channel(CONCURRENT);
        Self {
            ask: Arc::new(Ask::new(server)),
            known: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(CONCURRENT)),
            sender,
            rounds,
            report,
        }
    }

    /// Follows these names from now on and no other, and waits a while for the first answers to those that are new.
    pub(crate) async fn follow(&mut self, hosts: BTreeSet<Arc<str>>) {
        self.known.retain(|host, _| hosts.contains(host));
        for host in hosts {
            if !self.known.contains_key(&host) {
                let task = tokio::spawn(self.follower(host.clone()));
                self.known.insert(host, Followed { known: Known::default(), task });
            }
        }
        let answered = async {
            while self.known.values().any(|followed| followed.known.is_new()) {
                self.take_round().await;
            }
        };
        // Who is slower is heard of later.
        timeout(FIRST_ANSWER, answered).await.ok();
        self.count_failing();
    }

    /// Waits for the next name whose addresses have changed. May be dropped and called again: nothing is lost.
    pub(crate) async fn changed(&mut self) -> Arc<str> {
        loop {
            if let Some(host) = self.take_round().await {
                return host;
            }
        }
    }

    /// Sorted; none while none is known.
    pub(crate) fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.known.get(host).map(|followed| followed.known.addresses()).unwrap_or_default()
    }

    /// The name, if its addresses have changed by the next round.
    async fn take_round(&mut self) -> Option<Arc<str>> {
        let (host, round) = self.rounds.recv().await.expect("one sender is ours");
        let followed = self.known.get_mut(&host)?;
        let failed = round.problem().is_some();
        let changed = followed.known.take(&host, round);
        self.report.send_modify(|report| report.lookups[usize::from(failed)] += 1);
        self.count_failing();
        changed.then_some(host)
    }

    fn count_failing(&self) {
        let failing = self.known.values().filter(|followed| followed.known.is_failing()).count();
        self.report.send_if_modified(|report| {
            std::mem::replace(&mut report.names_failing, failing) != failing
        });
    }

    /// Asks for a name for ever, and tells what came of it.
    fn follower(&self, host: Arc<str>) -> impl Future<Output = ()> + use<> {
        let (ask, permits, sender) = (self.ask.clone(), self.permits.clone(), self.sender.clone());
        async move {
            let mut failures = 0;
            loop {
                let permit = permits.acquire().await.expect("the semaphore is never closed");
                let round = ask.ask(&host).await;
                drop(permit);
                let pause = pause(&round, &mut failures);
                if sender.send((host.clone(), round)).await.is_err() {
                    return;
                }
                sleep(pause + jitter(pause)).await;
            }
        }
    }
}

/// How long an answer holds, or how long to leave a server alone that has failed so many times on end.
fn pause(round: &Round, failures: &mut u32) -> Duration {
    if round.problem().is_none() {
        *failures = 0;
        return round.ttl().clamp(SHORTEST, LONGEST);
    }
    let pause = SHORTEST * 2u32.pow((*failures).min(5));
    *failures += 1;
    pause.min(LONGEST_AFTER_FAILURE)
}

/// Up to a tenth more, so that names that were asked for together do not stay together.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64((random % 1000) as f64 / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::ask::Found;
    use super::*;

    #[test]
    fn name_is_resolved_again_after_its_ttl() {
        let answer = |seconds| Round {
            v4: Found::Addresses(Vec::new(), Duration::from_secs(seconds)),
            v6: Found::Nothing,
        };
        let mut failures = 3;
        assert_eq!(pause(&answer(20), &mut failures), Duration::from_secs(20));
        assert_eq!(failures, 0);
        assert_eq!(pause(&answer(0), &mut failures), SHORTEST);
        assert_eq!(pause(&answer(1_000_000), &mut failures), LONGEST);
    }

    #[test]
    fn dns_failures_back_off() {
        let failed = || Found::Failed("no answer".into());
        let round = Round { v4: failed(), v6: failed() };
        let mut failures = 0;
        let pauses: Vec<u64> = (0..7).map(|_| pause(&round, &mut failures).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn refresh_jitter_is_at_most_ten_percent() {
        let pause = Duration::from_secs(10);
        let jitters: BTreeSet<Duration> = (0..100).map(|_| jitter(pause)).collect();
        assert!(jitters.len() > 1, "they differ");
        assert!(jitters.iter().all(|jitter| *jitter < pause / 10), "{jitters:?}");
    }
}
