//! Responses of a TrafficPolicy in place of those of endpoints.

use std::sync::Arc;

use codec::grpc::GrpcCode;
use gateway::snapshot::{DirectResponseSettings, TrafficSettings};

use crate::context::RequestContext;
use crate::exchange::{ConnectionOutcome, Exchange};
use crate::failure::Failure;
use crate::filter::RequestFilters;
use crate::grpc::GrpcCall;
use crate::relay;

/// True if the response to the request is that of a policy.
pub(crate) fn is_due(exchange: &Exchange) -> bool {
    exchange.filters.as_ref().is_some_and(RequestFilters::has_direct_response)
}

/// Sends the response of the policy. A gRPC call gets the gRPC status that stands for its status.
pub(crate) async fn send(context: &mut RequestContext<'_>) -> Result<ConnectionOutcome, Failure> {
    let body = prepare(context.exchange, |policy| policy.direct_response.as_ref())?;
    Ok(relay::reply_with(context, &body).await)
}

/// Sends the response of the request rule with this index.
pub(crate) async fn send_of_rule(
    context: &mut RequestContext<'_>,
    rule: usize,
) -> Result<ConnectionOutcome, Failure> {
    let body = prepare(context.exchange, |policy| policy.request_rules.as_ref()?.response(rule))?;
    Ok(relay::reply_with(context, &body).await)
}

/// Fills in the head of the response that `direct` returns, and returns its body.
fn prepare(
    exchange: &mut Exchange,
    direct: impl Fn(&TrafficSettings) -> Option<&DirectResponseSettings>,
) -> Result<Arc<[u8]>, Failure> {
    let Exchange { request, response, filters, grpc_call, .. } = exchange;
    let policy = filters.as_ref().and_then(RequestFilters::traffic).map(Arc::clone);
    let direct = policy.as_deref().and_then(direct);
    let (Some(filters), Some(DirectResponseSettings::Response { status, content })) =
        (filters, direct)
    else {
        return Err(Failure::TrafficPolicyInvalid);
    };
    response.clear();
    if let Some(mut call) = GrpcCall::of(request) {
        let message = format!("the gateway answers with HTTP status {status}");
        call.conclude_with(GrpcCode::of_http(*status), &message, response);
        *grpc_call = Some(call);
        filters.allow_origin(request, response);
        filters.add_authorizer_fields(response);
        return Ok(Arc::default());
    }
    response.status = *status;
    if let Some(content) = content {
        response.fields.append("Content-Type", &*content.content_type);
    }
    filters.change_response(request, response);
    Ok(content.as_ref().map(|it| Arc::clone(&it.body)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use gateway::snapshot::{RouteFilters, Rule};

    use super::*;

    /// No endpoint gets a request of a policy that is in error: it may close a route.
    #[test]
    fn an_invalid_policy_is_a_failure() {
        let settings = TrafficSettings {
            policy: "default/closed".into(),
            max_body_bytes: None,
            request_rules: None,
            direct_response: Some(DirectResponseSettings::Invalid),
            error_pages: Vec::new(),
            compression: None,
        };
        let filters = RouteFilters { traffic: Some(Arc::new(settings)), ..RouteFilters::default() };
        let rule = Arc::new(Rule {
            index: 0,
            name: "default/r/0".into(),
            targets: Vec::new(),
            filters: Some(Box::new(filters)),
            request_timeout: None,
            attempt_timeout: None,
            retry: None,
            affinity: None,
        });
        let mut exchange = Exchange::default();
        exchange.filters = RequestFilters::new(&rule, None, &exchange.request);
        assert!(is_due(&exchange));
        let body = prepare(&mut exchange, |policy| policy.direct_response.as_ref());
        assert_eq!(body, Err(Failure::TrafficPolicyInvalid));
    }
}
