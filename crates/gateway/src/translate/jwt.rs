//! `jwt` of a SecurityPolicy, with the keys of its issuers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::external_auth::may_be_set;
use super::grant::permits;
use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::report::ValidationFault;
use crate::certificate_object::CertificateObject;
use crate::jwks::{JsonWebKeySet, JwksHost, JwksSubscription, JwksUrl, KeySetState};
use crate::objects::{
    ClaimToHeader, JwksConfigMap, JwksSource, JwtAuthentication, JwtProvider, JwtSources,
    SECURITY_POLICY,
};
use crate::snapshot::{ClaimField, CredentialSource, JwtIssuer, JwtSettings};
use crate::status::ConditionReason;

/// The value of a ConfigMap that is a key set.
const KEY_SET: &str = "jwks";
/// Largest difference between clocks that may be tolerated.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(10);
/// Interval between two fetches if none is given, and its limits.
const REFRESH_INTERVAL: Duration = Duration::from_mins(5);
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
const MAX_REFRESH_INTERVAL: Duration = Duration::from_hours(24);
/// Time that a fetched key set stays in use, if none is given, and its limit.
const MAX_AGE: Duration = Duration::from_hours(24);
const LONGEST_MAX_AGE: Duration = Duration::from_hours(720);
/// Maximum length of an audience.
const MAX_AUDIENCE: usize = 1024;

/// The keys of an issuer, and their URL if they are fetched.
type IssuerKeys = (Option<Arc<JsonWebKeySet>>, Option<Arc<JwksSubscription>>);

