//! Route filters: changes to a request and its response.
//!
//! A rule without filters costs a request one check. Each filter is an edit on top of a head (see
//! [`codec::head`]); the edits were prepared when the route was translated. Request mirroring is in
//! [`crate::mirror`].

use std::net::IpAddr;
use std::sync::Arc;

use codec::head::{ByteSpan, RequestHead, ResponseHead};
use gateway::snapshot::{
    ClientCertificateAccess, CompressionSettings, ContentCoding, CorsPolicy, MirrorPolicy,
    RequestRules, RouteFilters, Rule, SecuritySettings, TrafficSettings, UrlScheme, WeightedTarget,
};

use crate::failure::Failure;
use crate::rate_limit::{RateLimitRejection, RateLimiter};
use crate::scratch::ReplayReservation;
use crate::trace::RequestTrace;

/// Header modification.
pub(crate) mod headers;
/// Redirects.
mod redirect;
/// URL rewrites.
mod rewrite;
/// CORS.
mod cors;
/// Fields that an authorizer adds to responses.
pub(crate) mod authorizer_fields;
/// Error pages.
pub(crate) mod error_page;
/// Content codings that clients accept.
mod accept_encoding;
/// Compression of responses.
pub(crate) mod compression;

use accept_encoding::CodingPreference;
use authorizer_fields::AuthorizerFields;
use error_page::ErrorPage;

/// Filters that apply to one request.
pub(crate) struct RequestFilters {
    rule: Arc<Rule>,
    /// Index of the selected target in the rule; `None` if the rule has none.
    target: Option<usize>,
    /// Position of the request's `Origin` field as the client sent it, even if a filter removes the
    /// field.
    origin: Option<ByteSpan>,
    /// Rate limit that rejects the request.
    pub(crate) rejection: Option<Box<RateLimitRejection>>,
    /// Fields of the authorizers, for the client.
    pub(crate) authorizer_fields: Vec<AuthorizerFields>,
    /// The share that the body has in the bytes that are kept, if it was read for an authorizer.
    pub(crate) body_reservation: Option<ReplayReservation>,
    /// True if a request rule has decided on the path, so that no filter rewrites it.
    pub(crate) keeps_path: bool,
    /// True if the request is as its endpoint gets it.
    pub(crate) has_changed_request: bool,
    /// Content coding that the client prefers, as it sent the request. `None`: responses are not compressed.
    preference: Option<CodingPreference>,
    /// The trace of the request; `None`: it is not traced.
    pub(crate) trace: Option<Box<RequestTrace>>,
}

impl RequestFilters {
    /// Returns `None` if no filter applies. `target` is the index of one of the rule's targets.
    pub(crate) fn new(
        rule: &Arc<Rule>,
        target: Option<usize>,
        request: &RequestHead,
    ) -> Option<Self> {
        let target_filters = target.is_some_and(|target| rule.targets[target].filters.is_some());
        if rule.filters.is_none() && !target_filters {
            return None;
        }
        let origin = request.fields.find_span("origin");
        let preference = compression_of(rule)
            .map(|settings| CodingPreference::of(&request.fields, &settings.codings));
        Some(Self {
            rule: Arc::clone(rule),
            target,
            origin,
            rejection: None,
            authorizer_fields: Vec::new(),
            body_reservation: None,
            keeps_path: false,
            has_changed_request: false,
            preference,
            trace: None,
        })
    }

    /// Returns the filters of a request to which none applies, but which is traced.
    pub(crate) fn without_changes(rule: &Arc<Rule>) -> Self {
        Self {
            rule: Arc::clone(rule),
            target: None,
            origin: None,
            rejection: None,
            authorizer_fields: Vec::new(),
            body_reservation: None,
            keeps_path: false,
            has_changed_request: true,
            preference: None,
            trace: None,
        }
    }

    /// Checks if a client with this address may send the request.
    pub(crate) fn admit(&self, address: impl FnOnce() -> IpAddr) -> Result<(), Failure> {
        let Some(security) = self.security() else { return Ok(()) };
        match &security.client_addresses {
            None => Err(Failure::SecurityPolicyInvalid),
            Some(rules) if rules.admits(address()) => Ok(()),
            Some(_) => Err(Failure::AccessDenied),
        }
    }

    /// Returns the check of the client's certificate, if there is one.
    pub(crate) fn client_certificate(&self) -> Option<&ClientCertificateAccess> {
        self.security()?.client_certificate.as_ref()
    }

    /// Returns the checks of clients, if there are any.
    pub(crate) fn security(&self) -> Option<&Arc<SecuritySettings>> {
        self.rule.filters.as_ref()?.security.as_ref()
    }

    /// True if another server decides whether the request may be served.
    pub(crate) fn has_authorizer(&self) -> bool {
        self.rule.filters.as_ref().is_some_and(|it| {
            it.external_auth.is_some()
                || it.security.as_ref().is_some_and(|it| it.external_auth.is_some())
        })
    }

    /// Returns the index of the rate limits of the request.
    pub(crate) fn rate_limit(&self) -> Option<usize> {
        self.rule.filters.as_ref()?.rate_limit
    }

    /// True if a rate limit of the request depends on claims of its token.
    pub(crate) fn limits_claims(&self, limiter: &RateLimiter) -> bool {
        let jwt = self.security().and_then(|it| it.jwt.as_ref());
        jwt.is_some_and(|it| limiter.has_key_of(&it.claim_fields))
    }

