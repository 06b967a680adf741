//! Conditions of routes at clients that use xDS: what these do not follow, and what they reject.

use std::sync::Arc;
use std::time::Duration;

use ::xds::ResourcePublisher;
use gateway::status::{self, ResourceStatus, XdsProblem};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Interval at which statuses follow what clients reject: clients that change their minds all the time cause one write
/// of each status in that time.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The problems that statuses show.
pub(super) struct XdsRouteStatus {
    publisher: Arc<ResourcePublisher>,
    reported: Vec<XdsProblem>,
    ticks: Interval,
}

impl XdsRouteStatus {
    /// Starts without a problem. Needs a running tokio runtime.
    pub(super) fn new(publisher: Arc<ResourcePublisher>) -> Self {
        let mut ticks = interval(STATUS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { publisher, reported: Vec::new(), ticks }
    }

    /// Adds the present problems to the statuses of routes.
    pub(super) fn report(&mut self, statuses: &mut [ResourceStatus]) {
        self.reported = self.publisher.route_problems();
        status::report_xds(statuses, &self.reported);
    }

    /// Waits until there are other problems than those reported last. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        loop {
            self.ticks.tick().await;
            if self.publisher.route_problems() != self.reported {
                return;
            }
        }
    }
}
