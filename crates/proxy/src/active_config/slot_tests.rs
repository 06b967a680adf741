//! Slots of backends that bind requests to endpoints, with leases: they are assigned, once the replicas are known.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use balance::Algorithm;
use gateway::snapshot::EndpointSource;

use super::*;

#[test]
fn backend_that_binds_requests_has_no_slot_before_the_replicas_are_known() {
    let leases = Some(Arc::<LeaseSignal>::default());
    let mut registry = StateRegistry::new(1, Arc::default(), AffinityKey::new(None), None, leases);
    let key = BackendKey {
        namespace: "shop".into(),
        service: "web".into(),
        port: 80,
        transport: TransportProtocol::Tcp,
        node: None,
    };
    let settings = BackendSettings {
        algorithm: Algorithm::ConsistentHash,
        max_in_flight_per_endpoint: NonZeroU32::new(4),
        ..BackendSettings::default()
    };
    let endpoints = vec![EndpointSpec::new(([127, 0, 0, 1], 1).into())];
    let source = EndpointSource::Slices;
    let spec = snapshot::Backend { key, source, endpoints, elsewhere: Vec::new(), settings };
    let snapshot = Snapshot { backends: vec![spec], ..Snapshot::default() };
    let most = |registry: &mut StateRegistry| {
        registry.backends(&snapshot)[0].configured().members()[0].max_in_flight
    };
    assert_eq!(most(&mut registry), 0);
    let replica = |number| SocketAddr::from(([10, 0, 0, number], 1));
    let assignment = SlotAssignment::among(replica(1), [replica(1), replica(2)]);
    registry.set_slot_assignment(assignment);
    assert_eq!(most(&mut registry), 2);
}
