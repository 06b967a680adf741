//! Label selectors in the text form of the Kubernetes API: `service=web,port in (80,443)`.

use std::borrow::Cow;
use std::collections::BTreeSet;

/// Longest text that is parsed.
const MAX_BYTES: usize = 4096;

/// Selector: all of its requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<LabelRequirement>);

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelRequirement {
    label: String,
    condition: LabelCondition,
}

/// Condition for the value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LabelCondition {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl LabelSelector {
    /// Parses a selector; the error says which requirement is malformed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("labelSelector: more than {MAX_BYTES} bytes"));
        }
        let parts = split_outside_parentheses(text);
        let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
        parts.map(LabelRequirement::parse).collect::<Result<_, _>>().map(Self)
    }

    /// True if the labels fulfil every requirement. `value` returns the value of a label, if there is one.
    pub(crate) fn matches<'v>(&self, value: impl Fn(&str) -> Option<Cow<'v, str>>) -> bool {
        self.0.iter().all(|it| it.condition.holds(value(&it.label).as_deref()))
    }

    /// True if no requirement of this label excludes the value.
    pub(super) fn allows(&self, label: &str, value: &str) -> bool {
        self.0.iter().all(|it| it.label != label || it.condition.holds(Some(value)))
    }

    /// True if the selector has a requirement of this label that names values.
    pub(crate) fn names(&self, label: &str) -> bool {
        self.values(label).is_some()
    }

    /// Returns the values that a requirement of this label names, if there is one: a value that is none of them does not
    /// match.
    pub(super) fn values(&self, label: &str) -> Option<BTreeSet<&str>> {
        self.0.iter().find_map(|it| match &it.condition {
            LabelCondition::In(values) if it.label == label => {
                Some(values.iter().map(String::as_str).collect())
            }
            _ => None,
        })
    }

    /// Returns the first label that is none of these.
    pub(super) fn unknown_label(&self, known: &[&str]) -> Option<&str> {
        self.0.iter().map(|it| it.label.as_str()).find(|label| !known.contains(label))
    }
}

impl LabelRequirement {
    fn parse(text: &str) -> Result<Self, String> {
        let malformed = || format!("labelSelector: {text:?} is not a requirement");
        let (label, condition) = if let Some((head, values)) = text.split_once('(') {
            let values = values.strip_suffix(')').ok_or_else(malformed)?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            let (label, operator) = head.trim().rsplit_once(' ').ok_or_else(malformed)?;
            match operator {
                "in" => (label, LabelCondition::In(values)),
                "notin" => (label, LabelCondition::NotIn(values)),
                _ => return Err(malformed()),
            }
        } else if let Some((label, value)) = text.split_once("!=") {
            (label, LabelCondition::NotIn(vec![value.trim().to_owned()]))
        } else if let Some((label, value)) = text.split_once('=') {
            let value = value.strip_prefix('=').unwrap_or(value);
            (label, LabelCondition::In(vec![value.trim().to_owned()]))
        } else if let Some(label) = text.strip_prefix('!') {
            (label, LabelCondition::Absent)
        } else {
            (text, LabelCondition::Exists)
        };
        let label = label.trim();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if label.is_empty() || !label.bytes().all(is_name) {
            return Err(malformed());
        }
        Ok(Self { label: label.to_owned(), condition })
    }
}

impl LabelCondition {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_among = |values: &[String], value: &str| values.iter().any(|it| it == value);
        match (self, value) {
            (Self::In(values), Some(value)) => is_among(values, value),
            (Self::In(_) | Self::Exists, None) | (Self::Absent, Some(_)) => false,
            (Self::NotIn(values), Some(value)) => !is_among(values, value),
            (Self::NotIn(_) | Self::Absent, None) | (Self::Exists, Some(_)) => true,
        }
    }
}

/// Splits at commas that are not within parentheses.
fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let separator = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(separator).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str) -> bool {
        LabelSelector::parse(selector).unwrap().matches(|label| match label {
            "service" => Some("web".into()),
            "port" => Some("80".into()),
            _ => None,
        })
    }

    #[test]
    fn requirements_are_those_of_kubernetes() {
        for selector in [
            "",
            "service=web",
            "service==web",
            " service = web , port = 80 ",
            "service in (api, web),port notin (81)",
            "port!=81",
            "port",
            "!route",
            "route!=x",
            "route notin (x)",
        ] {
            assert!(matches(selector), "{selector}");
        }
        for selector in
            ["service=api", "service in (api)", "port!=80", "!port", "route", "route=x", "service="]
        {
            assert!(!matches(selector), "{selector}");
        }
    }

    #[test]
    fn malformed_requirement_is_named() {
        for selector in ["=web", "service in web", "service in (web", "a b=c", "x(y)", "a of (b)"] {
            let error = LabelSelector::parse(selector).unwrap_err();
            assert!(error.contains("is not a requirement"), "{selector}: {error}");
        }
        assert!(LabelSelector::parse(&"a,".repeat(MAX_BYTES)).is_err());
    }

    #[test]
    fn labels_are_found() {
        let selector = LabelSelector::parse("service in (a,b),port").unwrap();
        assert!(selector.names("service") && !selector.names("port"));
        assert_eq!(selector.unknown_label(&["service"]), Some("port"));
        assert_eq!(selector.unknown_label(&["service", "port"]), None);
    }
}
