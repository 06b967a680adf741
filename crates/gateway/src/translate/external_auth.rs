//! External authorization: settings of SecurityPolicies and of the filter `ExternalAuth`.

use std::num::NonZeroU16;

use super::backend::{ReferenceScope, ServiceReferrer, is_http1_port, rejected_answer, resolve};
use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::report::ValidationFault;
use crate::objects::{
    AuthorizerCookies, AuthorizerMethod, BackendObjectRef, ExternalAuth, ExternalAuthProtocol,
    FieldName, ForwardedBody, HttpExternalAuth, SECURITY_POLICY, SignInPage,
};
use crate::snapshot::{
    AuthorizerProtocol, AuthorizerTarget, BackendKey, CookieScope, ExternalAuthSettings,
    FieldSelection, HttpQuestion, SignInRedirect, TransportProtocol, UrlTemplate,
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
    let protocol = protocol(auth, owner, &mut refuse);
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
    let backend = authorizer(index, referrer, auth.protocol, &auth.backend_ref, FIELD);
    let backend = backend.map_err(|fault| faults.push(fault)).ok();
    let (Some(protocol), Some(backend), true) = (protocol, backend, faults.is_empty()) else {
        return Err(faults);
    };
    let max_body_bytes = max_body_bytes(auth.forward_body);
    Ok(ExternalAuthSettings {
        backend: Some(backend),
        request_fields: match auth.protocol {
            ExternalAuthProtocol::Http => {
                selection(&auth.request_headers, &[&CREDENTIALS, of_body(max_body_bytes)])
            }
            ExternalAuthProtocol::Grpc => selection_or_all(&auth.request_headers),
        },
        response_fields: match auth.protocol {
            ExternalAuthProtocol::Http => selection(&auth.response_headers, &[]),
            ExternalAuthProtocol::Grpc => selection_or_all(&auth.response_headers),
        },
        protocol,
        max_body_bytes,
        sign_in,
        timeout: auth.timeout.0,
    })
}

/// Returns how the authorizer of a policy is asked; `None` if something about it is refused.
fn protocol(
    auth: &ExternalAuth,
    owner: OwnerObject<'_>,
    refuse: &mut impl FnMut(&str, String),
) -> Option<AuthorizerProtocol> {
    if auth.protocol == ExternalAuthProtocol::Grpc {
        let parts = [
            (auth.path.is_some(), "path"),
            (auth.path_prefix.is_some(), "pathPrefix"),
            (auth.method.is_some(), "method"),
            (auth.cookies != AuthorizerCookies::default(), "cookies"),
        ];
        for (_, part) in parts.iter().filter(|(is_there, _)| *is_there) {
            refuse(part, "is not for protocol GRPC".to_owned());
        }
        let namespace = auth.backend_ref.namespace.as_deref();
        let namespace = namespace.unwrap_or(&owner.metadata.namespace);
        let authority = auth
            .host
            .as_deref()
            .map_or_else(|| authority(namespace, &auth.backend_ref), Into::into);
        return Some(AuthorizerProtocol::Grpc { authority });
    }
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
    let target = target.map_err(|(part, message)| refuse(part, message)).ok()?;
    let has_body = max_body_bytes(auth.forward_body).is_some();
    let default_method = match target {
        AuthorizerTarget::Template(_) if has_body => Some(AuthorizerMethod::Post),
        AuthorizerTarget::Template(_) => Some(AuthorizerMethod::Get),
        AuthorizerTarget::Prefix(_) => None,
    };
    Some(AuthorizerProtocol::Http(HttpQuestion {
        target,
        method: auth.method.or(default_method).map(AuthorizerMethod::text),
        host: auth.host.as_deref().map(Into::into),
        describes_request: true,
        positive: 200..=299,
        cookies: match auth.cookies {
            AuthorizerCookies::OnSuccess => CookieScope::OnSuccess,
            AuthorizerCookies::Always => CookieScope::Always,
            AuthorizerCookies::Never => CookieScope::Never,
        },
    }))
}

/// Returns the settings of a filter, as GEP-1494 says.
pub(super) fn of_filter(
    namespace: &str,
    backend: Option<BackendKey>,
    filter: &HttpExternalAuth,
) -> ExternalAuthSettings {
    let max_body_bytes = max_body_bytes(filter.forward_body);
    let (protocol, request_fields, response_fields) = match filter.protocol {
        ExternalAuthProtocol::Http => {
            let http = filter.http.clone().unwrap_or_default();
            let always = [&["authorization"][..], of_body(max_body_bytes)];
            let fields = selection(&http.allowed_headers, &always);
            let question = HttpQuestion {
                target: prefix_target(&http.path),
                method: None,
                host: None,
                describes_request: false,
                positive: 200..=200,
                cookies: CookieScope::Never,
            };
            let of_answer = selection_or_all(&http.allowed_response_headers);
            (AuthorizerProtocol::Http(question), fields, of_answer)
        }
        ExternalAuthProtocol::Grpc => {
            let allowed = filter.grpc.as_ref().map(|it| it.allowed_headers.as_slice());
            let namespace = filter.backend_ref.namespace.as_deref().unwrap_or(namespace);
            let authority = authority(namespace, &filter.backend_ref);
            let fields = selection_or_all(allowed.unwrap_or_default());
            (AuthorizerProtocol::Grpc { authority }, fields, FieldSelection::All)
        }
    };
    ExternalAuthSettings {
        backend,
        protocol,
        request_fields,
        response_fields,
        max_body_bytes,
        sign_in: None,
        timeout: crate::objects::DEFAULT_AUTHORIZER_TIMEOUT.0,
    }
}

/// Returns the backend of an authorizer.
pub(super) fn authorizer(
    index: &ObjectIndex<'_>,
    referrer: ServiceReferrer<'_>,
    protocol: ExternalAuthProtocol,
    reference: &BackendObjectRef,
    field: &str,
) -> Result<BackendKey, ValidationFault> {
    let field = format!("{field}.backendRef");
    let key = resolve(index, referrer, reference.service(), TransportProtocol::Tcp, &field)?;
    if protocol == ExternalAuthProtocol::Grpc && is_http1_port(index, &key) {
        let message = format!("{key} speaks HTTP/1.1 by its appProtocol, and gRPC needs HTTP/2");
        return Err(ValidationFault::new(ConditionReason::UnsupportedProtocol, field, message));
    }
    rejected_answer(index, &key, &field).map_or(Ok(key), Err)
}

/// Returns the host of calls to a Service.
fn authority(namespace: &str, reference: &BackendObjectRef) -> Box<str> {
    format!("{}.{namespace}", reference.name).into()
}

fn max_body_bytes(forwarded: Option<ForwardedBody>) -> Option<NonZeroU16> {
    NonZeroU16::new(forwarded?.max_size)
}

/// Returns the names of the fields without which a body cannot be read.
const fn of_body(max_body_bytes: Option<NonZeroU16>) -> &'static [&'static str] {
    match max_body_bytes {
        Some(_) => &["content-type", "content-encoding"],
        None => &[],
    }
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

fn selection_or_all(names: &[FieldName]) -> FieldSelection {
    if names.is_empty() { FieldSelection::All } else { selection(names, &[]) }
}

fn selection(names: &[FieldName], always: &[&[&str]]) -> FieldSelection {
    if names.iter().any(|name| name.0 == "*") {
        return FieldSelection::All;
    }
    let names = names.iter().map(|name| name.0.to_ascii_lowercase());
    let names = always.iter().copied().flatten().map(|name| (*name).to_owned()).chain(names);
    FieldSelection::Only(names.map(Into::into).collect())
}
