//! `spec.behavior` of a HorizontalPodAutoscaler: tolerances, stabilization windows and policies.
//!
//! The algorithm is that of Kubernetes 1.36, `normalizeDesiredReplicasWithBehaviors` in
//! `horizontal.go`, and for an autoscaler without a behavior `normalizeDesiredReplicas`.

use std::collections::VecDeque;
use std::time::Duration;

use balance::Time;

/// `--horizontal-pod-autoscaler-tolerance`.
const TOLERANCE: f64 = 0.1;
/// Without a behavior, an autoscaler may double the pods, or have this many, whichever is more.
const LEAST_LIMIT_UP: u32 = 4;

/// `spec.behavior`: the rules for both directions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScalingBehavior {
    pub(crate) up: ScalingRules,
    pub(crate) down: ScalingRules,
}

/// Rules for one direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScalingRules {
    /// Stabilization window.
    pub(crate) window: Duration,
    /// Relative deviation of a metric from its target up to which nothing is done.
    pub(crate) tolerance: f64,
    pub(crate) policies: Vec<ScalingPolicy>,
    pub(crate) selection: PolicySelection,
}

/// Limit of the change within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScalingPolicy {
    pub(crate) change: PolicyChange,
    pub(crate) period: Duration,
}

/// Largest change that a policy allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyChange {
    Pods(u32),
    /// Percentage of the pods at the begin of the period.
    Percent(u32),
}

/// `selectPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicySelection {
    /// The policy that allows the largest change.
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

#[derive(Clone, Copy)]
enum ScalingDirection {
    Up,
    Down,
}

impl Default for ScalingBehavior {
    /// Returns the values of fields that a behavior does not set.
    fn default() -> Self {
        let (tolerance, selection) = (TOLERANCE, PolicySelection::Max);
        let in_15_seconds = |change| ScalingPolicy { change, period: Duration::from_secs(15) };
        let percent = in_15_seconds(PolicyChange::Percent(100));
        let pods = in_15_seconds(PolicyChange::Pods(4));
        Self {
            up: ScalingRules {
                window: Duration::ZERO,
                tolerance,
                policies: vec![pods, percent],
                selection,
            },
            down: ScalingRules {
                window: Duration::from_secs(300),
                tolerance,
                policies: vec![percent],
                selection,
            },
        }
    }
}

impl ScalingBehavior {
    /// True if the ratio of a metric to its target needs no change.
    pub(crate) fn is_within(&self, ratio: f64) -> bool {
        (1.0 - self.down.tolerance..=1.0 + self.up.tolerance).contains(&ratio)
    }
}

impl PolicySelection {
    /// Parses `max`, `min` or `disabled`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "max" => Self::Max,
            "min" => Self::Min,
            "disabled" => Self::Disabled,
            _ => return None,
        })
    }
}

impl ScalingPolicy {
    /// Parses a list such as `4pods/15s,100%/15s`.
    pub(crate) fn parse_list(text: &str) -> Option<Vec<Self>> {
        text.split(',').map(Self::parse).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        let (change, period) = text.split_once('/')?;
        let seconds: u32 = period.strip_suffix('s')?.parse().ok()?;
        let change = match change.strip_suffix('%') {
            Some(percent) => PolicyChange::Percent(percent.parse().ok()?),
            None => PolicyChange::Pods(change.strip_suffix("pods")?.parse().ok()?),
        };
        // The limits of the API.
        let is_valid = (1..=1800).contains(&seconds) && change.amount() > 0;
        is_valid.then_some(Self { change, period: Duration::from_secs(seconds.into()) })
    }

    /// Returns the number of pods up to which the policy allows to go, if there were `begin` at the
    /// begin of its period.
    fn limit(self, direction: ScalingDirection, begin: i64) -> i64 {
        let times = |percent| begin as f64 * (1.0 + percent / 100.0);
        match (self.change, direction) {
            (PolicyChange::Pods(pods), ScalingDirection::Up) => begin + i64::from(pods),
            (PolicyChange::Pods(pods), ScalingDirection::Down) => begin - i64::from(pods),
            // Rounded up, so that one pod can become two.
            (PolicyChange::Percent(percent), ScalingDirection::Up) => {
                times(f64::from(percent)).ceil() as i64
            }
            (PolicyChange::Percent(percent), ScalingDirection::Down) => {
                times(-f64::from(percent)) as i64
            }
        }
    }
}

