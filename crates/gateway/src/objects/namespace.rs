//! `Namespace` (v1), which is read only for its labels, and label selectors.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metadata::ObjectMeta;
use super::scalar::IgnoredField;

/// The label of every Namespace that holds its name.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The spec of a Namespace, which Sheave does not use: other objects select a Namespace by its labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NamespaceSpec {
    /// For the API server.
    pub finalizers: Option<IgnoredField>,
}

/// A label selector. All of its conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels that must have the given value.
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on labels.
    pub match_expressions: Vec<LabelExpression>,
}

/// A condition on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelExpression {
    /// The name of the label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`. An API server accepts any word.
    pub operator: String,
    /// The values of `In` and `NotIn`.
    #[serde(default)]
    pub values: BTreeSet<String>,
}

impl LabelSelector {
    /// Returns the field and the error of an invalid selector, `None` if it is valid.
    pub fn fault(&self) -> Option<(String, String)> {
        (0..).zip(&self.match_expressions).find_map(|(n, expression): (usize, _)| {
            let (part, message) = expression.fault()?;
            Some((format!("matchExpressions[{n}].{part}"), message))
        })
    }

    /// True if the selector matches an object with these labels. An empty selector matches every object, an invalid one
    /// none.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(name, value): (&String, &String)| labels.get(name) == Some(value);
        self.match_labels.iter().all(has)
            && self.match_expressions.iter().all(|it| it.matches(labels.get(&it.key)))
    }
}

impl LabelExpression {
    fn fault(&self) -> Option<(&'static str, String)> {
        match (&*self.operator, self.values.is_empty()) {
            ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => None,
            ("In" | "NotIn", true) => Some(("values", "is empty".to_owned())),
            ("Exists" | "DoesNotExist", false) => {
                Some(("values", format!("must be empty for {}", self.operator)))
            }
            (other, _) => {
                let message = format!("must be In, NotIn, Exists or DoesNotExist, is {other}");
                Some(("operator", message))
            }
        }
    }

    /// True if the condition holds. As in Kubernetes, `NotIn` holds if the label is absent.
    fn matches(&self, value: Option<&String>) -> bool {
        let is_in = || value.is_some_and(|value| self.values.contains(value));
        match &*self.operator {
            "In" => is_in(),
            "NotIn" => !is_in(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

/// Returns the labels of a Namespace. They always include its name.
pub fn namespace_labels(name: &str, metadata: Option<&ObjectMeta>) -> BTreeMap<String, String> {
    let mut labels = metadata.map(|it| it.labels.clone()).unwrap_or_default();
    labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.to_owned());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(operator: &str, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        let expression =
            LabelExpression { key: "tier".to_owned(), operator: operator.to_owned(), values };
        LabelSelector { match_expressions: vec![expression], ..Default::default() }
    }

    #[test]
    fn label_selector_operators_match_kubernetes() {
        let labels = |tier: &str| BTreeMap::from([("tier".to_owned(), tier.to_owned())]);
        let cases = [
            ("In", &["a", "b"][..], [true, false, false]),
            ("NotIn", &["a", "b"], [false, true, true]),
            ("Exists", &[], [true, true, false]),
            ("DoesNotExist", &[], [false, false, true]),
        ];
        for (operator, values, expected) in cases {
            let selector = expression(operator, values);
            let met = [labels("a"), labels("c"), BTreeMap::new()].map(|it| selector.matches(&it));
            assert_eq!((selector.fault(), met), (None, expected), "{operator}");
        }
    }

    #[test]
    fn invalid_label_selector_matches_nothing() {
        for (operator, values, part) in [
            ("In", &[][..], "matchExpressions[0].values"),
            ("Exists", &["a"], "matchExpressions[0].values"),
            ("Gt", &["1"], "matchExpressions[0].operator"),
        ] {
            let fault = expression(operator, values).fault();
            assert_eq!(fault.unwrap().0, part, "{operator}");
        }
        assert!(!expression("Gt", &["1"]).matches(&BTreeMap::new()));
        assert!(LabelSelector::default().matches(&BTreeMap::new()));
    }
}
