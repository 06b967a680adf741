//! Tests of gRPC calls: detection, translation of heads, and status.

use std::time::Duration;

use balance::{AttemptResult, Time};

use super::*;

fn call(content_type: &str) -> Option<GrpcCall> {
    let mut request = RequestHead::new();
    request.fields.append("Content-Type", content_type);
    GrpcCall::of(&request)
}

fn exchange(content_type: &str) -> Exchange {
    let mut exchange = Exchange::default();
    exchange.request.fields.append("content-type", content_type);
    exchange.grpc_call = GrpcCall::of(&exchange.request);
    exchange
}

fn text<'f>(fields: &'f FieldSection, name: &str) -> Option<&'f str> {
    fields.get(name).map(|value| str::from_utf8(value).unwrap())
}

#[test]
fn grpc_call_is_detected_by_its_content_type() {
    for (content_type, dialect) in [
        ("application/grpc", GrpcDialect::Grpc),
        ("Application/GRPC+proto", GrpcDialect::Grpc),
        ("application/grpc; charset=utf-8", GrpcDialect::Grpc),
        ("application/grpc-web", GrpcDialect::Web),
        ("application/grpc-Web+proto", GrpcDialect::Web),
        ("application/grpc-web-text", GrpcDialect::WebText),
        ("application/grpc-web-text+json", GrpcDialect::WebText),
    ] {
        assert_eq!(call(content_type).map(|call| call.dialect), Some(dialect), "{content_type}");
    }
    for other in ["", "application/json", "application/grp", "application/grpcs", "grpc"] {
        assert!(call(other).is_none(), "{other}");
    }
    assert!(call("application/grpc-web-textual").is_none());
    assert!(GrpcCall::of(&RequestHead::new()).is_none());
}

#[test]
fn grpc_timeout_is_reduced_by_the_elapsed_time() {
    let left = |timeout: &str, waited: Duration| {
        let mut exchange = exchange("application/grpc");
        exchange.request.fields.append("grpc-timeout", timeout);
        exchange.grpc_call = GrpcCall::of(&exchange.request);
        let started = Time::ZERO + Duration::from_secs(5);
        update_timeout(&mut exchange, started, started + waited);
        assert_eq!(
            exchange.request.fields.iter().filter(|field| field.1 == b"grpc-timeout").count(),
            1
        );
        text(&exchange.request.fields, "grpc-timeout").unwrap().to_owned()
    };
    assert_eq!(left("300m", Duration::ZERO), "300m");
    assert_eq!(left("300m", Duration::from_millis(100)), "200000u");
    assert_eq!(left("300m", Duration::from_secs(1)), "1n");
    assert_eq!(left("soon", Duration::from_secs(1)), "soon");
}

#[test]
fn refused_call_gets_a_trailers_only_response() {
    let refusal = |content_type: &str, failure: Failure, pushback: Option<Duration>| {
        let mut response = ResponseHead::new();
        call(content_type).unwrap().refuse(failure, pushback, &mut response);
        assert_eq!(response.status, 200);
        response.fields
    };
    let refused = refusal("application/grpc", Failure::QueueFull, Some(Duration::from_secs(2)));
    assert_eq!(text(&refused, "content-type"), Some("application/grpc"));
    assert_eq!(text(&refused, "grpc-status"), Some("8"));
    assert_eq!(text(&refused, "grpc-retry-pushback-ms"), Some("2000"));
    assert_eq!(text(&refused, "grpc-message"), Some(Failure::QueueFull.details()));
    let web = refusal("application/grpc-web-text", Failure::RequestTimeout, None);
    assert_eq!(text(&web, "content-type"), Some("application/grpc-web-text+proto"));
    assert_eq!(text(&web, "grpc-status"), Some("4"));
    assert_eq!(text(&web, "grpc-retry-pushback-ms"), None);
}

#[test]
fn every_failure_maps_to_a_grpc_status_code() {
    for (failure, code) in [
        (Failure::NoRoute, GrpcCode::Unimplemented),
        (Failure::Unresolved, GrpcCode::Unavailable),
        (Failure::NoEndpoint, GrpcCode::Unavailable),
        (Failure::ConnectFailed, GrpcCode::Unavailable),
        (Failure::ConnectTimeout, GrpcCode::Unavailable),
        (Failure::EndpointClosed, GrpcCode::Unavailable),
        (Failure::EndpointIdle, GrpcCode::Unavailable),
        (Failure::OutOfDescriptors, GrpcCode::Unavailable),
        (Failure::QueueFull, GrpcCode::ResourceExhausted),
        (Failure::QueueTimeout, GrpcCode::ResourceExhausted),
        (Failure::QueueDeadline, GrpcCode::ResourceExhausted),
        (Failure::BodyTooLarge, GrpcCode::ResourceExhausted),
        (Failure::AttemptTimeout, GrpcCode::DeadlineExceeded),
        (Failure::RequestTimeout, GrpcCode::DeadlineExceeded),
        (Failure::BadWebText, GrpcCode::Internal),
        (Failure::ClientGone, GrpcCode::Cancelled),
    ] {
        assert_eq!(failure.grpc_code(), code, "{failure:?}");
    }
}

