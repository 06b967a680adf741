//! Decides which costs of pods to write: the mean of the requests in flight, when it has changed by half. Steady load
//! writes nothing, however many pods there are.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::PodReference;
use tokio::time::Instant;

/// Time constant of the mean: a burst shorter than this says little about a pod.
const MEAN_TIME: Duration = Duration::from_secs(10);
/// Minimum time between two writes for one pod.
const WRITE_INTERVAL: Duration = Duration::from_secs(20);

/// Loads of pods, and what was written.
#[derive(Debug, Default)]
pub(super) struct CostPlan {
    pods: BTreeMap<PodReference, PodLoad>,
    sampled_at: Option<Instant>,
}

#[derive(Debug)]
struct PodLoad {
    /// Mean of the requests in flight.
    mean: f64,
    written: WrittenCost,
    written_at: Option<Instant>,
}

/// The annotation of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenCost {
    /// An earlier leader may have written it.
    Unknown,
    Known(i32),
    /// Another writer has it.
    Foreign,
}

impl PodLoad {
    fn cost(&self) -> i32 {
        // A float is converted with saturation.
        self.mean.round() as i32
    }

    /// Returns how far the annotation is from the load, if it is worth a write.
    fn difference(&self) -> Option<f64> {
        match self.written {
            WrittenCost::Unknown => Some(self.mean + 1.0),
            WrittenCost::Known(written) => {
                let written = f64::from(written);
                let difference = (self.mean - written).abs();
                let is_significant = difference > (written / 2.0).max(0.75);
                is_significant.then_some(difference)
            }
            WrittenCost::Foreign => None,
        }
    }
}

impl CostPlan {
    /// Takes a sample of all pods. Those that are missing are gone.
    pub(super) fn record(
        &mut self,
        loads: impl Iterator<Item = (PodReference, u32)>,
        now: Instant,
    ) {
        let passed = self.sampled_at.map(|at| now.saturating_duration_since(at));
        let weight =
            1.0 - (-passed.unwrap_or_default().as_secs_f64() / MEAN_TIME.as_secs_f64()).exp();
        // Pods that appear later are new, and have no annotation yet.
        let written = passed.map_or(WrittenCost::Unknown, |_| WrittenCost::Known(0));
        let mut before = std::mem::take(&mut self.pods);
        for (pod, load) in loads {
            let load = f64::from(load);
            let new = || PodLoad { mean: load, written, written_at: None };
            let mut known = before.remove(&pod).unwrap_or_else(new);
            known.mean += (load - known.mean) * weight;
            self.pods.insert(pod, known);
        }
        self.sampled_at = Some(now);
    }

    /// Returns the costs to write now: the largest differences, at most `limit`.
    pub(super) fn next_writes(&self, now: Instant, limit: usize) -> Vec<(PodReference, i32)> {
        let is_due = |load: &PodLoad| {
            load.written_at.is_none_or(|at| now.saturating_duration_since(at) >= WRITE_INTERVAL)
        };
        let pods = self.pods.iter().filter(|(_, load)| is_due(load));
        let mut due: Vec<_> =
            pods.filter_map(|(pod, load)| Some((load.difference()?, pod, load.cost()))).collect();
        due.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
        due.into_iter().take(limit).map(|(_, pod, cost)| (pod.clone(), cost)).collect()
    }

    pub(super) fn record_written(&mut self, pod: &PodReference, cost: i32, now: Instant) {
        if let Some(load) = self.pods.get_mut(pod) {
            (load.written, load.written_at) = (WrittenCost::Known(cost), Some(now));
        }
    }

    /// Writes no more costs of this pod.
    pub(super) fn leave_alone(&mut self, pod: &PodReference) {
        if let Some(load) = self.pods.get_mut(pod) {
            load.written = WrittenCost::Foreign;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodReference {
        PodReference { namespace: "shop".to_owned(), name: name.to_owned(), uid: "1".to_owned() }
    }

    /// A plan with a clock and a log of its writes.
    struct PlanFixture {
        plan: CostPlan,
        now: Instant,
    }

    impl PlanFixture {
        fn new() -> Self {
            Self { plan: CostPlan::default(), now: Instant::now() }
        }

        /// Samples these loads for a minute; returns what was written.
        fn minute(&mut self, loads: &[(&str, u32)]) -> Vec<(String, i32)> {
            let mut written = Vec::new();
            for _ in 0..30 {
                self.now += Duration::from_secs(2);
                let sample = loads.iter().map(|(name, load)| (pod(name), *load));
                self.plan.record(sample, self.now);
                for (pod, cost) in self.plan.next_writes(self.now, 4) {
                    self.plan.record_written(&pod, cost, self.now);
                    written.push((pod.name, cost));
                }
            }
            written
        }
    }

    fn costs<const N: usize>(costs: [(&str, i32); N]) -> Vec<(String, i32)> {
        costs.map(|(name, cost)| (name.to_owned(), cost)).into()
    }

    #[test]
    fn leader_writes_each_cost_once_while_the_load_is_steady() {
        let mut fixture = PlanFixture::new();
        assert_eq!(fixture.minute(&[("a", 4), ("b", 0)]), costs([("a", 4), ("b", 0)]));
        assert_eq!(fixture.minute(&[("a", 5), ("b", 0)]), costs([]));
        // A pod that is new has no annotation, which counts as 0.
        assert_eq!(fixture.minute(&[("a", 4), ("b", 0), ("c", 0)]), costs([]));
    }

    #[test]
    fn significant_changes_are_written() {
        let mut fixture = PlanFixture::new();
        fixture.minute(&[("a", 4), ("b", 0)]);
        let written = fixture.minute(&[("a", 40), ("b", 1)]);
        assert!(written.len() <= 6, "{written:?}");
        let last = |name| written.iter().rfind(|(it, _)| it == name).map(|(_, cost)| *cost);
        assert!((27..=40).contains(&last("a").unwrap()), "{written:?}");
        assert_eq!(last("b"), Some(1));
    }

    #[test]
    fn writes_are_limited_in_number_and_in_rate() {
        let mut fixture = PlanFixture::new();
        let sample = || (0..100).map(|number| (pod(&format!("p{number}")), number));
        fixture.plan.record(sample(), fixture.now);
        let writes = fixture.plan.next_writes(fixture.now, 4);
        // The pods with the most load first.
        assert_eq!(writes.iter().map(|(_, cost)| *cost).collect::<Vec<_>>(), [99, 98, 97, 96]);
        for second in 0..60 {
            let load = if second % 2 == 0 { 1000 } else { 0 };
            fixture.plan.record([(pod("a"), load)].into_iter(), fixture.now);
        }
        let written = fixture.minute(&[("a", 7)]);
        assert!(written.len() <= 3, "{written:?}");
    }

    #[test]
    fn pod_of_another_writer_is_left_alone() {
        let mut fixture = PlanFixture::new();
        fixture.minute(&[("a", 4)]);
        fixture.plan.leave_alone(&pod("a"));
        assert_eq!(fixture.minute(&[("a", 100)]), costs([]));
    }
}
