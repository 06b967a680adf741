//! What a day is to be like: numbers by name, as `experiment.toml` has them.

use std::time::Duration;

use balance::{AdmissionLimits, ConcurrencyCap};

/// What a day is to be like.
#[derive(Clone, Debug)]
pub(crate) struct DaySettings {
    pub(crate) seed: u64,
    pub(crate) hours: u32,
    pub(crate) traffic: TrafficSettings,
    pub(crate) clients: ClientSettings,
    /// The mean time to serve a request, exponentially distributed.
    pub(crate) service: Duration,
    pub(crate) limits: AdmissionLimits,
    /// How long a request waits for a slot at most.
    pub(crate) patience: Duration,
    /// How long a pod takes from its creation until it is ready: evenly between the two.
    pub(crate) start: [Duration; 2],
    pub(crate) scaler: ScalerSettings,
}

/// How many requests come, as what they would keep busy.
#[derive(Clone, Debug)]
pub(crate) struct TrafficSettings {
    /// At the height of the day, bursts aside: so many pods, all their slots.
    pub(crate) busy_pods: u32,
    /// At its lowest, as a share of the height.
    pub(crate) valley_percent: u32,
    /// In a day, one in each of as many equal parts of it.
    pub(crate) bursts: u32,
    /// How many times as many requests come in a burst.
    pub(crate) burst_times: u32,
    /// How long a burst lasts: evenly between the two.
    pub(crate) burst_minutes: [u32; 2],
}

/// What clients do that are refused.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// What a refusal asks them to wait. They wait up to half as long again, so that they do not all return at once.
    pub(crate) retry_after: Duration,
    /// How many times a client asks before it goes away for good.
    pub(crate) tries: u32,
}

/// Who decides how many pods there are.
#[derive(Clone, Debug)]
pub(crate) struct ScalerSettings {
    pub(crate) kind: ScalerKind,
    pub(crate) sync: Duration,
    /// Of an HPA: how much of its slots each pod is to have in use.
    pub(crate) target_percent: u32,
    /// Of the script: how many of the pods go in a minute while nothing is refused.
    pub(crate) descent_percent: u32,
    /// How long there must have been no reason for more pods until there are fewer.
    pub(crate) stabilization: Duration,
    pub(crate) max_pods: u32,
}

/// What a scaler looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalerKind {
    /// An HPA on the demand: in flight, queued and refused.
    Demand,
    /// An HPA on what is in flight alone.
    InFlight,
    /// An HPA on how busy ready pods are, as of CPU utilization.
    Busy,
    /// An HPA on what the requests that come will need, which nobody can know: something to hold the others against.
    Need,
    /// A script on the rate of refusals, which knows of the pods that are starting.
    Refusals,
    /// The same, which does not.
    RefusalsAlone,
}

impl DaySettings {
    /// Changes of the usual day, each `name=number`, but `scaler=kind`.
    pub(crate) fn parse(options: &[&str]) -> Result<Self, String> {
        let mut settings = Self::default();
        for option in options {
            let (name, value) =
                option.split_once('=').ok_or_else(|| format!("{option}: name=value is missing"))?;
            settings.set(name, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == "scaler" {
            self.scaler.kind =
                ScalerKind::parse(value).ok_or_else(|| format!("there is no scaler {value}"))?;
            return Ok(());
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
            "stabilization_seconds" => self.scaler.stabilization = seconds,
            "max_pods" => self.scaler.max_pods = number,
            _ => return Err(format!("there is no {name}")),
        }
        if number == 0 && !["seed", "bursts", "queue"].contains(&name) {
            return Err(format!("{name}: a day needs more than 0"));
        }
        Ok(())
    }

    /// Slots of each pod.
    pub(crate) fn slots(&self) -> u32 {
        self.limits.cap.fixed().expect("slots are more than 0").get()
    }
}

impl Default for DaySettings {
    /// Small and short: an hour of ten pods.
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
            scaler: ScalerSettings {
                kind: ScalerKind::Demand,
                sync: Duration::from_secs(15),
                target_percent: 80,
                descent_percent: 5,
                stabilization: Duration::from_secs(300),
                max_pods: 1000,
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
    fn invalid_setting_gives_an_error_message() {
        for (option, says) in [
            ("hours", "hours: name=value is missing"),
            ("ours=3", "there is no ours"),
            ("hours=0", "hours: a day needs more than 0"),
            ("hours=-3", "hours: invalid digit found in string"),
            ("scaler=crystal-ball", "there is no scaler crystal-ball"),
        ] {
            assert_eq!(DaySettings::parse(&[option]).map(|_| ()), Err(says.to_owned()));
        }
    }
}
