//! Header fields of responses, from a ConfigMap.

use super::super::super::index::ObjectIndex;
use super::snippet;
use crate::certificate_object::CertificateObject;
use crate::objects::HeaderModifier;

/// Splits a reference: `namespace/name`, or a name in the namespace of the Ingress.
pub(super) fn reference<'v>(value: &'v str, namespace: &'v str) -> (&'v str, &'v str) {
    value.split_once('/').unwrap_or((namespace, value))
}

/// Sets the fields that a ConfigMap has.
///
/// # Errors
/// If the ConfigMap is missing or of another namespace, or has a value that is no header field. Then none is set.
pub(super) fn add(
    index: &ObjectIndex<'_>,
    namespace: &str,
    value: &str,
    edits: &mut HeaderModifier,
) -> Result<(), String> {
    const CONSEQUENCE: &str = "responses are sent without these header fields";
    let (of, name) = reference(value, namespace);
    if of != namespace {
        return Err(format!(
            "custom-headers must be a ConfigMap of the Ingress's namespace, is {value}: {CONSEQUENCE}"
        ));
    }
    let Some(map) = index.config_maps.get(&(of, name)) else {
        let absence = index.absence(&CertificateObject::new("ConfigMap", of, name));
        return Err(format!("custom-headers: {absence}: {CONSEQUENCE}"));
    };
    let mut changed = edits.clone();
    for (name, value) in &map.spec.data {
        snippet::set_field(&mut changed, name, value.trim())
            .map_err(|message| format!("custom-headers {message}: {CONSEQUENCE}"))?;
    }
    *edits = changed;
    Ok(())
}