    /// Keeps the rejection by a rate limit for the response.
    pub(crate) fn reject(&mut self, rejection: Box<RateLimitRejection>) -> Failure {
        self.rejection = Some(rejection);
        Failure::RateLimit
    }

    /// Returns the maximum size of the request's body, if it is not that of the listener.
    pub(crate) fn max_body_bytes(&self) -> Option<u64> {
        self.rule.filters.as_ref()?.traffic.as_ref()?.max_body_bytes
    }

    /// Returns the settings of a TrafficPolicy, if there are any.
    pub(crate) fn traffic(&self) -> Option<&Arc<TrafficSettings>> {
        self.rule.filters.as_ref()?.traffic.as_ref()
    }

    /// Returns the request rules, if there are any.
    pub(crate) fn request_rules(&self) -> Option<&RequestRules> {
        self.traffic()?.request_rules.as_ref()
    }

    /// True if a policy has a response in place of that of an endpoint.
    pub(crate) fn has_direct_response(&self) -> bool {
        self.traffic().is_some_and(|it| it.direct_response.is_some())
    }

    /// Returns the page for an error response with this status.
    pub(crate) fn error_page(&self, status: u16, has_no_endpoint: bool) -> Option<ErrorPage> {
        let settings = self.rule.filters.as_ref()?.traffic.as_ref()?;
        ErrorPage::find(settings, status, has_no_endpoint)
    }

    /// Returns the coding of the response, if it is to be compressed. Adds `Vary` if another client would get it
    /// compressed.
    pub(crate) fn choose_coding(
        &self,
        request: &RequestHead,
        response: &mut ResponseHead,
    ) -> Option<ContentCoding> {
        compression::choose(compression_of(&self.rule)?, self.preference?, request, response)
    }

    /// Returns the name of the rule: `namespace/route/rule`.
    pub(crate) fn rule_name(&self) -> &str {
        &self.rule.name
    }

    /// True if the request is a CORS preflight that the filter of the route answers.
    pub(crate) fn answers_preflight(&self, request: &RequestHead) -> bool {
        self.cors().is_some() && self.origin(request).is_some() && cors::is_preflight(request)
    }

    /// Answers in place of the endpoint if a filter requires it. Returns true if the response's
    /// head is complete.
    pub(crate) fn answer(
        &self,
        request: &RequestHead,
        scheme: UrlScheme,
        port: u16,
        response: &mut ResponseHead,
    ) -> Result<bool, Failure> {
        let Some(filters) = self.rule.filters.as_deref() else { return Ok(false) };
        if let (Some(cors), Some(origin)) = (&filters.cors, self.origin(request))
            && cors::is_preflight(request)
        {
            cors::answer_preflight(cors, origin, request, response);
            return Ok(true);
        }
        let redirect = filters.redirect.as_ref().filter(|_| !self.has_direct_response());
        let Some(redirect) = redirect else { return Ok(false) };
        redirect::answer(redirect, request, scheme, port, response)?;
        self.change_response(request, response);
        Ok(true)
    }

    /// Applies the filters to the client's request before it goes to the endpoint.
    pub(crate) fn change_request(&mut self, request: &mut RequestHead) {
        self.has_changed_request = true;
        for filters in self.all() {
            if let Some(rewrite) = &filters.rewrite {
                rewrite::apply(rewrite, self.keeps_path, request);
            }
            headers::edit(&mut request.fields, &filters.request_headers);
        }
    }

    /// Applies the filters to the endpoint's response before it goes to the client.
    pub(crate) fn change_response(&self, request: &RequestHead, response: &mut ResponseHead) {
        self.allow_origin(request, response);
        for filters in self.all() {
            headers::edit(&mut response.fields, &filters.response_headers);
        }
        self.add_authorizer_fields(response);
    }

    /// Adds the fields of the authorizers, if the response is one that gets them.
    pub(crate) fn add_authorizer_fields(&self, response: &mut ResponseHead) {
        self.authorizer_fields.iter().for_each(|fields| fields.apply_to(response));
    }

    /// Adds the CORS fields that let permitted scripts read the response, including a response that
    /// we generate.
    pub(crate) fn allow_origin(&self, request: &RequestHead, response: &mut ResponseHead) {
        if let Some(cors) = self.cors() {
            cors::add_cors_fields(cors, self.origin(request), response);
        }
    }

    /// Returns the mirror policies that apply to the request.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &MirrorPolicy> {
        self.all().flat_map(|filters| &filters.mirrors)
    }

    /// Returns the rule's filters, then the target's.
    fn all(&self) -> impl Iterator<Item = &RouteFilters> {
        let target: Option<&WeightedTarget> = self.target.map(|target| &self.rule.targets[target]);
        let target_filters = target.and_then(|target| target.filters.as_deref());
        self.rule.filters.as_deref().into_iter().chain(target_filters)
    }

    fn cors(&self) -> Option<&CorsPolicy> {
        self.rule.filters.as_ref()?.cors.as_ref()
    }

    fn origin<'r>(&self, request: &'r RequestHead) -> Option<&'r [u8]> {
        self.origin.map(|origin| request.fields.text(origin))
    }
}

fn compression_of(rule: &Rule) -> Option<&CompressionSettings> {
    rule.filters.as_ref()?.traffic.as_ref()?.compression.as_ref()
}

#[cfg(test)]
mod tests;
