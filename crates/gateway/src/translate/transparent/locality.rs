//! The endpoints of a Service that clients of this node use, as kube-proxy decides it (KEP-2433, KEP-3015).

use std::sync::Arc;

use crate::objects::{EndpointHint, EndpointHints, EndpointTargetRef, ServiceSpec};
use crate::snapshot::EndpointSpec;
use crate::translation_settings::TransparentSettings;

/// An endpoint in an EndpointSlice.
pub(in super::super) struct SliceMember<'a> {
    pub(in super::super) spec: EndpointSpec,
    /// The Pod, if it is one.
    pub(in super::super) pod: Option<&'a EndpointTargetRef>,
    pub(in super::super) hints: Option<&'a EndpointHints>,
    /// True if it answers requests.
    pub(in super::super) is_serving: bool,
    /// True if it accepts new requests.
    pub(in super::super) is_ready: bool,
}

/// A restriction of the endpoints of a Service to those for this node.
#[derive(Clone, Debug)]
pub(in super::super) enum EndpointLocality {
    /// Endpoints on this node alone, even if there are none.
    Node(Arc<str>),
    /// Endpoints with a hint for this node, or for its zone, if all that are ready have hints.
    Hints {
        /// The node.
        node: Arc<str>,
        /// The zone of the node.
        zone: Option<Arc<str>>,
    },
}

impl EndpointLocality {
    /// Returns the restriction of a Service, if it has one. Hints that come from `trafficDistribution` restrict
    /// nothing: the preference that they stand for is one of the backend's settings, which lets requests go elsewhere
    /// while the preferred endpoints are busy.
    pub(super) fn of(settings: &TransparentSettings, spec: &ServiceSpec) -> Option<Self> {
        let node = Arc::clone(&settings.node);
        if spec.internal_traffic_policy.as_deref() == Some("Local") {
            return Some(Self::Node(node));
        }
        let zone = settings.zone.clone();
        spec.traffic_distribution.is_none().then_some(Self::Hints { node, zone })
    }

    /// Removes the endpoints that are not used from this node.
    pub(in super::super) fn retain(&self, members: &mut Vec<SliceMember<'_>>) {
        match self {
            Self::Node(node) => members.retain(|it| it.spec.node.as_ref() == Some(node)),
            Self::Hints { node, zone } => {
                let for_node = |it: &SliceMember<'_>| names(it, node, |hints| &hints.for_nodes);
                if !retain_hinted(members, for_node)
                    && let Some(zone) = zone
                {
                    let for_zone = |it: &SliceMember<'_>| names(it, zone, |hints| &hints.for_zones);
                    retain_hinted(members, for_zone);
                }
            }
        }
    }
}

/// Returns if an endpoint has a hint for a place; `None` if it has no hint of this kind.
fn names(
    member: &SliceMember<'_>,
    place: &str,
    hints: impl Fn(&EndpointHints) -> &Option<Vec<EndpointHint>>,
) -> Option<bool> {
    let hints = hints(member.hints?).as_ref().filter(|hints| !hints.is_empty())?;
    Some(hints.iter().any(|hint| hint.name == place))
}

/// Removes the endpoints without a hint for a place, if each that is ready has a hint and at least one has one for the
/// place. If none is ready, all stay: kube-proxy then uses those that still serve, wherever they are.
fn retain_hinted(
    members: &mut Vec<SliceMember<'_>>,
    hint: impl Fn(&SliceMember<'_>) -> Option<bool>,
) -> bool {
    let ready: Vec<_> = members.iter().filter(|it| it.is_ready).map(&hint).collect();
    let applies = ready.iter().all(Option::is_some) && ready.contains(&Some(true));
    if applies {
        members.retain(|it| hint(it) == Some(true));
    }
    applies
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of endpoints of zones and nodes that a node `n1` in zone `a` uses.
    fn used(endpoints: &[(&str, &str, bool)]) -> Vec<usize> {
        let hint = |text: &str| {
            let hints = text.split(',').filter(|it| !it.is_empty());
            Some(hints.map(|it| EndpointHint { name: it.to_owned() }).collect())
        };
        let hints: Vec<_> = endpoints
            .iter()
            .map(|(zones, nodes, _)| EndpointHints {
                for_zones: hint(zones),
                for_nodes: hint(nodes),
            })
            .collect();
        let member = |(n, (_, _, is_ready)): (usize, &(&str, &str, bool))| SliceMember {
            spec: EndpointSpec::new(([10, 0, 0, 1], u16::try_from(n).unwrap()).into()),
            pod: None,
            is_serving: true,
            hints: Some(&hints[n]),
            is_ready: *is_ready,
        };
        let mut members = endpoints.iter().enumerate().map(member).collect();
        let locality = EndpointLocality::Hints { node: "n1".into(), zone: Some("a".into()) };
        locality.retain(&mut members);
        members.iter().map(|it| usize::from(it.spec.address.port())).collect()
    }

    #[test]
    fn hints_restrict_if_every_ready_endpoint_has_one_and_one_is_for_us() {
        assert_eq!(used(&[("a", "", true), ("b", "", true)]), [0]);
        assert_eq!(used(&[("a", "", true), ("", "", true)]), [0, 1]);
        assert_eq!(used(&[("b", "", true), ("c", "", true)]), [0, 1]);
        assert_eq!(used(&[("a", "", true), ("", "", false)]), [0], "one that is not ready");
        assert_eq!(used(&[("a,b", "", true), ("b", "", true)]), [0]);
        assert_eq!(used(&[("a", "n2", true), ("b", "n1", true)]), [1], "nodes before zones");
        assert_eq!(
            used(&[("a", "n2", true), ("b", "n3", true)]),
            [0],
            "zone, no hint for the node"
        );
        assert_eq!(used(&[("a", "", false), ("b", "", false)]), [0, 1], "none is ready");
    }
}
