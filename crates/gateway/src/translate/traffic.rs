//! TrafficPolicies: the handling of requests to each target.

use super::backend::{ReferenceScope, ServiceReferrer, rejected_answer, resolve};
use super::index::{ObjectIndex, TRAFFIC_POLICY};
use super::owner::OwnerObject;
use super::report::ValidationFault;
use super::request_rules::request_rules;
use super::route_policy::{FaultyPolicy, RoutePolicies, RoutePolicy, full_name};
use crate::certificate_object::CertificateObject;
use crate::objects::{
    BackendObjectRef, CompressionAlgorithm, CompressionSpec, ConfigMapValueRef, DirectResponse,
    ErrorPage, InvalidObject, MediaRange, RouteTarget, StatusRange, TrafficLimits,
    TrafficPolicySpec,
};
use crate::snapshot::{
    BackendKey, CompressionSettings, ContentCoding, DirectResponseSettings, ErrorPageSettings,
    ErrorPageSource, ResponseContent, TrafficSettings, TransportProtocol,
};
use crate::status::ConditionReason;

/// Largest size of a body in a policy, in bytes.
const MAX_INLINE_BYTES: usize = 4096;
/// Largest size of a body in a ConfigMap, in bytes.
const MAX_VALUE_BYTES: usize = 64 * 1024;
/// The field of the response to every request.
const DIRECT: &str = "spec.directResponse";
/// Statuses of responses that never have a body (RFC 9110).
const WITHOUT_BODY: [u16; 3] = [204, 205, 304];

/// The settings of all targets.
pub(super) type TrafficPolicies<'a> = RoutePolicies<'a, TrafficSettings>;

impl RoutePolicy<TrafficSettings> for TrafficPolicySpec {
    const KIND: &'static str = TRAFFIC_POLICY;

    fn targets(&self) -> &[RouteTarget] {
        &self.target_refs
    }

    fn faults(&self, index: &ObjectIndex<'_>, owner: OwnerObject<'_>) -> Vec<ValidationFault> {
        let Self {
            target_refs: _,
            limits,
            request_rules: rules,
            direct_response,
            error_pages,
            compression,
        } = self;
        let is_empty = *limits == TrafficLimits::default()
            && rules.is_empty()
            && direct_response.is_none()
            && error_pages.is_empty()
            && compression.is_none();
        if is_empty {
            return vec![ValidationFault::new(ConditionReason::Invalid, "spec", "has no settings")];
        }
        let respond = |it: &DirectResponse, field: &str| direct_settings(index, owner, it, field);
        let of_rules = request_rules(rules, respond).err().unwrap_or_default();
        let direct = direct_response.as_ref().map(|it| direct_settings(index, owner, it, DIRECT));
        let pages = pages(index, owner, error_pages).filter_map(Result::err);
        of_rules.into_iter().chain(direct.and_then(Result::err)).chain(pages).collect()
    }

    fn settings(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> TrafficSettings {
        let TrafficLimits { body_bytes } = self.limits;
        let direct = self.direct_response.as_ref();
        let direct = direct.map(|it| direct_settings(index, owner, it, DIRECT));
        let direct = direct.map(|it| it.unwrap_or(DirectResponseSettings::Invalid));
        let respond = |it: &DirectResponse, field: &str| direct_settings(index, owner, it, field);
        let rules = request_rules(&self.request_rules, respond);
        let invalid = rules.is_err().then_some(DirectResponseSettings::Invalid);
        TrafficSettings {
            policy: full_name(owner).into(),
            max_body_bytes: body_bytes,
            request_rules: rules.unwrap_or_default(),
            direct_response: invalid.or(direct),
            error_pages: pages(index, owner, &self.error_pages).filter_map(Result::ok).collect(),
            compression: self.compression.as_ref().map(compression_settings),
        }
    }

    fn faulty(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        target: &RouteTarget,
    ) -> FaultyPolicy<TrafficSettings> {
        let settings = self.settings(index, owner, target);
        match settings.direct_response {
            Some(DirectResponseSettings::Invalid) => without_endpoints(&full_name(owner)),
            // A page restricts no request: the rest of the policy applies.
            Some(_) | None if !self.error_pages.is_empty() => FaultyPolicy {
                consequence: "pages in error are left out",
                settings: Some(settings),
            },
            Some(_) | None => FaultyPolicy::LEFT_OUT,
        }
    }

    fn unreadable(policy: &str, object: &InvalidObject) -> FaultyPolicy<TrafficSettings> {
        match object.answers_directly {
            true => without_endpoints(policy),
            false => FaultyPolicy::LEFT_OUT,
        }
    }
}

/// Returns the effect of a policy in error whose targets send no request to an endpoint.
fn without_endpoints(policy: &str) -> FaultyPolicy<TrafficSettings> {
    FaultyPolicy {
        consequence: "all requests to its targets are answered with 500",
        settings: Some(TrafficSettings {
            policy: policy.into(),
            max_body_bytes: None,
            request_rules: None,
            direct_response: Some(DirectResponseSettings::Invalid),
            error_pages: Vec::new(),
            compression: None,
        }),
    }
}

fn compression_settings(spec: &CompressionSpec) -> CompressionSettings {
    let CompressionSpec { algorithms, content_types, min_bytes } = spec;
    let coding = |algorithm: &CompressionAlgorithm| match algorithm {
        CompressionAlgorithm::Gzip => ContentCoding::Gzip,
        CompressionAlgorithm::Brotli => ContentCoding::Brotli,
        CompressionAlgorithm::Zstd => ContentCoding::Zstd,
    };
    let media_type = |MediaRange(range): &MediaRange| {
        range.strip_suffix('*').unwrap_or(range).to_ascii_lowercase().into_boxed_str()
    };
    CompressionSettings {
        codings: algorithms.iter().map(coding).collect(),
        media_types: content_types.iter().map(media_type).collect(),
        min_bytes: *min_bytes,
    }
}

/// Returns the settings of a response in place of that of an endpoint. `field` is the part of the policy that has it.
pub(super) fn direct_settings(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    direct: &DirectResponse,
    field: &str,
) -> Result<DirectResponseSettings, ValidationFault> {
    let DirectResponse { status, body, body_ref, content_type } = direct;
    if body.is_some() && body_ref.is_some() {
        return Err(fault(field, "bodyRef", "and `body` exclude each other"));
    }
    let source = BodySource { body: body.as_deref(), value: body_ref.as_ref(), content_type };
    let content = source.content(index, owner, field)?.filter(|it| !it.body.is_empty());
    if content.is_some() && WITHOUT_BODY.contains(status) {
        let part = if body.is_some() { "body" } else { "bodyRef" };
        let message = format!("is not allowed: a response with status {status} has no body");
        return Err(fault(field, part, message));
    }
    Ok(DirectResponseSettings::Response { status: *status, content })
}

/// Returns the settings of each page, or its fault.
fn pages<'p>(
    index: &'p ObjectIndex<'_>,
    owner: OwnerObject<'p>,
    pages: &'p [ErrorPage],
) -> impl Iterator<Item = Result<ErrorPageSettings, ValidationFault>> + 'p {
    let settings = move |(n, page)| page_settings(index, owner, page, n);
    pages.iter().enumerate().map(settings)
}

