//! External authorization: settings of SecurityPolicies and of the filter `ExternalAuth`.

use super::backend::{ReferenceScope, ServiceReferrer, rejected_answer, resolve};
use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::report::ValidationFault;
use crate::objects::{
    AuthorizerCookies, AuthorizerMethod, BackendObjectRef, ExternalAuth, FieldName, HttpAuthorizer,
    SECURITY_POLICY, SignInPage,
};
use crate::snapshot::{
    AuthorizerTarget, BackendKey, CookieScope, ExternalAuthSettings, FieldSelection,
    SignInRedirect, TransportProtocol, UrlTemplate,
};
use crate::status::ConditionReason;

/// Fields of the client's request that an authorizer always gets.
const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];
/// Longest time limit of an authorization request.
const MAX_TIMEOUT: crate::objects::Duration = crate::objects::Duration::from_secs(60);

/// Returns the settings of a policy, or all errors.
pub(super) fn of_policy(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    auth: &ExternalAuth,
) -> Result<ExternalAuthSettings, Vec<ValidationFault>> {
    const FIELD: &str = "spec.externalAuth";
    let mut faults = Vec::new();
    let mut refuse = |part: &str, message: String| {
        let field = format!("{FIELD}.{part}");
        faults.push(ValidationFault::new(ConditionReason::Invalid, field, message));
    };
    let target = match (&auth.path, &auth.path_prefix) {
        (Some(_), Some(_)) => Err(("pathPrefix", "and `path` exclude each other".to_owned())),
        (Some(path), None) if !path.starts_with('/') => {
            Err(("path", "must begin with `/`".to_owned()))
        }
        (Some(path), None) => {
            UrlTemplate::parse(path).map(AuthorizerTarget::Template).map_err(|it| ("path", it))
        }
        (None, Some(prefix)) if prefix.contains('?') => {
            Err(("pathPrefix", "must have no query".to_owned()))
        }
        (None, prefix) => Ok(prefix_target(prefix.as_deref().unwrap_or_default())),
    };
    let target = target.map_err(|(part, message)| refuse(part, message)).ok();
    let sign_in = auth.sign_in.as_ref().and_then(|page| {
        sign_in(page).map_err(|(part, message)| refuse(&format!("signIn.{part}"), message)).ok()
    });
    if auth.timeout > MAX_TIMEOUT {
        refuse("timeout", "must be at most 1m".to_owned());
    }
    for (n, name) in auth.response_headers.iter().enumerate() {
        if !may_be_set(&name.0) {
            refuse(
                &format!("responseHeaders[{n}]"),
                "cannot be changed: it belongs to the connection".to_owned(),
            );
        }
    }
    let referrer = ServiceReferrer {
        kind: if auth.is_of_ingress { "Ingress" } else { SECURITY_POLICY },
        namespace: &owner.metadata.namespace,
        scope: match auth.is_permitted {
            true => ReferenceScope::Services { hides_clients: false },
            false => ReferenceScope::Gateways,
        },
    };
    let backend = authorizer(index, referrer, &auth.backend_ref, FIELD);
    let backend = backend.map_err(|fault| faults.push(fault)).ok();
    let (Some(target), Some(backend), true) = (target, backend, faults.is_empty()) else {
        return Err(faults);
    };
    let is_fixed = matches!(target, AuthorizerTarget::Template(_));
    let default_method = is_fixed.then_some(AuthorizerMethod::Get);
    Ok(ExternalAuthSettings {
        backend: Some(backend),
        target,
        method: auth.method.or(default_method).map(AuthorizerMethod::text),
        host: auth.host.as_deref().map(Into::into),
        request_fields: selection(&auth.request_headers, &CREDENTIALS),
        describes_request: true,
        positive: 200..=299,
        response_fields: selection(&auth.response_headers, &[]),
        cookies: match auth.cookies {
            AuthorizerCookies::OnSuccess => CookieScope::OnSuccess,
            AuthorizerCookies::Always => CookieScope::Always,
            AuthorizerCookies::Never => CookieScope::Never,
        },
        sign_in,
        timeout: auth.timeout.0,
    })
}

/// Returns the settings of a filter for an authorizer that speaks HTTP, as GEP-1494 says.
pub(super) fn of_filter(
    backend: Option<BackendKey>,
    http: &HttpAuthorizer,
) -> ExternalAuthSettings {
    let response_fields = match http.allowed_response_headers.as_slice() {
        [] => FieldSelection::All,
        names => selection(names, &[]),
    };
    ExternalAuthSettings {
        backend,
        target: prefix_target(&http.path),
        method: None,
        host: None,
        request_fields: selection(&http.allowed_headers, &["authorization"]),
        describes_request: false,
        positive: 200..=200,
        response_fields,
        cookies: CookieScope::Never,
        sign_in: None,
        timeout: crate::objects::DEFAULT_AUTHORIZER_TIMEOUT.0,
    }
}

/// Returns the backend of an authorizer.
pub(super) fn authorizer(
    index: &ObjectIndex<'_>,
    referrer: ServiceReferrer<'_>,
    reference: &BackendObjectRef,
    field: &str,
) -> Result<BackendKey, ValidationFault> {
    let field = format!("{field}.backendRef");
    let key = resolve(index, referrer, reference.service(), TransportProtocol::Tcp, &field)?;
    rejected_answer(index, &key, &field).map_or(Ok(key), Err)
}

/// True if the endpoint may get a field of this name from the authorizer.
pub(super) fn may_be_set(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !super::filter::IMMUTABLE_FIELDS.contains(&&*name)
}

fn prefix_target(prefix: &str) -> AuthorizerTarget {
    AuthorizerTarget::Prefix(prefix.trim_end_matches('/').into())
}

fn sign_in(page: &SignInPage) -> Result<SignInRedirect, (&'static str, String)> {
    let url = UrlTemplate::parse(&page.url).map_err(|message| ("url", message))?;
    let starts = ["http://", "https://", "/", "$scheme://"];
    if !starts.iter().any(|start| page.url.starts_with(start)) {
        return Err(("url", "must begin with http://, https:// or /".to_owned()));
    }
    let name = &page.redirect_parameter;
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if !name.bytes().all(is_inner) {
        return Err(("redirectParameter", "must have only letters, digits and -._~".to_owned()));
    }
    let query = page.url.split_once('?').map(|(_, query)| query).unwrap_or_default();
    let is_given = query.split('&').any(|it| it.split('=').next() == Some(name));
    let is_added = !name.is_empty() && !is_given;
    Ok(SignInRedirect { url, parameter: is_added.then(|| name.as_str().into()) })
}

fn selection(names: &[FieldName], always: &[&str]) -> FieldSelection {
    if names.iter().any(|name| name.0 == "*") {
        return FieldSelection::All;
    }
    let names = names.iter().map(|name| name.0.to_ascii_lowercase());
    let names = always.iter().map(|name| (*name).to_owned()).chain(names);
    FieldSelection::Only(names.map(Into::into).collect())
}
