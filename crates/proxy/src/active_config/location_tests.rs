//! Endpoints in the preferred place of a backend are local members of its set.

use gateway::snapshot::{EndpointLocation, EndpointSource};

use super::*;

#[test]
fn endpoints_in_the_preferred_place_are_local_members() {
    let mut registry = StateRegistry::new(1, Arc::default(), AffinityKey::new(None), None, None);
    let endpoint = |port: u16, node: &str| EndpointSpec {
        zone: Some("a".into()),
        node: Some(node.into()),
        ..EndpointSpec::new(([127, 0, 0, 1], port).into())
    };
    let key = BackendKey {
        namespace: "shop".into(),
        service: "web".into(),
        port: 80,
        transport: TransportProtocol::Tcp,
        node: None,
    };
    let mut local_ports = |location: Option<EndpointLocation>| {
        let settings =
            BackendSettings { preferred_location: location, ..BackendSettings::default() };
        let spec = snapshot::Backend {
            key: key.clone(),
            source: EndpointSource::Slices,
            endpoints: vec![endpoint(1, "n1"), endpoint(2, "n2")],
            elsewhere: Vec::new(),
            settings,
        };
        let snapshot = Snapshot { backends: vec![spec], ..Snapshot::default() };
        let set = registry.backends(&snapshot)[0].configured();
        let local = set.members().iter().filter(|member| member.local);
        local.map(|member| member.endpoint.address.port()).collect::<Vec<_>>()
    };
    assert_eq!(local_ports(Some(EndpointLocation::Node("n2".into()))), [2]);
    assert_eq!(local_ports(Some(EndpointLocation::Zone("a".into()))), [1, 2]);
    assert_eq!(local_ports(Some(EndpointLocation::Zone("b".into()))), [0; 0]);
    assert_eq!(local_ports(None), [0; 0]);
}
