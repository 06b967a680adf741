//! External authorization: asks another server, the authorizer, whether a request may be served.
//!
//! The question is a request of HTTP or a gRPC call, made of the head of the client's request, and of its body if the
//! authorizer gets that; it is balanced over the endpoints of the authorizer's backend as any request is. A positive
//! answer adds fields to the client's request; any other answer goes to the client. Without a usable answer the request
//! is not served. The wait ends when the client leaves.

use std::rc::Rc;

use balance::Time;
use codec::grpc::authorization::{FieldAction, FieldChange};
use codec::head::{BodyFraming, FieldSection, KnownFieldName, ResponseHead};
use gateway::snapshot::{
    AuthorizerProtocol, ClientSettings, CookieScope, ExternalAuthSettings, FieldSelection,
    HttpQuestion, Rule,
};

use crate::accept::client::ClientConnection;
use crate::active_config::{ActiveListener, WorkerConfig};
use crate::backend::BackendRef;
use crate::clock;
use crate::context::RequestContext;
use crate::dial::query::{EndpointQuery, QueryAnswer, QueryFailure, QuerySuccess};
use crate::dial::subrequest::SubrequestTarget;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::filter::authorizer_fields::AuthorizerFields;
use crate::filter::headers;
use crate::grpc::GrpcCall;
use crate::request_body::whole;

/// The question to an authorizer that speaks HTTP.
mod question;
/// The question to an authorizer that speaks gRPC.
mod call;

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

/// The things a question is made of, besides the head of the client's request.
struct QuestionSource<'a> {
    settings: &'a ExternalAuthSettings,
    client: &'a ClientConnection,
    client_settings: &'a ClientSettings,
    body: Option<&'a [u8]>,
}