fn page_settings(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    page: &ErrorPage,
    number: usize,
) -> Result<ErrorPageSettings, ValidationFault> {
    let field = &*format!("spec.errorPages[{number}]");
    let ErrorPage { statuses, no_endpoint, body, body_ref, content_type, backend_ref, .. } = page;
    if statuses.is_empty() && !no_endpoint {
        return Err(fault(field, "statuses", "is empty: the page is for no response"));
    }
    let given = [body.is_some(), body_ref.is_some(), backend_ref.is_some()];
    if given.iter().filter(|it| **it).count() != 1 {
        let message = "must have exactly one of `body`, `bodyRef` and `backendRef`";
        return Err(ValidationFault::new(ConditionReason::Invalid, field, message));
    }
    let has_body = |status: &u16| !WITHOUT_BODY.contains(status);
    if page.response_status.is_some_and(|it| !has_body(&it)) {
        return Err(fault(field, "responseStatus", "is that of a response without a body"));
    }
    let source = BodySource { body: body.as_deref(), value: body_ref.as_ref(), content_type };
    let source = match (source.content(index, owner, field)?, backend_ref) {
        (Some(content), _) => ErrorPageSource::Content(content),
        (None, Some(reference)) => {
            ErrorPageSource::Backend(backend(index, owner, page, reference, field)?)
        }
        // One of them is given.
        (None, None) => return Err(fault(field, "body", "is missing")),
    };
    Ok(ErrorPageSettings {
        statuses: statuses.iter().map(|StatusRange(range)| range.clone()).collect(),
        no_endpoint: *no_endpoint,
        response_status: page.response_status,
        source,
    })
}

fn backend(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    page: &ErrorPage,
    reference: &BackendObjectRef,
    field: &str,
) -> Result<BackendKey, ValidationFault> {
    let referrer = ServiceReferrer {
        kind: if page.is_of_ingress { "Ingress" } else { TRAFFIC_POLICY },
        namespace: &owner.metadata.namespace,
        scope: ReferenceScope::Gateways,
    };
    let field = format!("{field}.backendRef");
    let key = resolve(index, referrer, reference.service(), TransportProtocol::Tcp, &field)?;
    rejected_answer(index, &key, &field).map_or(Ok(key), Err)
}

/// A body, in the policy itself or in a ConfigMap.
struct BodySource<'a> {
    body: Option<&'a str>,
    value: Option<&'a ConfigMapValueRef>,
    content_type: &'a str,
}

impl BodySource<'_> {
    /// Returns the content, if there is one. `field` is the part of the policy that has the body.
    fn content(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        field: &str,
    ) -> Result<Option<ResponseContent>, ValidationFault> {
        let (text, part, most) = match (self.body, self.value) {
            (Some(body), _) => (body, "body", MAX_INLINE_BYTES),
            (None, Some(value)) => {
                let text = value_of(index, owner, value, field)?;
                (text, "bodyRef.key", MAX_VALUE_BYTES)
            }
            (None, None) => return Ok(None),
        };
        if text.len() > most {
            let message = format!("must have at most {most} bytes, has {}", text.len());
            return Err(fault(field, part, message));
        }
        let (content_type, body) = (self.content_type.into(), text.as_bytes().into());
        Ok(Some(ResponseContent { content_type, body }))
    }
}

fn value_of<'i>(
    index: &'i ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    ConfigMapValueRef { name, key }: &ConfigMapValueRef,
    field: &str,
) -> Result<&'i str, ValidationFault> {
    let namespace = &*owner.metadata.namespace;
    let Some(map) = index.config_maps.get(&(namespace, &**name)) else {
        let object = CertificateObject::new("ConfigMap", namespace, name);
        return Err(fault(field, "bodyRef.name", index.absence(&object)));
    };
    let absent = || {
        let message = format!("ConfigMap {namespace}/{name} has no text of this key");
        fault(field, "bodyRef.key", message)
    };
    map.spec.data.get(key).map(String::as_str).ok_or_else(absent)
}

fn fault(field: &str, part: &str, message: impl Into<String>) -> ValidationFault {
    ValidationFault::new(ConditionReason::Invalid, format!("{field}.{part}"), message)
}
