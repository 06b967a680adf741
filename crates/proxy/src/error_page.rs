//! Error pages of a TrafficPolicy: another body for a response of an endpoint, or for one that reports a failure.
//!
//! A page is given by the policy, or is the answer of a backend to a query. An answer never gets a page itself. Without
//! an answer the client gets the status of the error and a short text.

use std::rc::Rc;
use std::time::Duration;

use balance::AttemptResult;
use codec::head::{BodyFraming, FieldSection, KnownFieldName};
use gateway::snapshot::{BackendKey, ErrorPageSource};

use crate::active_config::WorkerConfig;
use crate::backend::BackendRef;
use crate::clock;
use crate::context::{AttemptContext, RequestContext};
use crate::dial::abandon;
use crate::dial::attempt::AttemptConnection;
use crate::dial::query::{EndpointQuery, QueryAnswer, QueryFailure, QuerySuccess};
use crate::dial::subrequest::SubrequestTarget;
use crate::exchange::{ConnectionOutcome, Exchange};
use crate::failure::Failure;
use crate::filter::error_page::ErrorPage;
use crate::grpc::GrpcCall;
use crate::relay;
use crate::retry;

/// The query for a page.
mod question;

/// Time limit of a query for a page.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The text in place of a page that is missing.
const MISSING: &[u8] = b"the error page is not available\n";

/// Fields that describe a body, so that they would be wrong with another one.
const OF_BODY: [&str; 13] = [
    "accept-ranges",
    "content-digest",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "digest",
    "etag",
    "last-modified",
    "repr-digest",
];

/// The outcome of a query for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorPageOutcome {
    Served,
    /// There was no usable answer.
    Failed,
    TimedOut,
    /// The client left.
    Abandoned,
}

impl ErrorPageOutcome {
    pub(crate) const ALL: [Self; 4] = [Self::Served, Self::Failed, Self::TimedOut, Self::Abandoned];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Abandoned => "abandoned",
        }
    }

    fn of(failure: QueryFailure) -> Self {
        match failure {
            QueryFailure::ClientGone | QueryFailure::OutOfMemory => Self::Abandoned,
            QueryFailure::TimedOut => Self::TimedOut,
            QueryFailure::Unavailable | QueryFailure::Unusable => Self::Failed,
        }
    }
}

/// Sends a page in place of the endpoint's response, whose head `exchange` holds and whose body is discarded. `result` is
/// that of the attempt.
pub(crate) async fn replace(
    context: &mut AttemptContext<'_>,
    mut attempt: AttemptConnection,
    page: ErrorPage,
    result: AttemptResult,
) -> ConnectionOutcome {
    let fields = context.exchange.response.fields.clone();
    let status = context.exchange.response.status;
    retry::conclude_unread(context, &mut attempt, result);
    abandon::discard(context, attempt);
    let AttemptContext { worker, client, exchange, record, .. } = context;
    exchange.response.clear();
    (exchange.response.fields, exchange.response.status) = (fields, status);
    send(&mut RequestContext { worker, client, exchange, record }, &page, MISSING).await
}

/// Sends a page in place of the response whose head `exchange` holds. If there is no answer to the query for the page,
/// the body is `otherwise`.
pub(crate) async fn send(
    context: &mut RequestContext<'_>,
    page: &ErrorPage,
    otherwise: &[u8],
) -> ConnectionOutcome {
    let key = match &page.page().source {
        ErrorPageSource::Content(content) => {
            let response = &mut context.exchange.response;
            response.status = page.page().response_status.unwrap_or(response.status);
            describe(&mut response.fields, &content.content_type);
            return relay::reply_with(context, &content.body).await;
        }
        ErrorPageSource::Backend(key) => key,
    };
    match query(context, page, key).await {
        Ok(QueryAnswer { head, body, .. }) => {
            let Exchange { request, response, filters, .. } = &mut *context.exchange;
            let challenges = challenges(&response.fields, response.status);
            *response = head;
            response.status = page.page().response_status.unwrap_or(response.status);
            response.framing = BodyFraming::None;
            response.fields.remove(KnownFieldName::AltSvc);
            if let Some(filters) = filters {
                filters.change_response(request, response);
            }
            for value in challenges {
                response.fields.append("WWW-Authenticate", value);
            }
            relay::reply_with(context, &body.unwrap_or_default()).await
        }
        Err(gone @ (QueryFailure::ClientGone | QueryFailure::OutOfMemory)) => {
            context.record.failure.get_or_insert(match gone {
                QueryFailure::OutOfMemory => Failure::OutOfMemory,
                _ => Failure::ClientGone,
            });
            ConnectionOutcome::Abort
        }
        Err(QueryFailure::TimedOut | QueryFailure::Unavailable | QueryFailure::Unusable) => {
            describe(&mut context.exchange.response.fields, "text/plain; charset=utf-8");
            relay::reply_with(context, otherwise).await
        }
    }
}

