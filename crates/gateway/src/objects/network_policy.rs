//! `NetworkPolicy` (networking.k8s.io/v1), of which only the selection of pods is read.

use schemars::JsonSchema;
use serde::Deserialize;

use super::namespace::LabelSelector;

/// A restriction of connections to or from pods. The plugin of the cluster's network enforces it. All other fields are
/// accepted and dropped.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    /// The pods that the policy applies to. An empty selector selects every pod of the namespace.
    pub pod_selector: LabelSelector,
    /// The directions that the policy restricts. Absent: `Ingress`, and `Egress` if there are rules for it.
    pub policy_types: Option<Vec<String>>,
}

impl NetworkPolicySpec {
    /// True if the policy restricts connections to its pods.
    pub fn restricts_ingress(&self) -> bool {
        let types = self.policy_types.as_ref().filter(|types| !types.is_empty());
        types.is_none_or(|types| types.iter().any(|kind| kind == "Ingress"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingress_is_restricted_unless_only_egress_is_named() {
        let restricts = |types: Option<&[&str]>| {
            let policy_types = types.map(|it| it.iter().map(|&it| it.to_owned()).collect());
            NetworkPolicySpec { policy_types, ..Default::default() }.restricts_ingress()
        };
        assert!(restricts(None));
        assert!(restricts(Some(&[])));
        assert!(restricts(Some(&["Egress", "Ingress"])));
        assert!(!restricts(Some(&["Egress"])));
    }
}