#[test]
fn grpc_status_maps_to_a_health_signal() {
    let status = |code: &str, pushback: Option<&str>| {
        let mut fields = FieldSection::new();
        fields.append("grpc-status", code);
        if let Some(pushback) = pushback {
            fields.append("grpc-retry-pushback-ms", pushback);
        }
        GrpcCallStatus::of(&fields).unwrap()
    };
    assert_eq!(GrpcCallStatus::of(&FieldSection::new()), None);
    assert_eq!(attempt_result(status("0", None)), AttemptResult::Success);
    assert_eq!(attempt_result(status("12", None)), AttemptResult::Success);
    assert_eq!(attempt_result(status("14", None)), AttemptResult::ServerError);
    assert_eq!(attempt_result(status("99", None)), AttemptResult::ServerError);
    assert_eq!(attempt_result(status("4", None)), AttemptResult::TimedOut);
    let quota = AttemptResult::RateLimited { retry_after: None };
    assert_eq!(attempt_result(status("8", None)), quota);
    assert_eq!(attempt_result(status("8", Some("-1"))), quota);
    let second = Some(Duration::from_secs(1));
    assert_eq!(
        attempt_result(status("8", Some("1000"))),
        AttemptResult::Refused { retry_after: second }
    );
    assert_eq!(status("8", Some("-1")).pushback, RetryPushback::Never);
    assert_eq!(status("8", Some("soon")).pushback, RetryPushback::Never);
}

#[test]
fn call_outcome_follows_its_grpc_status() {
    let concluded = |status: u16, head: Option<&str>| {
        let mut exchange = exchange("application/grpc");
        exchange.response.status = status;
        if let Some(code) = head {
            exchange.response.fields.append("grpc-status", code);
        }
        let end = conclude(&mut exchange, AttemptResult::Success);
        (end, exchange.grpc_call.unwrap().code(None))
    };
    assert_eq!(concluded(200, Some("0")), (AttemptResult::Success, GrpcCode::Ok));
    assert_eq!(concluded(200, Some("14")), (AttemptResult::ServerError, GrpcCode::Unavailable));
    assert_eq!(concluded(200, None), (AttemptResult::ServerError, GrpcCode::Unknown));
    assert_eq!(concluded(404, None), (AttemptResult::Success, GrpcCode::Unimplemented));
    let mut other = Exchange::default();
    assert_eq!(conclude(&mut other, AttemptResult::Success), AttemptResult::Success);
}

#[test]
fn trailers_only_response_ends_the_call() {
    let mut exchange = exchange("application/grpc");
    exchange.response.fields.append("grpc-status", "14");
    exchange.response.framing = BodyFraming::None;
    assert_eq!(
        trailers_only_status(&exchange).map(|status| status.code),
        Some(GrpcCode::Unavailable)
    );
    exchange.response.framing = BodyFraming::Length(0);
    assert!(trailers_only_status(&exchange).is_some());
    exchange.response.framing = BodyFraming::Stream;
    assert_eq!(trailers_only_status(&exchange), None);
}

#[test]
fn grpc_web_heads_translate_to_grpc_and_back() {
    let mut exchange = exchange("application/grpc-web-text+proto");
    let call = exchange.grpc_call.unwrap();
    exchange.request.framing = BodyFraming::Length(8);
    call.change_request(&mut exchange.request);
    assert_eq!(text(&exchange.request.fields, "content-type"), Some("application/grpc+proto"));
    assert!(exchange.request.te_trailers);
    assert_eq!(exchange.request.framing, BodyFraming::Stream);

    let mut response = ResponseHead::new();
    response.fields.append("Content-Type", "application/grpc+proto");
    response.framing = BodyFraming::Stream;
    assert!(call.change_response(HttpVersion::Http11, &mut response).is_some());
    assert_eq!(text(&response.fields, "content-type"), Some("application/grpc-web-text+proto"));

    let mut only_head = ResponseHead::new();
    only_head.fields.append("content-type", "application/grpc");
    assert!(call.change_response(HttpVersion::Http11, &mut only_head).is_none());
    assert_eq!(text(&only_head.fields, "content-type"), Some("application/grpc-web-text"));

    let mut page = ResponseHead::new();
    page.fields.append("content-type", "text/html");
    page.framing = BodyFraming::Stream;
    assert!(call.change_response(HttpVersion::Http11, &mut page).is_none());
    assert_eq!(text(&page.fields, "content-type"), Some("text/html"));
}

#[test]
fn trailers_only_response_gets_no_content_length() {
    let call = call("application/grpc").unwrap();
    for (client, framing) in
        [(HttpVersion::Http2, BodyFraming::None), (HttpVersion::Http11, BodyFraming::Length(0))]
    {
        let mut response = ResponseHead::new();
        response.framing = BodyFraming::Length(0);
        assert!(call.change_response(client, &mut response).is_none());
        assert_eq!(response.framing, framing);
    }
}

#[test]
fn grpc_heads_are_unchanged() {
    let mut exchange = exchange("application/grpc+proto");
    let call = exchange.grpc_call.unwrap();
    exchange.request.framing = BodyFraming::Length(8);
    call.change_request(&mut exchange.request);
    assert_eq!(exchange.request.framing, BodyFraming::Length(8));
    let mut response = ResponseHead::new();
    response.fields.append("content-type", "application/grpc+proto");
    response.framing = BodyFraming::Stream;
    assert!(call.change_response(HttpVersion::Http11, &mut response).is_none());
    assert_eq!(text(&response.fields, "content-type"), Some("application/grpc+proto"));
}
