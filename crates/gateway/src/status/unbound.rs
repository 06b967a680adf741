//! What the data plane could not listen on, said of the listeners that ask for it.

use super::{Condition, ConditionType, Detail, ListenerStatus, Reason, Status};

/// Says of a listener, named `namespace/owner/listener` as in metrics and logs, that its port cannot be had, and why.
/// A Gateway of whose listeners none is left is not programmed either.
pub fn unbound(statuses: &mut [Status], listener: &str, message: &str) {
    for status in statuses {
        let (namespace, name) = (&status.object.namespace, &status.object.name);
        let prefix = format!("{namespace}/{name}/");
        let Some(section) = listener.strip_prefix(&prefix) else { continue };
        match &mut status.detail {
            Detail::Gateway(gateway) => {
                take(&mut gateway.listeners, &mut gateway.conditions, section, message);
            }
            Detail::ListenerSet(conditions, listeners) => {
                take(listeners, conditions, section, message);
            }
            Detail::GatewayClass(_) | Detail::Route(_) | Detail::Policy(_) => {}
        }
    }
}

fn take(listeners: &mut [ListenerStatus], owner: &mut [Condition], section: &str, message: &str) {
    use ConditionType::{Accepted, Programmed};
    for listener in listeners.iter_mut().filter(|it| it.name == section) {
        deny(&mut listener.conditions, Accepted, Reason::PortUnavailable, message);
        deny(&mut listener.conditions, Programmed, Reason::Invalid, message);
    }
    let is_left = |listener: &ListenerStatus| {
        listener.conditions.iter().any(|it| it.kind == Programmed && it.holds)
    };
    if !listeners.iter().any(is_left) {
        deny(owner, Programmed, Reason::Invalid, message);
    }
}

fn deny(conditions: &mut [Condition], kind: ConditionType, reason: Reason, message: &str) {
    for condition in conditions.iter_mut().filter(|it| it.kind == kind) {
        *condition = Condition::no(kind, reason, message.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{GatewayStatus, Reference};

    fn listener(name: &str) -> ListenerStatus {
        ListenerStatus {
            name: name.to_owned(),
            supported_kinds: Vec::new(),
            attached_routes: 1,
            conditions: vec![
                Condition::yes(ConditionType::Accepted, Reason::Accepted),
                Condition::yes(ConditionType::Programmed, Reason::Programmed),
            ],
        }
    }

    fn gateway(listeners: Vec<ListenerStatus>) -> Status {
        let conditions = vec![Condition::yes(ConditionType::Programmed, Reason::Programmed)];
        let detail = GatewayStatus { conditions, listeners, ..GatewayStatus::default() };
        Status {
            object: Reference { kind: "Gateway", namespace: "shop".into(), name: "web".into() },
            observed_generation: 1,
            detail: Detail::Gateway(detail),
        }
    }

    /// Whether the Gateway and each of its listeners are programmed.
    fn programmed(status: &Status) -> (bool, Vec<bool>) {
        let Detail::Gateway(gateway) = &status.detail else { panic!("not a Gateway") };
        let holds =
            |of: &[Condition]| of.iter().any(|it| it.kind == ConditionType::Programmed && it.holds);
        let listeners = gateway.listeners.iter().map(|it| holds(&it.conditions)).collect();
        (holds(&gateway.conditions), listeners)
    }

    #[test]
    fn a_port_that_cannot_be_had_takes_its_listener_alone() {
        let mut statuses = [gateway(vec![listener("http"), listener("other")])];
        unbound(&mut statuses, "shop/web/http", "in use");
        assert_eq!(programmed(&statuses[0]), (true, vec![false, true]));
        unbound(&mut statuses, "shop/web/other", "in use");
        assert_eq!(programmed(&statuses[0]), (false, vec![false, false]));
    }

    #[test]
    fn others_are_not_touched() {
        let mut statuses = [gateway(vec![listener("http")])];
        unbound(&mut statuses, "shop/webs/http", "in use");
        assert_eq!(programmed(&statuses[0]), (true, vec![true]));
    }
}
