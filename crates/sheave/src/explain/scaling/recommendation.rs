//! Next step of a HorizontalPodAutoscaler for the value of a metric, with its reasons.
//!
//! Source: Kubernetes, `pkg/controller/podautoscaler`: `replica_calculator.go`, `horizontal.go`. The recommendations of
//! the past are known to the controller alone, as are the steps within the period of a policy: reasons say so.

use super::autoscaler::{AutoscalerObject, ScalingPolicy, ScalingRules, TargetValue};
use super::quantity;

/// Difference of demand and target that is ignored
/// (`--horizontal-pod-autoscaler-tolerance` of the controller).
const TOLERANCE: f64 = 0.1;
/// Time for which a higher recommendation keeps pods
/// (`--horizontal-pod-autoscaler-downscale-stabilization` of the controller).
const DOWN_STABILIZATION_SECONDS: u32 = 300;
/// Pods that an autoscaler without a behavior may have after one step, if twice as many as now are fewer
/// (`scaleUpLimitMinimum` of the controller).
const LEAST_STEP_UP: u32 = 4;

/// Number of pods after the next sync, with the reasons.
#[derive(Debug, PartialEq)]
pub(super) struct ScalingRecommendation {
    /// `None`: the autoscaler does nothing.
    pub(super) pods: Option<u32>,
    pub(super) reasons: Vec<String>,
}

/// Direction of a step.
#[derive(Clone, Copy, PartialEq)]
enum ScalingDirection {
    Up,
    Down,
}

/// Returns the next step.
pub(super) fn recommend(
    autoscaler: &AutoscalerObject,
    target: &TargetValue,
    value: f64,
) -> ScalingRecommendation {
    let mut reasons = Vec::new();
    let pods = decide(autoscaler, target, value, &mut reasons);
    ScalingRecommendation { pods, reasons }
}

fn decide(
    autoscaler: &AutoscalerObject,
    target: &TargetValue,
    value: f64,
    reasons: &mut Vec<String>,
) -> Option<u32> {
    let spec = &autoscaler.spec;
    let min = spec.min_replicas.unwrap_or(1);
    let Some(current) = autoscaler.status.current_replicas else {
        reasons.push("it has not synced yet: the number of pods is not known".to_owned());
        return None;
    };
    if current == 0 && min > 0 {
        reasons
            .push("there are no pods: it does nothing until something else starts one".to_owned());
        return None;
    }
    let (ratio, wanted) = match target {
        TargetValue::Invalid(text) => {
            reasons.push(format!("the target is no positive number: {text}"));
            return None;
        }
        TargetValue::Average(target) => {
            let wanted = whole(value / target);
            reasons.push(format!("{value:.2} / {target} for each pod, rounded up: {wanted} pods"));
            (value / (target * f64::from(current)), wanted)
        }
        TargetValue::Total(target) => {
            let wanted = whole(value / target * f64::from(current.max(1)));
            reasons.push(format!(
                "{value:.2} / {target} x {current} pods, rounded up: {wanted} pods if all are ready"
            ));
            (value / target, wanted)
        }
    };
    let direction = if wanted > current { ScalingDirection::Up } else { ScalingDirection::Down };
    let rules = spec.behavior.as_ref().and_then(|it| match direction {
        ScalingDirection::Up => it.scale_up.as_ref(),
        ScalingDirection::Down => it.scale_down.as_ref(),
    });
    let tolerance = rules.and_then(|it| it.tolerance.as_deref()).and_then(quantity::parse);
    let tolerance = tolerance.unwrap_or(TOLERANCE);
    let percent = tolerance * 100.0;
    if current > 0 && (ratio - 1.0).abs() <= tolerance {
        reasons.push(format!(
            "{ratio:.2} of the target of {current} pods: within the tolerance of {percent:.0} %"
        ));
        return Some(within(current, min, spec.max_replicas, reasons));
    }
    if spec.behavior.is_none() {
        let step = limited_without_behavior(wanted, current, reasons);
        return Some(within(step, min, spec.max_replicas, reasons));
    }
    let step = limited(wanted, current, direction, rules, reasons);
    let pods = within(step, min, spec.max_replicas, reasons);
    let window = rules.and_then(|it| it.stabilization_window_seconds);
    let window = window.unwrap_or(match direction {
        ScalingDirection::Up => 0,
        ScalingDirection::Down => DOWN_STABILIZATION_SECONDS,
    });
    if window > 0 && pods != current {
        let extreme = if direction == ScalingDirection::Up { "lowest" } else { "highest" };
        reasons.push(format!(
            "not before the {extreme} recommendation of the last {window} s is that: the stabilization window"
        ));
    }
    Some(pods)
}

