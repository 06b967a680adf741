//! Calls pass unchanged, and go to the right server.

use anyhow::ensure;
use bytes::Bytes;
use http::HeaderValue;
use serde_json::json;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{Result, grpc, within};

use crate::fixture::{GrpcFixture, METHOD};

async fn echo() -> Result<Http2TestEndpoint> {
    Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        let sent = grpc::messages(call.read().await?.bytes).expect("whole messages");
        call.reply(&sent.concat()).await
    })
    .await
}

/// Article 002: calls of one connection are balanced over all servers.
#[tokio::test]
async fn grpc_calls_of_one_connection_are_balanced() -> Result {
    let servers = [echo().await?, echo().await?, echo().await?];
    let site = GrpcFixture::of(&servers.each_ref(), &[]).await?;
    let client = site.client().await?;
    for number in 0..300 {
        let reply = client.call(METHOD, b"hello").await?;
        ensure!(reply.code == grpc::OK && reply.messages == ["hello"], "{number}: {reply:?}");
    }
    for server in &servers {
        let calls = server.counts().requests;
        ensure!((90..=110).contains(&calls), "{calls} of 300 calls");
    }
    Ok(())
}

#[tokio::test]
async fn grpc_metadata_messages_and_status_pass_unchanged() -> Result {
    let server = Http2TestEndpoint::start(|call: ReceivedRequest| async move {
        let mut head = tests::http2::status(200);
        head.headers_mut()
            .insert("content-type", HeaderValue::from_static("application/grpc+json"));
        head.headers_mut().insert("x-first", HeaderValue::from_static("1"));
        let mut last = grpc::trailers(5);
        last.insert("grpc-message", HeaderValue::from_static("not%20found"));
        last.insert("x-last-bin", HeaderValue::from_static("AAEC"));
        call.answer_with(head, grpc::message(b"half an answer"), last).await
    })
    .await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let mut head = grpc::head(METHOD);
    head.headers_mut().insert("x-meta-bin", HeaderValue::from_static("AAEC"));
    head.headers_mut().insert("grpc-timeout", HeaderValue::from_static("10S"));
    let reply = site.client().await?.call_with(head, b"").await?;
    ensure!(reply.code == 5 && !reply.trailers_only, "{reply:?}");
    assert_eq!(reply.messages, ["half an answer"]);
    for (name, value) in [("grpc-message", "not%20found"), ("x-last-bin", "AAEC"), ("x-first", "1")]
    {
        assert_eq!(reply.metadata_value(name), Some(value));
    }
    let seen = server.only_request();
    assert_eq!(seen.uri().path(), METHOD);
    for (name, value) in
        [("content-type", "application/grpc"), ("te", "trailers"), ("x-meta-bin", "AAEC")]
    {
        assert_eq!(seen.headers()[name], value);
    }
    ensure!(seen.headers().contains_key("grpc-timeout"), "{seen:?}");
    Ok(())
}

/// A status in the only header block: no body and no trailers.
#[tokio::test]
async fn trailers_only_response_stays_trailers_only() -> Result {
    let server = Http2TestEndpoint::start(|call: ReceivedRequest| async {
        call.fail(grpc::UNIMPLEMENTED).await
    })
    .await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let reply = site.client().await?.call(METHOD, b"").await?;
    ensure!(reply.code == grpc::UNIMPLEMENTED && reply.trailers_only, "{reply:?}");
    Ok(())
}

/// Client and server alternate, message by message, on a stream that stays open.
#[tokio::test]
async fn streamed_messages_pass_immediately() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async { call.echo().await }).await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let client = site.client().await?;
    let (response, mut sending) = client.send_request(grpc::head(METHOD), false).await?;
    let mut receiving = within("a head", response).await??.into_body();
    for text in ["one", "two", "three"] {
        let message = grpc::message(text.as_bytes());
        sending.send_data(message.clone(), false)?;
        let echoed = within("an echo", receiving.data()).await?;
        ensure!(echoed.is_some_and(|echoed| echoed.is_ok_and(|echoed| echoed == message)));
    }
    sending.send_trailers(grpc::trailers(grpc::OK))?;
    ensure!(within("the end", receiving.data()).await?.is_none());
    let trailers = within("trailers", receiving.trailers()).await??;
    ensure!(trailers.is_some_and(|trailers| trailers["grpc-status"] == "0"));
    Ok(())
}

#[tokio::test]
async fn grpc_route_matches_service_and_method() -> Result {
    let (app, other) = (echo().await?, echo().await?);
    let rules = json!([
        {
            "matches": [{ "method": { "service": "test.Echo", "method": "Say" } }],
            "backendRefs": [{ "name": "app", "port": 80 }],
        },
        {
            "matches": [{ "method": { "service": "test.Other" } }],
            "backendRefs": [{ "name": "other", "port": 80 }],
        },
    ]);
    let site = GrpcFixture::with(rules, &[("app", &[&app]), ("other", &[&other])], &[]).await?;
    let client = site.client().await?;
    for path in [METHOD, "/test.Other/Say", "/test.Other/Listen"] {
        ensure!(client.call(path, b"").await?.code == grpc::OK, "{path}");
    }
    assert_eq!((app.counts().requests, other.counts().requests), (1, 2));
    // No matching route gives the status of an unknown method: a gRPC client does not understand
    // 404.
    let reply = client.call("/test.Echo/Shout", b"").await?;
    ensure!(reply.code == grpc::UNIMPLEMENTED, "{reply:?}");
    Ok(())
}

/// If a client cancels its call, the server sees the reset, and the slot is free.
#[tokio::test]
async fn client_cancellation_reaches_the_server() -> Result {
    let server = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        call.wait_for_reset().await?;
        Ok(())
    })
    .await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let client = site.client().await?;
    let (response, mut sending) = client.send_request(grpc::head(METHOD), false).await?;
    sending.send_data(Bytes::from_static(b"\0\0\0\0\0"), false)?;
    server.wait_for_counts("the call", |counts| counts.in_flight == 1).await?;
    sending.send_reset(h2::Reason::CANCEL);
    drop(response);
    server.wait_for_counts("the reset", |counts| counts.in_flight == 0).await?;
    site.sheave.wait_until_idle().await
}
