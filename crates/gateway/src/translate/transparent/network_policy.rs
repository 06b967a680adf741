//! NetworkPolicies that may restrict the clients of a Service's pods. Pods are not known here, only the labels that
//! they must have to belong to the Service.

use std::collections::BTreeMap;

use super::super::index::ObjectIndex;
use crate::objects::{LabelExpression, LabelSelector, ServiceSpec, TypedObject};

/// Returns the name of a NetworkPolicy that may apply to pods of a Service. One that cannot be read may apply to all.
pub(in super::super) fn restricting_policy(
    index: &ObjectIndex<'_>,
    service: &TypedObject<ServiceSpec>,
) -> Option<String> {
    let namespace = &*service.metadata.namespace;
    let invalid = index.invalid_objects.iter().filter(|it| it.spec.kind == "NetworkPolicy");
    let mut invalid = invalid.filter(|it| it.metadata.namespace == namespace);
    let in_namespace = index.network_policies.range((namespace, "")..);
    let mut in_namespace = in_namespace.take_while(|((of, _), _)| *of == namespace);
    let found = in_namespace.find(|(_, policy)| {
        let selector = &policy.spec.pod_selector;
        policy.spec.restricts_ingress() && may_select(selector, service.spec.selector.as_ref())
    });
    found
        .map(|((_, name), _)| (*name).to_owned())
        .or_else(|| invalid.next().map(|it| it.metadata.name.clone()))
}

/// True if some pod has these labels and is selected. The endpoints of a Service without a selector may be any pods.
fn may_select(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let label = |key: &String| labels.and_then(|labels| labels.get(key));
    let mut exact = selector.match_labels.iter();
    let may_have = |(key, value)| label(key).is_none_or(|own| own == value);
    let may_meet = |it: &LabelExpression| label(&it.key).is_none_or(|own| meets(it, own));
    exact.all(may_have) && selector.match_expressions.iter().all(may_meet)
}

/// True if a label with this value meets a condition, or the condition is not known.
fn meets(expression: &LabelExpression, value: &String) -> bool {
    match &*expression.operator {
        "In" => expression.values.contains(value),
        "NotIn" => !expression.values.contains(value),
        "DoesNotExist" => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn expression(operator: &str, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|&it| it.to_owned()).collect();
        let (key, operator) = ("tier".to_owned(), operator.to_owned());
        let match_expressions = vec![LabelExpression { key, operator, values }];
        LabelSelector { match_expressions, ..Default::default() }
    }

    #[test]
    fn a_policy_may_apply_unless_a_label_of_the_service_excludes_it() {
        let own = labels(&[("app", "web"), ("tier", "front")]);
        let exact = |pairs| LabelSelector { match_labels: labels(pairs), ..Default::default() };
        for (selector, expected) in [
            (exact(&[]), true),
            (exact(&[("app", "web")]), true),
            (exact(&[("app", "web"), ("version", "2")]), true),
            (exact(&[("app", "db")]), false),
            (expression("In", &["front", "edge"]), true),
            (expression("In", &["back"]), false),
            (expression("NotIn", &["front"]), false),
            (expression("NotIn", &["back"]), true),
            (expression("Exists", &[]), true),
            (expression("DoesNotExist", &[]), false),
            (expression("Gt", &["1"]), true),
        ] {
            assert_eq!(may_select(&selector, Some(&own)), expected, "{selector:?}");
            assert!(may_select(&selector, None), "{selector:?}");
        }
    }
}
