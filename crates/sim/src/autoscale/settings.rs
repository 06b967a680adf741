//! Settings of a day: numbers by name, as in `experiment.toml`.

use std::time::Duration;

use balance::{AdmissionLimits, ConcurrencyCap};

use super::behavior::{PolicySelection, ScalingBehavior, ScalingPolicy};

/// Settings that may be 0.
const MAY_BE_ZERO: &[&str] = &[
    "seed",
    "bursts",
    "queue",
    "stabilization_seconds",
    "up_window_seconds",
    "up_tolerance_percent",
    "down_tolerance_percent",
    "metric_age_seconds",
    "keda_polling_seconds",
    "between_percent",
    "node_pods",
];

/// Settings of a day.
#[derive(Clone, Debug)]
pub(crate) struct DaySettings {
    pub(crate) seed: u64,
    pub(crate) hours: u32,
    pub(crate) traffic: TrafficSettings,
    pub(crate) clients: ClientSettings,
    /// Mean time to serve a request, exponentially distributed.
    pub(crate) service: Duration,
    pub(crate) limits: AdmissionLimits,
    /// Longest wait of a request for a slot.
    pub(crate) patience: Duration,
    /// Time from a pod's creation until it is ready: uniformly distributed between the two.
    pub(crate) start: [Duration; 2],
    pub(crate) nodes: NodeSettings,
    pub(crate) scaler: ScalerSettings,
}

/// Nodes and their autoscaler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// Pods that a node has room for; 0 if nodes always exist.
    pub(crate) pods: u32,
    /// Time from the request for a node until it is ready: uniformly distributed between the two.
    pub(crate) start: [Duration; 2],
    /// Time without a pod after which a node is removed.
    pub(crate) idle: Duration,
}

/// Traffic, as the load that requests cause.
#[derive(Clone, Debug)]
pub(crate) struct TrafficSettings {
    /// Load at the peak of the day, bursts excluded: this many pods with all their slots busy.
    pub(crate) busy_pods: u32,
    /// Load at the lowest point, as a percentage of the peak.
    pub(crate) valley_percent: u32,
    /// Number of bursts in a day; the day has as many equal parts with one burst each.
    pub(crate) bursts: u32,
    /// Factor of the request rate in a burst.
    pub(crate) burst_times: u32,
    /// Load between bursts, as a percentage of the usual load.
    pub(crate) between_percent: u32,
    /// Duration of a burst: uniformly distributed between the two.
    pub(crate) burst_minutes: [u32; 2],
}

/// Behaviour of rejected clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// `Retry-After` of a rejection. Clients wait up to half as long again, so that they do not all
    /// return at once.
    pub(crate) retry_after: Duration,
    /// Number of attempts of a client before it leaves for good.
    pub(crate) tries: u32,
}

/// Scaler of the deployment.
#[derive(Clone, Debug)]
pub(crate) struct ScalerSettings {
    pub(crate) kind: ScalerKind,
    pub(crate) sync: Duration,
    /// For an HPA: desired percentage of a pod's slots in use.
    pub(crate) target_percent: u32,
    /// For the script: percentage of pods removed in a minute while nothing is rejected.
    pub(crate) descent_percent: u32,
    /// For the script: time without a rejection before pods are removed.
    pub(crate) stabilization: Duration,
    /// For an HPA: its `spec.behavior`, if it has one.
    pub(crate) behavior: Option<ScalingBehavior>,
    /// Age of the metric when the scaler reads it.
    pub(crate) metric_age: Duration,
    pub(crate) max_pods: u32,
    /// KEDA, which removes the last pod; without it one pod is always there.
    pub(crate) keda: Option<KedaSettings>,
}

/// Activation by KEDA: from zero pods and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KedaSettings {
    /// `pollingInterval`; zero if the demand is pushed to KEDA.
    pub(crate) polling: Duration,
    /// `cooldownPeriod`: time without demand after which the last pods are removed.
    pub(crate) cooldown: Duration,
}