impl PolicyChange {
    fn amount(self) -> u32 {
        match self {
            Self::Pods(amount) | Self::Percent(amount) => amount,
        }
    }
}

/// Recommendations and changes of the past, as far as rules refer to them.
#[derive(Default)]
pub(crate) struct ScalingHistory {
    recommendations: VecDeque<(Time, u32)>,
    /// Pods added, by time.
    added: VecDeque<(Time, u32)>,
    /// Pods removed, by time.
    removed: VecDeque<(Time, u32)>,
}

impl ScalingHistory {
    /// Returns the number of pods to have: the recommendation of the metric, stabilized and limited.
    /// `None` is an autoscaler without a behavior.
    pub(crate) fn apply(
        &mut self,
        behavior: Option<&ScalingBehavior>,
        pods: u32,
        recommended: u32,
        now: Time,
    ) -> u32 {
        let wanted = match behavior {
            Some(behavior) => {
                let stabilized = self.stabilize(behavior, pods, recommended, now);
                self.limit(behavior, pods, stabilized, now)
            }
            None => self.apply_without_behavior(pods, recommended, now),
        };
        self.recommendations.push_back((now, recommended));
        self.forget(behavior, now);
        wanted
    }

    /// Records a change that has been made.
    pub(crate) fn record_change(&mut self, before: u32, after: u32, now: Time) {
        if after > before {
            self.added.push_back((now, after - before));
        } else if after < before {
            self.removed.push_back((now, before - after));
        }
    }

    /// Scales up to the lowest recommendation of the window for it, or down to the highest of the
    /// other one.
    ///
    /// The controller is late by some milliseconds, now more and now less, so a recommendation that
    /// is as old as the window may count or not; here it counts.
    fn stabilize(&self, behavior: &ScalingBehavior, pods: u32, recommended: u32, now: Time) -> u32 {
        let within = |window| {
            let recent = move |&&(at, _): &&(Time, u32)| now.saturating_since(at) <= window;
            self.recommendations.iter().filter(recent).map(|&(_, pods)| pods)
        };
        let lowest = within(behavior.up.window).fold(recommended, u32::min);
        let highest = within(behavior.down.window).fold(recommended, u32::max);
        pods.max(lowest).min(highest)
    }

    fn limit(&self, behavior: &ScalingBehavior, pods: u32, wanted: u32, now: Time) -> u32 {
        if wanted > pods {
            wanted.min(self.limit_of(&behavior.up, ScalingDirection::Up, pods, now).max(pods))
        } else if wanted < pods {
            wanted.max(self.limit_of(&behavior.down, ScalingDirection::Down, pods, now).min(pods))
        } else {
            wanted
        }
    }

    /// Returns the limit that the selected policy sets.
    fn limit_of(
        &self,
        rules: &ScalingRules,
        direction: ScalingDirection,
        pods: u32,
        now: Time,
    ) -> u32 {
        let limits = rules.policies.iter().map(|&policy| {
            let added = sum_within(&self.added, policy.period, now);
            let removed = sum_within(&self.removed, policy.period, now);
            policy.limit(direction, i64::from(pods) - added + removed)
        });
        let selected = match (rules.selection, direction) {
            (PolicySelection::Disabled, _) => None,
            (PolicySelection::Max, ScalingDirection::Up)
            | (PolicySelection::Min, ScalingDirection::Down) => limits.max(),
            (PolicySelection::Min, ScalingDirection::Up)
            | (PolicySelection::Max, ScalingDirection::Down) => limits.min(),
        };
        selected.map_or(pods, |limit| limit.max(0) as u32)
    }

