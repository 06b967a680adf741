//! `Namespace` (v1), of which the labels alone mean something, and how labels are selected.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;

use super::metadata::ObjectMeta;
use super::scalar::IgnoredField;

/// The label that every Namespace has: its name.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A Namespace asks for nothing; others select it by its labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NamespaceSpec {
    /// For the API server.
    pub finalizers: Option<IgnoredField>,
}

/// Which labels an object must have: all that is said here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels with one value each.
    pub match_labels: BTreeMap<String, String>,
    /// Labels with some values, or none.
    pub match_expressions: Vec<LabelExpression>,
}

/// What is asked of one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelExpression {
    /// The label's name.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; an API server lets any word pass.
    pub operator: String,
    /// The values of `In` and `NotIn`.
    #[serde(default)]
    pub values: BTreeSet<String>,
}

impl LabelSelector {
    /// Why nobody can say what is meant, and where; `None`: it is plain.
    pub fn fault(&self) -> Option<(String, String)> {
        (0..).zip(&self.match_expressions).find_map(|(n, expression): (usize, _)| {
            let (part, message) = expression.fault()?;
            Some((format!("matchExpressions[{n}].{part}"), message))
        })
    }

    /// Whether an object with these labels is meant. An empty selector means every object, one with a fault none.
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

    /// `NotIn` holds where there is no such label, as Kubernetes has it.
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

/// The labels of a Namespace, which has its name among them, whatever is written.
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