/// Returns the settings of a policy, or all errors.
pub(super) fn settings(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    policy: &str,
    spec: &JwtAuthentication,
) -> Result<JwtSettings, Vec<ValidationFault>> {
    let JwtAuthentication { providers, extract_from, forward } = spec;
    let mut faults = Vec::new();
    let mut refuse = |field: String, message: String| {
        let field = format!("spec.jwt.{field}");
        faults.push(ValidationFault::new(ConditionReason::Invalid, field, message));
    };
    let sources = extract_from.as_ref().map_or_else(default_sources, sources);
    if sources.is_empty() {
        let message = "has neither `headers`, `params` nor `cookies`";
        refuse("extractFrom".to_owned(), message.to_owned());
    }
    let (mut issuers, mut names, mut fields) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (number, provider) in providers.iter().enumerate() {
        let mut refuse =
            |part: &str, message| refuse(format!("providers[{number}].{part}"), message);
        if !names.insert(&*provider.issuer) {
            refuse("issuer", "is the issuer of another provider too".to_owned());
        }
        check_provider(provider, &mut refuse);
        fields.extend(provider.claims_to_headers.iter().map(|it| it.header.0.to_lowercase()));
        match keys(index, owner, &provider.jwks) {
            Ok(keys) => issuers.push(issuer(provider, keys)),
            Err((part, message)) => refuse(&format!("jwks{part}"), message),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(JwtSettings {
        policy: policy.into(),
        issuers,
        sources,
        claim_fields: fields.into_iter().map(Into::into).collect(),
        forwards_token: *forward,
    })
}

/// Reports values that are not allowed.
fn check_provider(provider: &JwtProvider, refuse: &mut impl FnMut(&str, String)) {
    let is_audience = |it: &String| (1..=MAX_AUDIENCE).contains(&it.len());
    if !provider.audiences.iter().all(is_audience) {
        refuse("audiences", format!("must have 1 to {MAX_AUDIENCE} bytes each"));
    }
    if provider.clock_skew.0 > MAX_CLOCK_SKEW {
        refuse("clockSkew", "must be at most 10m".to_owned());
    }
    let mut headers = BTreeSet::new();
    for (number, ClaimToHeader { header, .. }) in provider.claims_to_headers.iter().enumerate() {
        let field = format!("claimsToHeaders[{number}].header");
        if !may_be_set(&header.0) {
            refuse(&field, "cannot be changed: it belongs to the connection".to_owned());
        } else if !headers.insert(header.0.to_lowercase()) {
            refuse(&field, "has another claim too".to_owned());
        }
    }
}

fn issuer(provider: &JwtProvider, (keys, subscription): IssuerKeys) -> JwtIssuer {
    let claim = |ClaimToHeader { claim, header }: &ClaimToHeader| ClaimField {
        claim: claim.as_str().into(),
        field: header.0.to_lowercase().into(),
    };
    JwtIssuer {
        name: provider.issuer.as_str().into(),
        audiences: provider.audiences.iter().map(|it| it.as_str().into()).collect(),
        keys,
        subscription,
        clock_skew: provider.clock_skew.0,
        claims: provider.claims_to_headers.iter().map(claim).collect(),
    }
}

/// Returns the keys of an issuer, or the part of the field that is in error and the error.
fn keys(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    source: &JwksSource,
) -> Result<IssuerKeys, (&'static str, String)> {
    let JwksSource { inline, config_map, url, refresh_interval, max_age } = source;
    let is_fetched = url.is_some();
    for (part, is_given) in
        [(".refreshInterval", refresh_interval.is_some()), (".maxAge", max_age.is_some())]
    {
        if is_given && !is_fetched {
            return Err((part, "is allowed with `url` alone".to_owned()));
        }
    }
    let parsed = |text: &str| JsonWebKeySet::parse(text.as_bytes());
    match (inline, config_map, url) {
        (Some(text), None, None) => {
            let keys = parsed(text).map_err(|message| (".inline", message))?;
            Ok((Some(Arc::new(keys)), None))
        }
        (None, Some(reference), None) => {
            let text = key_set_text(index, owner, reference)?;
            let keys = parsed(text).map_err(|message| {
                let namespace = namespace_of(owner, reference);
                let object = format!("ConfigMap {namespace}/{}", reference.name);
                (".configMap.name", format!("{object}: data.{KEY_SET} {message}"))
            })?;
            Ok((Some(Arc::new(keys)), None))
        }
        (None, None, Some(_)) => {
            let subscription = subscription(index, owner, source)?;
            let keys = state(index, &subscription).and_then(|it| it.keys.clone());
            Ok((keys, Some(Arc::new(subscription))))
        }
        _ => Err(("", "must have exactly one of `inline`, `configMap` and `url`".to_owned())),
    }
}

/// Returns the key set of a ConfigMap as text.
fn key_set_text<'i>(
    index: &'i ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    reference: &JwksConfigMap,
) -> Result<&'i str, (&'static str, String)> {
    let namespace = namespace_of(owner, reference);
    if !is_permitted(index, owner, reference) {
        let own = &owner.metadata.namespace;
        let message = format!(
            "no ReferenceGrant of namespace {namespace} lets SecurityPolicies of {own} use this ConfigMap"
        );
        return Err((".configMap.namespace", message));
    }
    let Some(map) = index.config_maps.get(&(namespace, &*reference.name)) else {
        let object = CertificateObject::new("ConfigMap", namespace, &reference.name);
        return Err((".configMap.name", index.absence(&object)));
    };
    let text = map.spec.data.get(KEY_SET).ok_or_else(|| {
        let object = format!("ConfigMap {namespace}/{}", reference.name);
        (".configMap.name", format!("{object}: data.{KEY_SET} is missing"))
    })?;
    Ok(text)
}

fn namespace_of<'n>(owner: OwnerObject<'n>, reference: &'n JwksConfigMap) -> &'n str {
    reference.namespace.as_deref().unwrap_or(&owner.metadata.namespace)
}

fn is_permitted(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    reference: &JwksConfigMap,
) -> bool {
    let (own, namespace) = (&*owner.metadata.namespace, namespace_of(owner, reference));
    let target = ("ConfigMap", namespace, &*reference.name);
    namespace == own || permits(index, (SECURITY_POLICY, own), target)
}

