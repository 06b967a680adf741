//! `basicAuth` of a SecurityPolicy, with the users of its Secret.

use super::htpasswd;
use super::index::ObjectIndex;
use super::report::ValidationFault;
use crate::certificate_object::CertificateObject;
use crate::objects::BasicAuthentication;
use crate::snapshot::BasicAuthSettings;
use crate::status::ConditionReason;

/// Returns the settings of a policy in this namespace, or the fault with its field.
pub(super) fn settings(
    index: &ObjectIndex<'_>,
    namespace: &str,
    spec: &BasicAuthentication,
) -> Result<BasicAuthSettings, ValidationFault> {
    let fault = |field: &str, message: String| {
        ValidationFault::new(ConditionReason::Invalid, format!("spec.basicAuth.{field}"), message)
    };
    let BasicAuthentication { realm, users, forward_credentials, forward_username_header } = spec;
    if realm.chars().any(char::is_control) {
        return Err(fault("realm", "has a control character".to_owned()));
    }
    let Some(secret) = index.secrets.get(&(namespace, &*users.name)) else {
        let object = CertificateObject::new("Secret", namespace, &users.name);
        return Err(fault("users.name", index.absence(&object)));
    };
    let name = format!("{namespace}/{}", users.name);
    let known = htpasswd::users(&secret.spec, users.format).map_err(|bad| {
        fault("users.name", format!("Secret {name}: {} {}", bad.field, bad.message))
    })?;
    Ok(BasicAuthSettings {
        challenge: challenge(realm).into(),
        secret: name.into(),
        users: known.into_iter().collect(),
        forwards_credentials: *forward_credentials,
        username_header: forward_username_header.as_ref().map(|it| it.to_lowercase().into()),
    })
}

/// Returns the challenge of a realm (RFC 7617 §2, with the quoted-string of RFC 9110 §5.6.4).
fn challenge(realm: &str) -> String {
    let realm = realm.replace('\\', "\\\\").replace('"', "\\\"");
    format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn realm_is_quoted() {
        assert_eq!(challenge(r#"a "b\"#), r#"Basic realm="a \"b\\", charset="UTF-8""#);
    }
}