/// Returns a number of pods, rounded up as the controller does.
fn whole(pods: f64) -> u32 {
    // The controller divides whole numbers: 0.3 by 0.1 is 3. A little demand is one pod, never none.
    (pods * (1.0 - 1e-12)).ceil() as u32
}

/// Applies the limits of an autoscaler without a behavior. They are not those of one with the default policies.
fn limited_without_behavior(wanted: u32, current: u32, reasons: &mut Vec<String>) -> u32 {
    let limit = current.saturating_mul(2).max(LEAST_STEP_UP);
    if wanted > limit {
        reasons.push(format!(
            "{limit} pods after one step: without a behavior, twice as many or {LEAST_STEP_UP}"
        ));
    }
    if wanted != current {
        reasons.push(format!(
            "not fewer than the highest recommendation of the last {DOWN_STABILIZATION_SECONDS} s: it has no behavior"
        ));
    }
    wanted.min(limit)
}

/// Applies the policies, as if no step has been made within their periods.
fn limited(
    wanted: u32,
    current: u32,
    direction: ScalingDirection,
    rules: Option<&ScalingRules>,
    reasons: &mut Vec<String>,
) -> u32 {
    let select = rules.and_then(|it| it.select_policy.as_deref()).unwrap_or("Max");
    let field = match direction {
        ScalingDirection::Up => "scaleUp",
        ScalingDirection::Down => "scaleDown",
    };
    if select == "Disabled" {
        reasons.push(format!("selectPolicy of {field} is Disabled"));
        return current;
    }
    let defaults = default_policies(direction);
    let policies = rules.map(|it| it.policies.as_slice()).filter(|it| !it.is_empty());
    let limits = policies.unwrap_or(&defaults).iter().map(|it| after(it, current, direction));
    let widest = (direction == ScalingDirection::Up) == (select == "Max");
    let limit = if widest { limits.max() } else { limits.min() };
    let Some(limit) = limit else { return wanted };
    let is_limited = match direction {
        ScalingDirection::Up => wanted > limit,
        ScalingDirection::Down => wanted < limit,
    };
    if !is_limited {
        return wanted;
    }
    reasons.push(format!("{limit} pods after one step, by the policies of {field}"));
    limit
}

fn default_policies(direction: ScalingDirection) -> Vec<ScalingPolicy> {
    let policy = |kind: &str, value| ScalingPolicy { kind: kind.to_owned(), value };
    match direction {
        ScalingDirection::Up => vec![policy("Pods", 4), policy("Percent", 100)],
        ScalingDirection::Down => vec![policy("Percent", 100)],
    }
}

/// Returns the number of pods after the largest step that a policy allows.
fn after(policy: &ScalingPolicy, current: u32, direction: ScalingDirection) -> u32 {
    let share = f64::from(current) * f64::from(policy.value) / 100.0;
    match (policy.kind.as_str(), direction) {
        ("Percent", ScalingDirection::Up) => (f64::from(current) + share).ceil() as u32,
        ("Percent", ScalingDirection::Down) => (f64::from(current) - share).max(0.0).floor() as u32,
        (_, ScalingDirection::Up) => current.saturating_add(policy.value),
        (_, ScalingDirection::Down) => current.saturating_sub(policy.value),
    }
}