/// Returns the ConfigMaps with keys that a policy may read.
pub(super) fn config_maps(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    spec: &JwtAuthentication,
) -> Vec<CertificateObject> {
    let maps = spec.providers.iter().filter_map(|it| it.jwks.config_map.as_ref());
    let permitted = maps.filter(|it| is_permitted(index, owner, it));
    let object =
        |it: &JwksConfigMap| CertificateObject::new("ConfigMap", namespace_of(owner, it), &it.name);
    permitted.map(object).collect()
}

/// Returns the state of a key set, or of one with the same URL: a policy whose interval changes keeps its keys.
fn state<'i>(
    index: &'i ObjectIndex<'_>,
    subscription: &JwksSubscription,
) -> Option<&'i KeySetState> {
    let key_sets = &index.settings.key_sets;
    let same_url = || key_sets.iter().find(|(it, _)| it.has_url_of(subscription)).map(|(_, it)| it);
    key_sets.get(subscription).or_else(same_url)
}

/// True if a policy fetches a key set.
pub(super) fn fetches(spec: &JwtAuthentication) -> bool {
    spec.providers.iter().any(|it| it.jwks.url.is_some())
}

/// Returns the first reason why a key set that a policy fetches is missing or old.
pub(super) fn fetch_fault(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    spec: &JwtAuthentication,
) -> Option<ValidationFault> {
    let fault = |(number, provider): (usize, &JwtProvider)| {
        provider.jwks.url.as_ref()?;
        let subscription = subscription(index, owner, &provider.jwks).ok()?;
        let state = state(index, &subscription)?;
        let problem = state.problem.as_ref()?;
        let consequence = match state.keys {
            Some(_) => "the last key set stays in use until it is too old",
            None => "tokens of this issuer are refused",
        };
        let message = format!("spec.jwt.providers[{number}].jwks.url: {problem}; {consequence}");
        Some(ValidationFault::new(ConditionReason::KeysUnavailable, "", message))
    };
    spec.providers.iter().enumerate().find_map(fault)
}

fn subscription(
    index: &ObjectIndex<'_>,
    owner: OwnerObject<'_>,
    source: &JwksSource,
) -> Result<JwksSubscription, (&'static str, String)> {
    let text = source.url.as_deref().unwrap_or_default();
    let url = JwksUrl::parse(text).map_err(|message| (".url", message.to_owned()))?;
    let is_filtered = owner.metadata.in_cluster;
    if is_filtered {
        check_server(index, &url).map_err(|message| (".url", message))?;
    }
    let interval = source.refresh_interval.map_or(REFRESH_INTERVAL, |it| it.0);
    if !(MIN_REFRESH_INTERVAL..=MAX_REFRESH_INTERVAL).contains(&interval) {
        return Err((".refreshInterval", "must be 10s to 24h".to_owned()));
    }
    let max_age = source.max_age.map_or(MAX_AGE, |it| it.0);
    if !(interval..=LONGEST_MAX_AGE).contains(&max_age) {
        let message = "must be at least the refresh interval and at most 720h";
        return Err((".maxAge", message.to_owned()));
    }
    Ok(JwksSubscription { url, refresh_interval: interval, max_age, is_filtered })
}

/// Checks the server of a URL that an object of a cluster names: an author of policies could reach through it what only
/// Sheave can reach. The addresses of a name are checked when it is resolved.
fn check_server(index: &ObjectIndex<'_>, url: &JwksUrl) -> Result<(), String> {
    let JwksHost::Address(address) = url.host else { return Ok(()) };
    let server = SocketAddr::new(address, url.port);
    let checked = index.settings.address_filter.check_server(server);
    checked.map_err(|rejection| format!("{address} {rejection}"))
}

fn default_sources() -> Vec<CredentialSource> {
    vec![CredentialSource::Header("authorization".into())]
}

fn sources(spec: &JwtSources) -> Vec<CredentialSource> {
    CredentialSource::of(&spec.headers, &spec.params, &spec.cookies)
}