    /// Follows the highest recommendation of the window, also upwards.
    fn apply_without_behavior(&self, pods: u32, recommended: u32, now: Time) -> u32 {
        let window = ScalingBehavior::default().down.window;
        let recent = |&&(at, _): &&(Time, u32)| now.saturating_since(at) <= window;
        let recommendations = self.recommendations.iter().filter(recent).map(|&(_, pods)| pods);
        recommendations.fold(recommended, u32::max).min((pods * 2).max(LEAST_LIMIT_UP))
    }

    fn forget(&mut self, behavior: Option<&ScalingBehavior>, now: Time) {
        let default = ScalingBehavior::default();
        let rules = behavior.unwrap_or(&default);
        forget_before(&mut self.recommendations, rules.up.window.max(rules.down.window), now);
        let policies = rules.up.policies.iter().chain(&rules.down.policies);
        let longest = policies.map(|policy| policy.period).max().unwrap_or_default();
        forget_before(&mut self.added, longest, now);
        forget_before(&mut self.removed, longest, now);
    }
}

/// Returns the sum of the changes in a period, whose begin does not belong to it.
fn sum_within(changes: &VecDeque<(Time, u32)>, period: Duration, now: Time) -> i64 {
    let recent = |&&(at, _): &&(Time, u32)| now.saturating_since(at) < period;
    changes.iter().filter(recent).map(|&(_, pods)| i64::from(pods)).sum()
}