/// Input of a scaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalerKind {
    /// An HPA on the demand: in flight, queued and rejected.
    Demand,
    /// An HPA on requests in flight alone.
    InFlight,
    /// An HPA on the utilization of ready pods, as on CPU utilization.
    Busy,
    /// An HPA on the load of future requests, which cannot be known: a reference for the others.
    Need,
    /// A script on the rate of rejections, which counts the pods that are starting.
    Refusals,
    /// The same script without the pods that are starting.
    RefusalsAlone,
}

impl DaySettings {
    /// Parses changes of the default day, each `name=number`, but `scaler=kind`.
    pub(crate) fn parse(options: &[&str]) -> Result<Self, String> {
        let mut settings = Self::default();
        for option in options {
            let (name, value) =
                option.split_once('=').ok_or_else(|| format!("{option}: expected name=value"))?;
            settings.set(name, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some(valid) = self.set_by_text(name, value) {
            return valid.ok_or_else(|| format!("{name}: invalid value {value}"));
        }
        let number: u32 = value.parse().map_err(|error| format!("{name}: {error}"))?;
        let (seconds, millis) =
            (Duration::from_secs(number.into()), Duration::from_millis(number.into()));
        match name {
            "seed" => self.seed = number.into(),
            "hours" => self.hours = number,
            "busy_pods" => self.traffic.busy_pods = number,
            "valley_percent" => self.traffic.valley_percent = number,
            "bursts" => self.traffic.bursts = number,
            "burst_times" => self.traffic.burst_times = number,
            "burst_minutes_least" => self.traffic.burst_minutes[0] = number,
            "burst_minutes_most" => self.traffic.burst_minutes[1] = number,
            "retry_after_seconds" => self.clients.retry_after = seconds,
            "tries" => self.clients.tries = number,
            "service_ms" => self.service = millis,
            "slots" => self.limits.cap = ConcurrencyCap::of(number),
            "queue" => self.limits.max_waiting = number,
            "queue_timeout_ms" => self.patience = millis,
            "start_seconds_least" => self.start[0] = seconds,
            "start_seconds_most" => self.start[1] = seconds,
            "sync_seconds" => self.scaler.sync = seconds,
            "target_percent" => self.scaler.target_percent = number,
            "descent_percent" => self.scaler.descent_percent = number,
            "stabilization_seconds" => {
                self.scaler.stabilization = seconds;
                self.behavior().down.window = seconds;
            }
            "up_window_seconds" => self.behavior().up.window = seconds,
            "up_tolerance_percent" => self.behavior().up.tolerance = f64::from(number) / 100.0,
            "down_tolerance_percent" => self.behavior().down.tolerance = f64::from(number) / 100.0,
            "metric_age_seconds" => self.scaler.metric_age = seconds,
            "max_pods" => self.scaler.max_pods = number,
            "keda_polling_seconds" => self.keda().polling = seconds,
            "keda_cooldown_seconds" => self.keda().cooldown = seconds,
            "between_percent" => self.traffic.between_percent = number,
            "node_pods" => self.nodes.pods = number,
            "node_start_seconds_least" => self.nodes.start[0] = seconds,
            "node_start_seconds_most" => self.nodes.start[1] = seconds,
            "node_idle_seconds" => self.nodes.idle = seconds,
            _ => return Err(format!("unknown setting {name}")),
        }
        if number == 0 && !MAY_BE_ZERO.contains(&name) {
            return Err(format!("{name}: must be greater than 0"));
        }
        Ok(())
    }

    /// Sets what is not a number. Returns `None` if the setting is a number, `Some(None)` if the
    /// value is invalid.
    fn set_by_text(&mut self, name: &str, value: &str) -> Option<Option<()>> {
        let set_policies = |policies: &mut Vec<ScalingPolicy>| {
            ScalingPolicy::parse_list(value).map(|parsed| *policies = parsed)
        };
        let set_selection = |selection: &mut PolicySelection| {
            PolicySelection::parse(value).map(|parsed| *selection = parsed)
        };
        Some(match name {
            "scaler" => ScalerKind::parse(value).map(|kind| self.scaler.kind = kind),
            "behavior" => (value == "none").then(|| self.scaler.behavior = None),
            "up_policies" => set_policies(&mut self.behavior().up.policies),
            "down_policies" => set_policies(&mut self.behavior().down.policies),
            "up_select" => set_selection(&mut self.behavior().up.selection),
            "down_select" => set_selection(&mut self.behavior().down.selection),
            _ => return None,
        })
    }

    fn behavior(&mut self) -> &mut ScalingBehavior {
        self.scaler.behavior.get_or_insert_default()
    }

    fn keda(&mut self) -> &mut KedaSettings {
        let cooldown = Duration::from_secs(300);
        self.scaler.keda.get_or_insert(KedaSettings { polling: Duration::ZERO, cooldown })
    }

    /// Slots of each pod.
    pub(crate) fn slots(&self) -> u32 {
        self.limits.cap.fixed().expect("the setting is greater than 0").get()
    }
}

impl Default for DaySettings {
    /// Returns a small and short day: an hour of ten pods.
    fn default() -> Self {
        Self {
            seed: 1,
            hours: 1,
            traffic: TrafficSettings {
                busy_pods: 10,
                valley_percent: 25,
                bursts: 1,
                burst_times: 3,
                burst_minutes: [2, 10],
                between_percent: 100,
            },
            clients: ClientSettings { retry_after: Duration::from_secs(1), tries: 5 },
            service: Duration::from_millis(340),
            limits: AdmissionLimits {
                cap: ConcurrencyCap::of(4),
                max_waiting: 1024,
                ..AdmissionLimits::default()
            },
            patience: Duration::from_secs(5),
            start: [Duration::from_secs(30), Duration::from_secs(120)],
            nodes: NodeSettings {
                pods: 0,
                start: [Duration::from_secs(30), Duration::from_secs(180)],
                idle: Duration::from_secs(600),
            },
            scaler: ScalerSettings {
                kind: ScalerKind::Demand,
                sync: Duration::from_secs(15),
                target_percent: 80,
                descent_percent: 5,
                stabilization: Duration::from_secs(300),
                behavior: Some(ScalingBehavior::default()),
                metric_age: Duration::ZERO,
                max_pods: 1000,
                keda: None,
            },
        }
    }
}

impl ScalerKind {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "demand" => Self::Demand,
            "in-flight" => Self::InFlight,
            "busy" => Self::Busy,
            "need" => Self::Need,
            "refusals" => Self::Refusals,
            "refusals-alone" => Self::RefusalsAlone,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behavior_is_the_default_one_unless_it_is_changed_or_removed() {
        let behavior = |options: &[&str]| DaySettings::parse(options).unwrap().scaler.behavior;
        assert_eq!(behavior(&[]), Some(ScalingBehavior::default()));
        assert_eq!(behavior(&["behavior=none"]), None);
        let changed = behavior(&["up_policies=10%/60s", "up_select=min", "up_window_seconds=30"]);
        let up = changed.unwrap().up;
        assert_eq!((up.policies.len(), up.selection), (1, PolicySelection::Min));
        assert_eq!(up.window, Duration::from_secs(30));
    }

    #[test]
    fn invalid_setting_gives_an_error_message() {
        for (option, message) in [
            ("hours", "hours: expected name=value"),
            ("ours=3", "unknown setting ours"),
            ("hours=0", "hours: must be greater than 0"),
            ("hours=-3", "hours: invalid digit found in string"),
            ("scaler=crystal-ball", "scaler: invalid value crystal-ball"),
            ("up_policies=4pods", "up_policies: invalid value 4pods"),
            ("down_select=none", "down_select: invalid value none"),
        ] {
            assert_eq!(DaySettings::parse(&[option]).map(|_| ()), Err(message.to_owned()));
        }
    }
}
