//! External authorization: asks another server, the authorizer, whether a request may be served.
//!
//! The question is a request without a body, made of the head of the client's request; it is balanced over the
//! endpoints of the authorizer's backend as any request is. A positive answer adds fields to the client's request; any
//! other answer goes to the client. Without a usable answer the request is not served. The wait ends when the client
//! leaves.

use std::rc::Rc;

use balance::Time;
use codec::head::{BodyFraming, KnownFieldName, ResponseHead};
use gateway::snapshot::{CookieScope, ExternalAuthSettings, FieldSelection, Rule};

use crate::active_config::{ActiveListener, WorkerConfig};
use crate::backend::BackendRef;
use crate::clock;
use crate::context::RequestContext;
use crate::dial::query::{EndpointQuery, QueryFailure};
use crate::dial::subrequest::SubrequestTarget;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::filter::authorizer_cookies::AuthorizerCookies;
use crate::filter::headers;
use crate::grpc::GrpcCall;

/// The question to the authorizer.
mod question;

/// The outcome of a question to an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthorizationOutcome {
    Allowed,
    Denied,
    /// There was no usable answer.
    Failed,
    TimedOut,
    /// The client left.
    Abandoned,
}

impl AuthorizationOutcome {
    pub(crate) const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::Failed, Self::TimedOut, Self::Abandoned];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Abandoned => "abandoned",
        }
    }

    fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::ClientGone | Failure::OutOfMemory => Self::Abandoned,
            Failure::AuthorizerTimeout | Failure::RequestTimeout => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// An answer that goes to the client in place of the endpoint's; its head is in the exchange.
pub(crate) struct DenialBody(pub(crate) Vec<u8>);

/// Asks the authorizers of a rule. Returns `None` if the request may be served.
///
/// # Errors
/// If an authorizer gives no usable answer, or denies a gRPC call, which is answered as gRPC requires.
pub(crate) async fn authorize(
    context: &mut RequestContext<'_>,
    active_config: &Rc<WorkerConfig>,
    listener: &ActiveListener,
    rule: &Rule,
    deadline: Time,
) -> Result<Option<DenialBody>, Failure> {
    let filters = rule.filters.as_deref();
    let of_policy = filters.and_then(|it| it.security.as_ref()?.external_auth.as_ref());
    let of_filter = filters.and_then(|it| it.external_auth.as_deref());
    for settings in of_policy.into_iter().chain(of_filter) {
        let index = settings.backend.as_ref().and_then(|key| active_config.backend_index(key));
        // A reference that cannot be resolved: Gateway API requires 500.
        let index = index.ok_or(Failure::AuthorizerUnavailable)?;
        let backend = BackendRef::new(Rc::clone(active_config), index);
        let result = ask(context, listener, rule, settings, &backend, deadline).await;
        let outcome = match &result {
            Ok(None) => AuthorizationOutcome::Allowed,
            Ok(Some(_)) | Err(Failure::AuthorizationDenied | Failure::AuthenticationRequired) => {
                AuthorizationOutcome::Denied
            }
            Err(failure) => AuthorizationOutcome::of_failure(*failure),
        };
        backend.counters[context.worker.index].authorizations[outcome as usize].add(1);
        if let Some(denial) = result? {
            return Ok(Some(denial));
        }
    }
    Ok(None)
}

/// Asks one authorizer, and applies its answer.
async fn ask(
    context: &mut RequestContext<'_>,
    listener: &ActiveListener,
    rule: &Rule,
    settings: &ExternalAuthSettings,
    backend: &BackendRef,
    deadline: Time,
) -> Result<Option<DenialBody>, Failure> {
    let RequestContext { worker, client, exchange, .. } = context;
    let question = question::write(
        settings,
        backend,
        &mut exchange.request,
        &client.origin,
        &listener.client,
        &mut worker.rng.borrow_mut(),
    )?;
    let patience = clock::now() + settings.timeout;
    let until = patience.min(deadline);
    let target = SubrequestTarget::new(backend.clone(), client);
    let (route, any_status_succeeds) = (rule.index, false);
    let query =
        EndpointQuery { worker, target, request: &question, route, until, any_status_succeeds };
    let answer = query.ask(client).await.map_err(|failure| match failure {
        QueryFailure::ClientGone => Failure::ClientGone,
        QueryFailure::OutOfMemory => Failure::OutOfMemory,
        QueryFailure::TimedOut if deadline < patience => Failure::RequestTimeout,
        QueryFailure::TimedOut => Failure::AuthorizerTimeout,
        QueryFailure::Unavailable => Failure::AuthorizerUnavailable,
        QueryFailure::Unusable => Failure::AuthorizerError,
    })?;
    let status = answer.head.status;
    if settings.positive.contains(&status) {
        admit(settings, exchange, &answer.head);
        return Ok(None);
    }
    let Some(body) = answer.body.filter(|_| (200..500).contains(&status)) else {
        return Err(Failure::AuthorizerError);
    };
    let failure =
        if status == 401 { Failure::AuthenticationRequired } else { Failure::AuthorizationDenied };
    if GrpcCall::of(&exchange.request).is_some() {
        return Err(failure);
    }
    context.record.failure = Some(failure);
    let Exchange { request, response, filters, .. } = &mut *context.exchange;
    *response = answer.head;
    let mut body = body;
    if let Some(page) = settings.sign_in.as_ref().filter(|_| status == 401) {
        let original = question::original(request, &context.client.origin, &listener.client);
        let mut location = Vec::new();
        page.location(&original, &mut location);
        let cookies: Vec<_> = cookies(response).map(<[u8]>::to_vec).collect();
        response.clear();
        response.status = 302;
        response.fields.append("Location", location);
        cookies.iter().for_each(|value| response.fields.append("Set-Cookie", value));
        body.clear();
    }
    response.framing = BodyFraming::None;
    response.fields.remove(KnownFieldName::AltSvc);
    if let Some(filters) = filters {
        filters.allow_origin(request, response);
    }
    Ok(Some(DenialBody(body)))
}

fn cookies(response: &ResponseHead) -> impl Iterator<Item = &[u8]> {
    let fields = response.fields.iter();
    fields.filter(|(_, name, _)| name.eq_ignore_ascii_case(b"set-cookie")).map(|(.., value)| value)
}

/// Adds the fields of a positive answer to the request, in place of the client's own fields of these names.
fn admit(settings: &ExternalAuthSettings, exchange: &mut Exchange, answer: &ResponseHead) {
    let fields = &mut exchange.request.fields;
    if let FieldSelection::Only(names) = &settings.response_fields {
        let names = names.iter().filter(|name| headers::may_change(name.as_bytes()));
        names.for_each(|name| fields.remove_named(name.as_bytes()));
    }
    let is_all = settings.response_fields == FieldSelection::All;
    let is_selected = |name: &[u8]| {
        settings.response_fields.contains(name)
            && headers::may_change(name)
            && !(is_all && question::describes_answer(name))
    };
    let selected = || answer.fields.iter().filter(|(_, name, _)| is_selected(name));
    if is_all {
        selected().for_each(|(_, name, _)| fields.remove_named(name));
    }
    for (_, name, value) in selected() {
        fields.append(name, value);
    }
    let scope = settings.cookies;
    if let Some(filters) = exchange.filters.as_mut().filter(|_| scope != CookieScope::Never) {
        let values: Vec<_> = cookies(answer).map(<[u8]>::to_vec).collect();
        if !values.is_empty() {
            filters.cookies = Some(Box::new(AuthorizerCookies { scope, values }));
        }
    }
}
