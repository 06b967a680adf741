//! What the filters of a route do to a request and its response.
//!
//! A rule without filters costs a request one look. Everything is an edit on top of a head (see [`crate::head`]); what
//! is to be edited was decided when the route was translated. Mirrors are in [`crate::mirror`].

use std::sync::Arc;

use gateway::snapshot::{CorsPolicy, MirrorPolicy, RouteFilters, Rule, UrlScheme, WeightedTarget};

use crate::failure::Failure;
use crate::head::{ByteSpan, RequestHead, ResponseHead};

/// Changes in fields.
mod headers;
/// Answers that send a client elsewhere.
mod redirect;
/// What the endpoint is asked for instead.
mod rewrite;
/// What scripts from elsewhere may do.
mod cors;

/// The filters that hold for one request.
pub(crate) struct RequestFilters {
    rule: Arc<Rule>,
    /// Place among the rule's targets; `None` if the rule has none.
    target: Option<usize>,
    /// `RequestOrigin` as the client sent it, whatever becomes of the field.
    origin: Option<ByteSpan>,
}

impl RequestFilters {
    /// `None`: there are no filters. `target` is one of the rule's.
    pub(crate) fn new(
        rule: &Arc<Rule>,
        target: Option<usize>,
        request: &RequestHead,
    ) -> Option<Self> {
        let of_target = target.is_some_and(|target| rule.targets[target].filters.is_some());
        if rule.filters.is_none() && !of_target {
            return None;
        }
        let origin = request.fields.find_span("origin");
        Some(Self { rule: Arc::clone(rule), target, origin })
    }

    /// Answers in the endpoint's place, if a filter says so: then the response's head is ready.
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
        let Some(redirect) = &filters.redirect else { return Ok(false) };
        redirect::answer(redirect, request, scheme, port, response)?;
        self.change_response(request, response);
        Ok(true)
    }

    /// Makes of the client's request what the endpoint is to get.
    pub(crate) fn change_request(&self, request: &mut RequestHead) {
        for filters in self.all() {
            if let Some(rewrite) = &filters.rewrite {
                rewrite::apply(rewrite, request);
            }
            headers::edit(&mut request.fields, &filters.request_headers);
        }
    }

    /// Makes of the endpoint's response what the client is to get.
    pub(crate) fn change_response(&self, request: &RequestHead, response: &mut ResponseHead) {
        self.allow_origin(request, response);
        for filters in self.all() {
            headers::edit(&mut response.fields, &filters.response_headers);
        }
    }

    /// Lets scripts read the response, as far as they may: an answer of our own too.
    pub(crate) fn allow_origin(&self, request: &RequestHead, response: &mut ResponseHead) {
        if let Some(cors) = self.cors() {
            cors::add_cors_fields(cors, self.origin(request), response);
        }
    }

    /// Who else gets the request.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &MirrorPolicy> {
        self.all().flat_map(|filters| &filters.mirrors)
    }

    /// The rule's filters, then the target's.
    fn all(&self) -> impl Iterator<Item = &RouteFilters> {
        let target: Option<&WeightedTarget> = self.target.map(|target| &self.rule.targets[target]);
        let of_target = target.and_then(|target| target.filters.as_deref());
        self.rule.filters.as_deref().into_iter().chain(of_target)
    }

    fn cors(&self) -> Option<&CorsPolicy> {
        self.rule.filters.as_ref()?.cors.as_ref()
    }

    fn origin<'r>(&self, request: &'r RequestHead) -> Option<&'r [u8]> {
        self.origin.map(|origin| request.fields.text(origin))
    }
}

#[cfg(test)]
mod tests;