/// Replaces the fields about the body.
fn describe(fields: &mut FieldSection, content_type: &str) {
    OF_BODY.iter().for_each(|name| fields.remove_named(name.as_bytes()));
    fields.append("Content-Type", content_type);
}

/// Returns the challenges of a 401, without which a browser does not ask its user. nginx keeps them too.
fn challenges(fields: &FieldSection, status: u16) -> Vec<Vec<u8>> {
    let is_challenge =
        |name: &[u8]| status == 401 && name.eq_ignore_ascii_case(b"www-authenticate");
    let challenges = fields.iter().filter(|(_, name, _)| is_challenge(name));
    challenges.map(|(.., value)| value.to_vec()).collect()
}

/// Asks the backend of a page.
async fn query(
    context: &mut RequestContext<'_>,
    page: &ErrorPage,
    key: &BackendKey,
) -> Result<QueryAnswer, QueryFailure> {
    let RequestContext { worker, client, exchange, record } = context;
    let active_config: Rc<WorkerConfig> = record.config.clone().unwrap_or_else(|| worker.config());
    let listener = client.listener(&active_config).ok_or(QueryFailure::Unavailable)?;
    let index = active_config.backend_index(key).ok_or(QueryFailure::Unavailable)?;
    let failed = question::FailedRequest {
        status: exchange.response.status,
        rule: exchange.filters.as_ref().map(|it| it.rule_name()),
        backend: record.backend.as_ref().map(|it| &it.key),
        has_forwarding_fields: exchange.filters.as_ref().is_some_and(|it| it.has_changed_request),
        keeps_path: page.page().no_endpoint && record.failure == Some(Failure::NoEndpoint),
    };
    let question = question::write(
        &failed,
        &key.service,
        &exchange.request,
        &client.origin,
        &listener.client,
        &mut worker.rng.borrow_mut(),
    );
    let question = question.ok_or(QueryFailure::Unusable)?;
    let backend = BackendRef::new(Rc::clone(&active_config), index);
    let target = SubrequestTarget::new(backend.clone(), client);
    let until = clock::now() + TIMEOUT;
    let route = record.rule.unwrap_or_default();
    // A page often has the status of the error.
    let success = QuerySuccess::Any;
    let query = EndpointQuery { worker, target, request: &question, route, until, success };
    let answer = match query.ask(client).await {
        Ok(answer) if answer.body.is_some() && (200..600).contains(&answer.head.status) => {
            Ok(answer)
        }
        Ok(_) => Err(QueryFailure::Unusable),
        Err(failure) => Err(failure),
    };
    let outcome = answer
        .as_ref()
        .map_or_else(|failure| ErrorPageOutcome::of(*failure), |_| ErrorPageOutcome::Served);
    backend.counters[worker.index].error_pages[outcome as usize].add(1);
    answer
}

/// True if the response that reports this failure can have a page. If memory or file descriptors are lacking, a query
/// would make it worse.
pub(crate) fn may_follow(failure: Failure, exchange: &Exchange) -> bool {
    !matches!(failure, Failure::OutOfMemory | Failure::OutOfDescriptors) && is_replaceable(exchange)
}

/// True if a response to the request can have a page. A gRPC call has its status in fields of its own.
pub(crate) fn is_replaceable(exchange: &Exchange) -> bool {
    exchange.grpc_call.is_none() && GrpcCall::of(&exchange.request).is_none()
}
