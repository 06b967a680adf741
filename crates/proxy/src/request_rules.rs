//! Request rules of TrafficPolicies, which come before all other filters of a route.

use codec::h1::BadRequest;
use codec::head::{RequestHead, ResponseHead};
use gateway::snapshot::{RuleDecision, RuleRequest, UrlScheme};

use crate::active_config::ActiveListener;
use crate::context::RequestContext;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::request_path::path_rules;
use crate::routed_request::RoutedRequest;

/// Maximum number of times that rules choose the route of a request anew, as in nginx.
pub(crate) const MAX_REROUTES: usize = 10;

/// The step of a request that comes after the request rules of its route.
pub(crate) enum RuleStep {
    /// The other filters of the route.
    Proceed,
    /// The route is chosen anew.
    Route,
    /// The response's head is ready.
    Reply,
    /// The response is that of the rule with this index.
    Respond { rule: usize },
}

/// Applies the request rules of the route whose filters the request has.
pub(crate) fn apply(
    context: &mut RequestContext<'_>,
    listener: &ActiveListener,
) -> Result<RuleStep, Failure> {
    let RequestContext { client, exchange, .. } = context;
    let Exchange { request, response, filters, .. } = &mut **exchange;
    let Some(filters) = filters else { return Ok(RuleStep::Proceed) };
    // A browser follows no redirect of a preflight, and rejects every response but that of the CORS filter.
    if filters.answers_preflight(request) {
        return Ok(RuleStep::Proceed);
    }
    let Some(rules) = filters.request_rules() else { return Ok(RuleStep::Proceed) };
    let scheme = client.origin.scheme;
    let decision = rules.decide(&RuleRequest {
        attributes: &RoutedRequest(request),
        scheme,
        port: listener.public_port,
        authority: request.authority(),
        received_target: request.received_target(),
        client: client.origin.client(&request.fields, &listener.client),
    });
    match decision.or(Err(Failure::RequestRules))? {
        RuleDecision::Proceed => Ok(RuleStep::Proceed),
        RuleDecision::Forward { target } => {
            if let Some(target) = target {
                rewrite(request, &target, listener)?;
            }
            filters.keeps_path = true;
            Ok(RuleStep::Proceed)
        }
        RuleDecision::Route { target } => match rewrite(request, &target, listener)? {
            true => Ok(RuleStep::Route),
            false => Ok(RuleStep::Proceed),
        },
        RuleDecision::Redirect { status, location } => {
            let port = listener.public_port;
            redirect((status, &location), request, (scheme, port), response)?;
            filters.change_response(request, response);
            Ok(RuleStep::Reply)
        }
        RuleDecision::Respond { rule } => Ok(RuleStep::Respond { rule }),
    }
}

/// Replaces path and query. Returns false if the request has no path: `*` denotes the whole server.
fn rewrite(
    request: &mut RequestHead,
    target: &[u8],
    listener: &ActiveListener,
) -> Result<bool, Failure> {
    if !request.path().starts_with(b"/") {
        return Ok(false);
    }
    request.rewrite_target(target);
    let rules = path_rules(listener.client.path);
    request.normalise_path(rules).map_err(Failure::BadRequest)?;
    Ok(true)
}

/// Builds the head of a redirect to a URL, or to a path of the requested host.
fn redirect(
    (status, location): (u16, &[u8]),
    request: &RequestHead,
    (scheme, port): (UrlScheme, u16),
    response: &mut ResponseHead,
) -> Result<(), Failure> {
    let mut url = Vec::with_capacity(location.len() + 64);
    if location.starts_with(b"/") {
        // HTTP/1.0 allows a request without a host, and then there is no URL to redirect to.
        if request.host().is_empty() {
            return Err(Failure::BadRequest(BadRequest::HostMissing));
        }
        url.extend_from_slice(scheme.text().as_bytes());
        url.extend_from_slice(b"://");
        url.extend_from_slice(request.host());
        if port != scheme.port() {
            url.extend_from_slice(format!(":{port}").as_bytes());
        }
    }
    url.extend_from_slice(location);
    response.status = status;
    response.fields.append("Location", url);
    Ok(())
}
