//! Events of Services of type LoadBalancer and of AddressPools, which all replicas know. Pure.

use gateway::load_balancer::{LoadBalancerService, PoolFindings, ServiceFinding};
use kube::{EventObject, EventReporter, ObjectEvent};

/// Returns an Event for each part of a Service that is not served.
pub(crate) fn of_services(services: &[LoadBalancerService]) -> Vec<ObjectEvent> {
    let of_service = |service: &LoadBalancerService| {
        let object = EventObject {
            api_version: "v1",
            kind: "Service",
            namespace: service.namespace.to_string(),
            name: service.name.to_string(),
            uid: service.uid.as_deref().map(str::to_owned),
        };
        service.findings.iter().map(move |it| event(&object, "Serve", it)).collect::<Vec<_>>()
    };
    services.iter().flat_map(of_service).collect()
}

/// Returns an Event for each finding of an AddressPool.
pub(crate) fn of_pools(pools: &PoolFindings) -> Vec<ObjectEvent> {
    let of_pool = |(name, findings): (&String, &Vec<ServiceFinding>)| {
        let object = EventObject {
            api_version: "sheave.dev/v1alpha1",
            kind: "AddressPool",
            namespace: String::new(),
            name: name.clone(),
            uid: None,
        };
        findings.iter().map(|it| event(&object, "Assign", it)).collect::<Vec<_>>()
    };
    pools.iter().flat_map(of_pool).collect()
}

fn event(object: &EventObject, action: &'static str, finding: &ServiceFinding) -> ObjectEvent {
    ObjectEvent {
        object: object.clone(),
        is_warning: true,
        reason: finding.reason,
        action,
        message: finding.message.clone(),
        reporter: EventReporter::Leader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_an_event_of_its_object() {
        let finding = ServiceFinding { reason: "AddressPoolExhausted", message: "full".to_owned() };
        let service = LoadBalancerService {
            namespace: "shop".into(),
            name: "db".into(),
            uid: Some("u1".into()),
            addresses: Vec::new(),
            sockets: Vec::new(),
            is_node_local: false,
            findings: vec![finding.clone()],
        };
        let events = of_services(&[service]);
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.reason, &*event.message), ("AddressPoolExhausted", "full"));
        assert_eq!((&*event.object.namespace, &*event.object.name), ("shop", "db"));
        let events = of_pools(&[("all".to_owned(), vec![finding])].into());
        assert_eq!((events[0].object.kind, &*events[0].object.name), ("AddressPool", "all"));
    }
}