/// The decision of an authorizer.
enum AuthorizerVerdict {
    /// Its changes have been applied.
    Allowed,
    Denied {
        head: ResponseHead,
        body: Vec<u8>,
    },
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
    let all = of_policy.into_iter().chain(of_filter);
    let body = match all.clone().filter_map(|it| it.max_body_bytes).min() {
        Some(most) => {
            let most = u64::from(most.get());
            whole::receive(context, &listener.client, deadline, most).await?
        }
        None => None,
    };
    for settings in all {
        let index = settings.backend.as_ref().and_then(|key| active_config.backend_index(key));
        // A reference that cannot be resolved: Gateway API requires 500.
        let index = index.ok_or(Failure::AuthorizerUnavailable)?;
        let backend = BackendRef::new(Rc::clone(active_config), index);
        let of_request = body.as_ref().map(|it| &*it.bytes);
        let of_request = of_request.filter(|_| settings.max_body_bytes.is_some());
        let result = ask(context, listener, rule, settings, &backend, deadline, of_request).await;
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
    if let Some(body) = body {
        body.put_back(context);
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
    body: Option<&[u8]>,
) -> Result<Option<DenialBody>, Failure> {
    let RequestContext { worker, client, exchange, .. } = context;
    let source = QuestionSource { settings, client, client_settings: &listener.client, body };
    let request = &mut exchange.request;
    let (question, success) = match &settings.protocol {
        AuthorizerProtocol::Http(http) => {
            let (service, rng) = (&backend.key.service, &mut worker.rng.borrow_mut());
            (question::write(&source, http, service, request, rng), QuerySuccess::ByHttp)
        }
        AuthorizerProtocol::Grpc { authority } => {
            let rng = &mut worker.rng.borrow_mut();
            (call::write(&source, authority, request, rng), QuerySuccess::ByGrpc)
        }
    };
    let question = question.ok_or(Failure::AuthorizerError)?;
    let patience = clock::now() + settings.timeout;
    let until = patience.min(deadline);
    let target = SubrequestTarget::new(backend.clone(), client);
    let route = rule.index;
    let query = EndpointQuery { worker, target, request: &question, route, until, success };
    let answer = query.ask(client).await.map_err(|failure| match failure {
        QueryFailure::ClientGone => Failure::ClientGone,
        QueryFailure::OutOfMemory => Failure::OutOfMemory,
        QueryFailure::TimedOut if deadline < patience => Failure::RequestTimeout,
        QueryFailure::TimedOut => Failure::AuthorizerTimeout,
        QueryFailure::Unavailable => Failure::AuthorizerUnavailable,
        QueryFailure::Unusable => Failure::AuthorizerError,
    })?;
    let verdict = match &settings.protocol {
        AuthorizerProtocol::Http(http) => verdict(settings, http, exchange, answer),
        AuthorizerProtocol::Grpc { .. } => call::verdict(settings, exchange, answer),
    };
    match verdict? {
        AuthorizerVerdict::Allowed => Ok(None),
        AuthorizerVerdict::Denied { head, body } => {
            deny(context, listener, settings, head, body).map(Some)
        }
    }
}

/// Reads the answer of an authorizer that speaks HTTP, and applies it if the request is allowed.
fn verdict(
    settings: &ExternalAuthSettings,
    http: &HttpQuestion,
    exchange: &mut Exchange,
    answer: QueryAnswer,
) -> Result<AuthorizerVerdict, Failure> {
    let QueryAnswer { head, body, .. } = answer;
    if http.positive.contains(&head.status) {
        admit(settings, http.cookies, exchange, &head);
        return Ok(AuthorizerVerdict::Allowed);
    }
    match body.filter(|_| (200..500).contains(&head.status)) {
        Some(body) => Ok(AuthorizerVerdict::Denied { head, body }),
        None => Err(Failure::AuthorizerError),
    }
}

/// Makes an authorizer's denial the response of the request.
fn deny(
    context: &mut RequestContext<'_>,
    listener: &ActiveListener,
    settings: &ExternalAuthSettings,
    head: ResponseHead,
    mut body: Vec<u8>,
) -> Result<DenialBody, Failure> {
    let status = head.status;
    let failure =
        if status == 401 { Failure::AuthenticationRequired } else { Failure::AuthorizationDenied };
    let Exchange { request, response, filters, .. } = &mut *context.exchange;
    if GrpcCall::of(request).is_some() {
        return Err(failure);
    }
    context.record.failure = Some(failure);
    *response = head;
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
    Ok(DenialBody(body))
}

fn cookies(response: &ResponseHead) -> impl Iterator<Item = &[u8]> {
    let fields = response.fields.iter();
    fields.filter(|(_, name, _)| name.eq_ignore_ascii_case(b"set-cookie")).map(|(.., value)| value)
}

/// Removes the fields that the client must not write, in all spellings.
fn remove_client_fields(settings: &ExternalAuthSettings, fields: &mut FieldSection) {
    if let FieldSelection::Only(names) = &settings.response_fields {
        let names = names.iter().filter(|name| headers::may_change(name.as_bytes()));
        names.for_each(|name| fields.remove_spellings(name.as_bytes()));
    }
}

/// Adds the fields of a positive answer to the request, in place of the client's own fields of these names.
fn admit(
    settings: &ExternalAuthSettings,
    scope: CookieScope,
    exchange: &mut Exchange,
    answer: &ResponseHead,
) {
    let fields = &mut exchange.request.fields;
    remove_client_fields(settings, fields);
    let is_all = settings.response_fields == FieldSelection::All;
    let is_selected = |name: &[u8]| {
        settings.response_fields.contains(name)
            && headers::may_change(name)
            && !(is_all && question::describes_answer(name))
    };
    let selected = || answer.fields.iter().filter(|(_, name, _)| is_selected(name));
    if is_all {
        selected().for_each(|(_, name, _)| fields.remove_spellings(name));
    }
    for (_, name, value) in selected() {
        fields.append(name, value);
    }
    if let Some(filters) = exchange.filters.as_mut().filter(|_| scope != CookieScope::Never) {
        let cookie = |value: &[u8]| FieldChange {
            name: "Set-Cookie".to_owned(),
            value: value.to_vec(),
            action: FieldAction::Append,
        };
        let changes: Vec<_> = cookies(answer).map(cookie).collect();
        if !changes.is_empty() {
            filters.authorizer_fields.push(AuthorizerFields { scope, changes });
        }
    }
}
