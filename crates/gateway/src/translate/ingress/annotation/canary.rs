//! Canaries: the requests that another Service gets in place of that of the main Ingress.
//!
//! ingress-nginx decides in this order: the header field has the given value, or matches the pattern, or (without both)
//! is `always` or `never`; the cookie is `always` or `never`; a random share, of `canary-weight` in 100 or in
//! `canary-weight-total` if that is more.

use std::collections::BTreeMap;

use super::value::{parse_bool, parse_name, parse_number};
use crate::matching::RegexPattern;
use crate::objects::{FieldName, HeaderMatch, ValueMatchType};

/// The annotation that makes an Ingress a canary.
const CANARY: &str = "nginx.ingress.kubernetes.io/canary";
/// Largest weight of a backend.
const MAX_WEIGHT: u32 = 1_000_000;
/// The smallest total of weights.
const MIN_TOTAL: u32 = 100;

/// An annotation about canaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum CanaryAnnotation {
    Enabled,
    Cookie,
    Header,
    HeaderPattern,
    HeaderValue,
    Weight,
    WeightTotal,
}

/// The choice between main Ingress and canary.
#[derive(Default)]
pub(in super::super) struct CanarySettings {
    header: Option<String>,
    header_value: Option<String>,
    header_pattern: Option<String>,
    cookie: Option<String>,
    weight: u32,
    weight_total: u32,
    /// True if an annotation is in error: then the canary gets no requests.
    pub(in super::super) is_faulty: bool,
}

/// A condition of requests, and the Ingress that gets them.
pub(in super::super) struct CanaryCondition {
    pub(in super::super) header: HeaderMatch,
    /// True if the canary gets the requests, false if the main Ingress does.
    pub(in super::super) is_canary: bool,
}

/// True if an Ingress is a canary. A value that is no boolean counts too: the Ingress must not become a second main
/// Ingress by mistake.
pub(super) fn is_canary(annotations: &BTreeMap<String, String>) -> bool {
    let value = annotations.get(CANARY).map(|value| value.trim());
    value.is_some_and(|value| parse_bool(value) != Ok(false))
}

impl CanarySettings {
    pub(super) fn add(&mut self, setting: CanaryAnnotation, value: &str) -> Result<(), String> {
        let result = self.set(setting, value);
        self.is_faulty |= result.is_err();
        result.map_err(|message| format!("{message}: the canary gets no requests"))
    }

    fn set(&mut self, setting: CanaryAnnotation, value: &str) -> Result<(), String> {
        match setting {
            CanaryAnnotation::Enabled => _ = parse_bool(value)?,
            CanaryAnnotation::Cookie => self.cookie = Some(parse_name(value)?),
            CanaryAnnotation::Header => self.header = Some(FieldName::parse(value)?.0),
            CanaryAnnotation::HeaderPattern => {
                // nginx looks for the pattern anywhere in the value.
                let pattern = format!(".*(?:{value}).*");
                RegexPattern::new(value).map_err(|fault| fault.to_string())?;
                RegexPattern::new(&pattern).map_err(|fault| fault.to_string())?;
                self.header_pattern = Some(pattern);
            }
            CanaryAnnotation::HeaderValue => self.header_value = Some(value.to_owned()),
            CanaryAnnotation::Weight => self.weight = parse_number(value, 0, MAX_WEIGHT)?,
            CanaryAnnotation::WeightTotal => {
                self.weight_total = parse_number(value, 1, MAX_WEIGHT)?
            }
        }
        Ok(())
    }

    /// Returns the conditions in the order of their precedence.
    pub(in super::super) fn conditions(&self) -> Vec<CanaryCondition> {
        let mut conditions = Vec::new();
        let mut add = |name: &str, kind, value: String, is_canary| {
            let header = HeaderMatch { kind, name: name.to_owned(), value };
            conditions.push(CanaryCondition { header, is_canary });
        };
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(name) = &self.header {
            match (given(&self.header_value), &self.header_pattern) {
                (Some(value), _) => add(name, ValueMatchType::Exact, value, true),
                (None, Some(pattern)) => {
                    add(name, ValueMatchType::RegularExpression, pattern.clone(), true);
                }
                (None, None) => {
                    add(name, ValueMatchType::Exact, "always".to_owned(), true);
                    add(name, ValueMatchType::Exact, "never".to_owned(), false);
                }
            }
        }
        if let Some(name) = &self.cookie {
            let (kind, name) = (ValueMatchType::RegularExpression, regex::escape(name));
            for (value, is_canary) in [("always", true), ("never", false)] {
                let pattern = format!("(?:.*; *)?(?i:{name})={value} *(?:;.*)?");
                add("cookie", kind, pattern, is_canary);
            }
        }
        conditions
    }

    /// Returns the weights of the main Ingress and of the canary for all other requests.
    pub(in super::super) fn weights(&self) -> (u32, u32) {
        let total = self.weight_total.max(MIN_TOTAL);
        let canary = self.weight.min(total);
        (total - canary, canary)
    }
}
