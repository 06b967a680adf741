//! `apiKeys` of a SecurityPolicy, with the keys of its Secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::index::ObjectIndex;
use super::report::ValidationFault;
use crate::certificate_object::CertificateObject;
use crate::objects::{ApiKeyAuthentication, ApiKeySources, SecretSpec};
use crate::snapshot::{ApiKeySettings, CredentialSource, SecretKey};
use crate::status::ConditionReason;

/// Maximum length of a key.
const MAX_KEY: usize = 1024;

/// Clients by their keys.
type KeyClients = BTreeMap<SecretKey, Arc<str>>;

/// Returns the settings of a policy in this namespace, or the fault with its field.
pub(super) fn settings(
    index: &ObjectIndex<'_>,
    namespace: &str,
    policy: &str,
    spec: &ApiKeyAuthentication,
) -> Result<ApiKeySettings, ValidationFault> {
    let fault = |field: String, message: String| {
        ValidationFault::new(ConditionReason::Invalid, format!("spec.apiKeys.{field}"), message)
    };
    let ApiKeyAuthentication { credential_refs, extract_from, forward_client_id_header, sanitize } =
        spec;
    let sources = sources(extract_from);
    if sources.is_empty() {
        let message = "has neither `headers`, `params` nor `cookies`".to_owned();
        return Err(fault("extractFrom".to_owned(), message));
    }
    let mut clients = KeyClients::new();
    for (number, reference) in credential_refs.iter().enumerate() {
        let field = || format!("credentialRefs[{number}].name");
        let Some(secret) = index.secrets.get(&(namespace, &*reference.name)) else {
            let object = CertificateObject::new("Secret", namespace, &reference.name);
            return Err(fault(field(), index.absence(&object)));
        };
        add_clients(&secret.spec, &mut clients).map_err(|message| {
            fault(field(), format!("Secret {namespace}/{}: {message}", reference.name))
        })?;
    }
    Ok(ApiKeySettings {
        policy: policy.into(),
        clients: clients.into_iter().collect(),
        sources,
        client_header: forward_client_id_header.as_ref().map(|it| it.to_lowercase().into()),
        removes_key: *sanitize,
    })
}

/// Adds the clients of a Secret.
fn add_clients(secret: &SecretSpec, clients: &mut KeyClients) -> Result<(), String> {
    let names: Vec<_> = secret.data.keys().chain(secret.string_data.keys()).collect();
    if names.is_empty() {
        return Err("data has no key of a client".to_owned());
    }
    for name in names {
        // A file with the key ends in a line end.
        let key = secret.value(name).unwrap_or_default().trim_ascii();
        if key.is_empty() || key.len() > MAX_KEY || !key.iter().all(u8::is_ascii_graphic) {
            let rule = format!("must be 1 to {MAX_KEY} visible characters of ASCII");
            return Err(format!("data.{name} {rule}"));
        }
        let known = clients.insert(SecretKey(key.into()), name.as_str().into());
        if known.is_some_and(|known| *known != **name) {
            return Err(format!("data.{name} is the key of another client too"));
        }
    }
    Ok(())
}

fn sources(spec: &ApiKeySources) -> Vec<CredentialSource> {
    CredentialSource::of(&spec.headers, &spec.params, &spec.cookies)
}
