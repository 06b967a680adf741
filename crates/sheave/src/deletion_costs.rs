//! Deletion costs of pods: while this replica is the leader, it tells the ReplicaSet controller which pods have the fewest
//! requests in flight, so that a scale down removes those.
//!
//! It samples the load and writes; the plan decides what is worth a write.

/// Plan of the costs to write.
mod plan;

use std::sync::Arc;
use std::time::Duration;

use kube::{DeletionCostError, DeletionCostWriter};
use proxy::Proxy;
use tokio::time::{Instant, MissedTickBehavior, interval};

use plan::CostPlan;

/// Interval of samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of writes after a sample: two a second.
const MAX_WRITES: usize = 4;
/// Pause after a write that failed because of the API server.
const FAILURE_PAUSE: Duration = Duration::from_secs(30);

/// Writes costs, for ever.
pub(crate) async fn run(writer: DeletionCostWriter, proxy: Arc<Proxy>) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut task = CostTask { writer, proxy, plan: CostPlan::default(), paused_until: None };
    loop {
        ticks.tick().await;
        task.sample_and_write().await;
    }
}

struct CostTask {
    writer: DeletionCostWriter,
    proxy: Arc<Proxy>,
    plan: CostPlan,
    paused_until: Option<Instant>,
}

impl CostTask {
    async fn sample_and_write(&mut self) {
        if !self.writer.is_leader() {
            // The next leader writes; what it has written is not known here.
            self.plan = CostPlan::default();
            return;
        }
        let loads = self.proxy.in_flight_by_address();
        let pods = self.writer.pods_at(&loads.keys().copied().collect());
        let of_pods = loads.iter().filter_map(|(address, load)| Some((pods.get(address)?, *load)));
        let now = Instant::now();
        self.plan.record(of_pods.map(|(pod, load)| (pod.clone(), load)), now);
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        for (pod, cost) in self.plan.next_writes(now, MAX_WRITES) {
            if !self.writer.is_leader() {
                return;
            }
            let (namespace, name) = (&pod.namespace, &pod.name);
            match self.writer.write(&pod, cost).await {
                Ok(()) => {
                    tracing::debug!(%namespace, pod = %name, cost, "deletion cost written");
                    self.plan.record_written(&pod, cost, now);
                }
                Err(error @ DeletionCostError::Conflict(_)) => {
                    tracing::info!(%namespace, pod = %name, %error, "the deletion cost of a pod is left alone");
                    self.plan.leave_alone(&pod);
                }
                Err(error @ (DeletionCostError::Refused(_) | DeletionCostError::Unavailable)) => {
                    tracing::warn!(%namespace, pod = %name, %error, "cannot write deletion costs; they are tried again");
                    self.paused_until = Some(now + FAILURE_PAUSE);
                    return;
                }
            }
        }
    }
}