fn within(pods: u32, min: u32, max: u32, reasons: &mut Vec<String>) -> u32 {
    if pods > max {
        reasons.push(format!("maxReplicas is {max}"));
    }
    if pods < min {
        reasons.push(format!("minReplicas is {min}"));
    }
    pods.min(max).max(min)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn autoscaler(current: u32, behavior: Value) -> AutoscalerObject {
        let value = json!({
            "metadata": { "name": "web" },
            "spec": {
                "scaleTargetRef": { "kind": "Deployment", "name": "web" },
                "minReplicas": 1, "maxReplicas": 20, "behavior": behavior,
            },
            "status": { "currentReplicas": current },
        });
        serde_json::from_value(value).unwrap()
    }

    fn next(current: u32, target: &TargetValue, value: f64) -> (Option<u32>, String) {
        with(current, json!({}), target, value)
    }

    fn with(
        current: u32,
        behavior: Value,
        target: &TargetValue,
        value: f64,
    ) -> (Option<u32>, String) {
        let ScalingRecommendation { pods, reasons } =
            recommend(&autoscaler(current, behavior), target, value);
        (pods, reasons.join("; "))
    }

    #[track_caller]
    fn check(found: (Option<u32>, String), pods: Option<u32>, reason: &str) {
        assert_eq!(found.0, pods, "{}", found.1);
        assert!(found.1.contains(reason), "{}", found.1);
    }

    #[test]
    fn pods_are_the_value_by_the_target_rounded_up() {
        let two = TargetValue::Average(2.0);
        check(next(2, &two, 7.2), Some(4), "7.20 / 2 for each pod, rounded up: 4 pods");
        // 0.3 / 0.1 is more than 3 in binary.
        check(next(2, &TargetValue::Average(0.1), 0.3), Some(3), "3 pods");
        check(next(3, &TargetValue::Total(10.0), 20.0), Some(6), "20.00 / 10 x 3 pods");
    }

    #[test]
    fn small_differences_are_ignored() {
        let two = TargetValue::Average(2.0);
        check(
            next(4, &two, 8.7),
            Some(4),
            "1.09 of the target of 4 pods: within the tolerance of 10 %",
        );
        check(next(4, &two, 7.3), Some(4), "within the tolerance");
        check(next(4, &two, 8.9), Some(5), "5 pods");
        let narrow = json!({ "scaleUp": { "tolerance": "50m" } });
        check(with(4, narrow, &two, 8.7), Some(5), "5 pods");
    }

    #[test]
    fn steps_are_limited_by_policies_and_bounds() {
        let one = TargetValue::Average(1.0);
        check(next(1, &one, 12.0), Some(5), "5 pods after one step, by the policies of scaleUp");
        check(next(8, &one, 90.0), Some(16), "16 pods after one step");
        check(next(15, &one, 90.0), Some(20), "maxReplicas is 20");
        check(next(3, &one, 0.0), Some(1), "minReplicas is 1");
        let policies = json!([{ "type": "Pods", "value": 1, "periodSeconds": 60 },
            { "type": "Percent", "value": 10, "periodSeconds": 60 }]);
        let slow = json!({ "scaleDown": { "policies": policies, "selectPolicy": "Min" } });
        check(
            with(15, slow, &one, 2.0),
            Some(14),
            "14 pods after one step, by the policies of scaleDown",
        );
        let slow = json!({ "scaleDown": { "policies": policies } });
        check(with(15, slow, &one, 2.0), Some(13), "13 pods after one step");
        let never = json!({ "scaleDown": { "selectPolicy": "Disabled" } });
        check(with(15, never, &one, 2.0), Some(15), "Disabled");
    }

    #[test]
    fn without_a_behavior_pods_at_most_double() {
        let one = TargetValue::Average(1.0);
        check(with(1, Value::Null, &one, 12.0), Some(4), "4 pods after one step");
        check(with(3, Value::Null, &one, 12.0), Some(6), "6 pods after one step");
        check(with(15, Value::Null, &one, 90.0), Some(20), "maxReplicas is 20");
        let down = with(9, Value::Null, &one, 3.0);
        check(down, Some(3), "not fewer than the highest recommendation of the last 300 s");
        check(with(9, Value::Null, &one, 9.5), Some(9), "within the tolerance");
    }

    #[test]
    fn scaling_down_waits_for_the_stabilization_window() {
        let one = TargetValue::Average(1.0);
        check(next(9, &one, 3.0), Some(3), "the highest recommendation of the last 300 s");
        let at_once = json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } });
        let found = with(9, at_once, &one, 3.0);
        assert!(!found.1.contains("stabilization"), "{}", found.1);
        let up = json!({ "scaleUp": { "stabilizationWindowSeconds": 60 } });
        check(with(2, up, &one, 4.0), Some(4), "the lowest recommendation of the last 60 s");
    }

    #[test]
    fn without_pods_or_a_target_there_is_no_step() {
        let one = TargetValue::Average(1.0);
        check(next(0, &one, 3.0), None, "there are no pods");
        let invalid = TargetValue::Invalid("averageValue \"0\"".to_owned());
        check(next(2, &invalid, 3.0), None, "averageValue \"0\"");
        let unsynced: AutoscalerObject = serde_json::from_value(json!({
            "metadata": { "name": "web" },
            "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "web" }, "maxReplicas": 2 },
        }))
        .unwrap();
        assert_eq!(recommend(&unsynced, &one, 3.0).pods, None);
    }

    #[test]
    fn absurd_values_stay_within_the_bounds() {
        let tiny = TargetValue::Average(1e-9);
        check(next(15, &tiny, 1e12), Some(20), "maxReplicas is 20");
        check(next(3, &TargetValue::Average(1e18), 1.0), Some(1), "1 pods");
    }
}
