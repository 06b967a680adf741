//! The task that averages the workers' counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::worker::ProxyState;

/// Interval at which the workers' counts are averaged.
const TICK: Duration = Duration::from_millis(250);

/// Averages the workers' counts, for ever.
pub(crate) async fn run(shared: Arc<ProxyState>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let config = shared.config.load();
        for backend in &config.backends {
            backend.demand.read(|_| ());
        }
        if shared.averages_routes.load(Ordering::Relaxed) {
            for route in &config.routes {
                route.rates.read(&route.counters);
            }
        }
    }
}
