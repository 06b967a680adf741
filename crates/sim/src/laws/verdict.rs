//! What a judgement of health may do.

use balance::health::{Condition, HealthSettings, Standing};
use balance::{EndpointSet, Time, Ward};

/// Holds a judgement against the settings. Gives for each of so many servers whether it must get nothing from now on.
pub(crate) fn check_verdict(
    ward: &Ward,
    configured: &EndpointSet<usize>,
    settings: &HealthSettings,
    now: Time,
    servers: usize,
) -> Vec<bool> {
    let members = configured.members();
    let conditions: Vec<Condition> =
        ward.conditions(settings, now).map(|(_, condition)| condition).collect();
    let missed: Vec<Condition> = members
        .iter()
        .zip(&conditions)
        .filter(|(member, _)| member.weight > 0)
        .map(|(_, condition)| *condition)
        .collect();
    let is_ejected = |condition: &&Condition| condition.standing != Standing::Serving;
    let ejected = missed.iter().filter(is_ejected).count();
    let percent = settings.passive.map_or(0, |passive| passive.max_ejection_percent as usize);
    let allowed = (missed.len() * percent / 100).max(usize::from(missed.len() > 1));
    assert!(ejected <= allowed, "{ejected} of {} ejected, more than {percent} %", missed.len());

    let usable = missed.iter().filter(|condition| !is_ejected(condition) && condition.fit).count();
    let panic = usable * 100 < missed.len() * settings.panic_percent as usize;
    assert_eq!(ward.is_panicking(), panic, "{usable} of {} are usable", missed.len());

    let mut out = vec![false; servers];
    for (member, condition) in members.iter().zip(&conditions) {
        let serves = condition.standing == Standing::Serving && condition.fit;
        out[member.endpoint.data] = !serves && !panic;
    }
    out
}
