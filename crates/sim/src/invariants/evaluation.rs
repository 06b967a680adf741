//! Checks of a health evaluation.

use balance::health::{EjectionState, HealthSettings, HealthStatus};
use balance::{EndpointSet, HealthEvaluator, Time};

/// Checks a health evaluation against the settings. Returns for each server whether it must get
/// nothing from now on.
pub(crate) fn check_evaluation(
    evaluator: &HealthEvaluator,
    configured: &EndpointSet<usize>,
    settings: &HealthSettings,
    now: Time,
    servers: usize,
) -> Vec<bool> {
    let members = configured.members();
    let statuses: Vec<HealthStatus> =
        evaluator.statuses(settings, now).map(|(_, status)| status).collect();
    let missed: Vec<HealthStatus> = members
        .iter()
        .zip(&statuses)
        .filter(|(member, _)| member.weight > 0)
        .map(|(_, status)| *status)
        .collect();
    let is_ejected = |status: &&HealthStatus| status.ejection != EjectionState::Serving;
    let ejected = missed.iter().filter(is_ejected).count();
    let percent = settings.passive.map_or(0, |passive| passive.max_ejection_percent as usize);
    let allowed = (missed.len() * percent / 100).max(usize::from(missed.len() > 1));
    assert!(ejected <= allowed, "{ejected} of {} ejected, more than {percent} %", missed.len());

    let usable = missed.iter().filter(|status| !is_ejected(status) && status.passes_probes).count();
    let panic = usable * 100 < missed.len() * settings.panic_percent as usize;
    assert_eq!(evaluator.is_panicking(), panic, "{usable} of {} are usable", missed.len());

    let mut out = vec![false; servers];
    for (member, status) in members.iter().zip(&statuses) {
        let serves = status.ejection == EjectionState::Serving && status.passes_probes;
        out[member.endpoint.data] = !serves && !panic;
    }
    out
}
