//! What a judgement of health may do.

use balance::health::{EjectionState, HealthSettings, HealthStatus};
use balance::{EndpointSet, HealthEvaluator, Time};

/// Holds a judgement against the settings. Gives for each of so many servers whether it must get nothing from now on.
pub(crate) fn check_evaluation(
    ward: &HealthEvaluator,
    configured: &EndpointSet<usize>,
    settings: &HealthSettings,
    now: Time,
    servers: usize,
) -> Vec<bool> {
    let members = configured.members();
    let conditions: Vec<HealthStatus> =
        ward.statuses(settings, now).map(|(_, condition)| condition).collect();
    let missed: Vec<HealthStatus> = members
        .iter()
        .zip(&conditions)
        .filter(|(member, _)| member.weight > 0)
        .map(|(_, condition)| *condition)
        .collect();
    let is_ejected = |condition: &&HealthStatus| condition.ejection != EjectionState::Serving;
    let ejected = missed.iter().filter(is_ejected).count();
    let percent = settings.passive.map_or(0, |passive| passive.max_ejection_percent as usize);
    let allowed = (missed.len() * percent / 100).max(usize::from(missed.len() > 1));
    assert!(ejected <= allowed, "{ejected} of {} ejected, more than {percent} %", missed.len());

    let usable =
        missed.iter().filter(|condition| !is_ejected(condition) && condition.passes_probes).count();
    let panic = usable * 100 < missed.len() * settings.panic_percent as usize;
    assert_eq!(ward.is_panicking(), panic, "{usable} of {} are usable", missed.len());

    let mut out = vec![false; servers];
    for (member, condition) in members.iter().zip(&conditions) {
        let serves = condition.ejection == EjectionState::Serving && condition.passes_probes;
        out[member.endpoint.data] = !serves && !panic;
    }
    out
}