fn forget_before(entries: &mut VecDeque<(Time, u32)>, age: Duration, now: Time) {
    while entries.front().is_some_and(|&(at, _)| now.saturating_since(at) > age) {
        entries.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Autoscaler that is given recommendations.
    struct GivenScaler {
        behavior: Option<ScalingBehavior>,
        history: ScalingHistory,
        pods: u32,
    }

    impl GivenScaler {
        fn new(pods: u32, change: impl FnOnce(&mut ScalingBehavior)) -> Self {
            let mut behavior = ScalingBehavior::default();
            change(&mut behavior);
            Self { behavior: Some(behavior), history: ScalingHistory::default(), pods }
        }

        /// Returns the pods after a sync at each of these seconds, with this recommendation.
        fn follow(&mut self, syncs: &[(u64, u32)]) -> Vec<u32> {
            syncs.iter().map(|&(second, recommended)| self.sync(second, recommended)).collect()
        }

        fn sync(&mut self, second: u64, recommended: u32) -> u32 {
            let now = Time::ZERO + Duration::from_secs(second);
            let behavior = self.behavior.as_ref();
            let wanted = self.history.apply(behavior, self.pods, recommended, now);
            self.history.record_change(self.pods, wanted, now);
            self.pods = wanted;
            wanted
        }
    }

    fn policies(text: &str) -> Vec<ScalingPolicy> {
        ScalingPolicy::parse_list(text).unwrap()
    }

    /// "Scaling policies": 80 pods are to become 10. The percentage allows more than four pods until
    /// there are 40, of which it allows to remove 4; then four pods a minute are more.
    #[test]
    fn documented_example_of_two_scale_down_policies() {
        let mut scaler = GivenScaler::new(80, |behavior| {
            behavior.down.policies = policies("4pods/60s,10%/60s");
            behavior.down.window = Duration::ZERO;
        });
        let minutes: Vec<_> = (0..20).map(|minute| (minute * 60, 10)).collect();
        // Kubernetes rounds what remains downwards: 72 less 10 % is 64.8, so 64 remain.
        let expected =
            [72, 64, 57, 51, 45, 40, 36, 32, 28, 24, 20, 16, 12, 10, 10, 10, 10, 10, 10, 10];
        assert_eq!(scaler.follow(&minutes), expected);
    }

    /// "Example: limit scale down rate", whose `selectPolicy: Min` removes at most five pods a minute.
    #[test]
    fn documented_example_of_the_smaller_policy() {
        let mut scaler = GivenScaler::new(100, |behavior| {
            behavior.down.policies = policies("10%/60s,5pods/60s");
            behavior.down.selection = PolicySelection::Min;
            behavior.down.window = Duration::ZERO;
        });
        assert_eq!(scaler.follow(&[(0, 1), (15, 1), (60, 1), (120, 1)]), [95, 95, 90, 85]);
        scaler.pods = 20;
        assert_eq!(scaler.follow(&[(600, 1), (660, 1)]), [18, 16], "10 % is less than five pods");
    }

    /// "Example: disable scale down".
    #[test]
    fn documented_example_of_no_scale_down() {
        let disable = |behavior: &mut ScalingBehavior| {
            behavior.down.selection = PolicySelection::Disabled;
        };
        let mut scaler = GivenScaler::new(10, disable);
        assert_eq!(scaler.follow(&[(0, 1), (400, 1), (415, 12)]), [10, 10, 12]);
    }

    /// "Default behavior": four pods or twice as many in 15 s upwards; all of them downwards, after
    /// the highest recommendation of five minutes.
    #[test]
    fn documented_default_behavior() {
        let mut scaler = GivenScaler::new(1, |_| {});
        assert_eq!(
            scaler.follow(&[(0, 60), (15, 60), (30, 60), (45, 60), (60, 60)]),
            [5, 10, 20, 40, 60]
        );
        assert_eq!(scaler.follow(&[(75, 20), (90, 2), (360, 2), (375, 2)]), [60, 60, 60, 20]);
        assert_eq!(scaler.sync(390, 2), 2);
    }

    #[test]
    fn scale_up_window_waits_for_the_lowest_recommendation() {
        let mut scaler = GivenScaler::new(4, |behavior| {
            behavior.up.window = Duration::from_secs(60);
        });
        // A peak that is shorter than the window has no effect; one that lasts has its lowest value.
        let syncs = [(0, 4), (15, 8), (30, 4), (45, 8), (60, 8), (75, 7), (90, 8), (105, 8)];
        assert_eq!(scaler.follow(&syncs), [4, 4, 4, 4, 4, 4, 4, 7]);
    }

    #[test]
    fn policy_counts_all_changes_of_its_period() {
        let mut scaler = GivenScaler::new(10, |behavior| {
            behavior.up.policies = policies("6pods/60s");
            behavior.down.window = Duration::ZERO;
        });
        assert_eq!(scaler.follow(&[(0, 14), (15, 30), (30, 30), (60, 30)]), [14, 16, 16, 20]);
        // Removed pods may come back: the period began with them.
        assert_eq!(scaler.follow(&[(75, 22), (90, 12), (105, 40)]), [22, 12, 22]);
    }

    #[test]
    fn one_pod_doubles_and_half_of_one_pod_is_none() {
        let mut scaler = GivenScaler::new(1, |behavior| {
            behavior.up.policies = policies("10%/15s");
            behavior.down.policies = policies("50%/15s");
            behavior.down.window = Duration::ZERO;
        });
        assert_eq!(scaler.follow(&[(0, 9), (15, 9), (30, 1), (45, 0)]), [2, 3, 1, 0]);
    }

    #[test]
    fn autoscaler_without_a_behavior_follows_the_highest_recommendation_upwards_too() {
        let mut scaler =
            GivenScaler { behavior: None, history: ScalingHistory::default(), pods: 1 };
        assert_eq!(
            scaler.follow(&[(0, 30), (15, 2), (30, 2), (45, 2), (60, 2)]),
            [4, 8, 16, 30, 30]
        );
        assert_eq!(scaler.follow(&[(300, 2), (315, 2)]), [30, 2]);
    }

    #[test]
    fn tolerances_differ_by_direction() {
        let mut behavior = ScalingBehavior::default();
        (behavior.up.tolerance, behavior.down.tolerance) = (0.0, 0.3);
        let ratios = [0.69, 0.71, 1.0, 1.01];
        assert_eq!(ratios.map(|ratio| behavior.is_within(ratio)), [false, true, true, false]);
    }

    #[test]
    fn invalid_policy_is_rejected() {
        assert_eq!(policies("4pods/15s,100%/60s")[1].change, PolicyChange::Percent(100));
        for text in ["", "4pods", "4/15s", "0pods/15s", "4pods/0s", "4pods/1801s", "-1%/15s"] {
            assert_eq!(ScalingPolicy::parse_list(text), None, "{text}");
        }
    }
}
