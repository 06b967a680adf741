//! The test clients and endpoints for TLS, HTTP/2 and gRPC, checked against each other: their
//! records are correct.

use anyhow::{Context, ensure};
use bytes::Bytes;
use h2::Reason;
use http::HeaderMap;
use tests::certificates::CertificateAuthority;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::grpc;
use tests::http2::{Http2EndpointOptions, Http2TestClient, Http2TestEndpoint, ReceivedRequest};
use tests::tls::{TlsClientOptions, TlsFront};
use tests::{EndpointBehaviour, Result, within};

#[tokio::test]
async fn endpoint_records_streams() -> Result {
    let endpoint = Http2TestEndpoint::ok().await?;
    let client = Http2TestClient::connect(endpoint.address).await?;
    ensure!(client.get("/a").await?.text() == "ok");
    ensure!(client.post("/b", "hello").await?.status() == 200);
    let counts = endpoint.counts();
    assert_eq!((counts.requests, counts.in_flight, counts.max_in_flight), (2, 0, 1));
    assert_eq!((counts.accepted, counts.connections, counts.unanswered), (1, 1, 0));
    assert_eq!(counts.heads[1].uri().path(), "/b");
    drop(client);
    endpoint.wait_for_counts("the end of the connection", |counts| counts.connections == 0).await?;
    Ok(())
}

#[tokio::test]
async fn bodies_and_trailers_are_echoed() -> Result {
    let endpoint =
        Http2TestEndpoint::start(|call: ReceivedRequest| async { call.echo().await }).await?;
    let client = Http2TestClient::connect(endpoint.address).await?;
    let large = Bytes::from(vec![b'x'; 1_000_000]);
    ensure!(client.post("/", large.clone()).await?.body == large);

    let (response, mut sending) = client.send_request(tests::http2::post("/"), false).await?;
    sending.send_data(Bytes::from_static(b"hello"), false)?;
    sending.send_trailers(HeaderMap::from_iter([("sum".parse()?, "5".parse()?)]))?;
    let response = within("an answer", Http2TestClient::response(response)).await??;
    ensure!(response.text() == "hello" && response.trailer("sum") == Some("5"), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn resets_are_detected_on_both_sides() -> Result {
    let endpoint = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        if call.number == 1 {
            call.reset(Reason::REFUSED_STREAM);
        } else {
            assert_eq!(call.wait_for_reset().await?, Reason::CANCEL);
        }
        Ok(())
    })
    .await?;
    let client = Http2TestClient::connect(endpoint.address).await?;
    let error =
        client.get("/").await.expect_err("the stream is refused").downcast::<h2::Error>()?;
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));

    let cancelled = client.send_request(tests::http2::get("/"), true).await?;
    endpoint.wait_for_counts("the second request", |counts| counts.requests == 2).await?;
    drop(cancelled);
    let counts = endpoint.wait_for_counts("the reset", |counts| counts.in_flight == 0).await?;
    assert_eq!(counts.unanswered, 2);
    Ok(())
}

#[tokio::test]
async fn endpoint_closes_connections_after_their_requests() -> Result {
    let options = Http2EndpointOptions {
        max_requests_per_connection: Some(2),
        ..Http2EndpointOptions::default()
    };
    let endpoint =
        Http2TestEndpoint::with(options, |call| async { call.answer("ok").await }).await?;
    let client = Http2TestClient::connect(endpoint.address).await?;
    ensure!(client.get("/").await?.status() == 200);
    ensure!(client.get("/").await?.status() == 200);
    client.wait_for_close().await??;
    endpoint.wait_for_counts("the end of the connection", |counts| counts.connections == 0).await?;
    Ok(())
}

#[tokio::test]
async fn raw_frames_are_parsed() -> Result {
    let endpoint = Http2TestEndpoint::ok().await?;
    let mut wire = RawHttp2Connection::connect(endpoint.address, &[]).await?;
    wire.write(&RawHttp2Frame::get(1)).await?;
    let head = wire.reader.next_of_kind(frames::HEADERS).await?.context("an answer")?;
    assert_eq!((head.stream, head.payload.first()), (1, Some(&frames::STATUS_200)));
    assert_eq!(endpoint.only_request().uri(), "http://test/");

    // A client cannot open a stream with an even number.
    wire.write(&RawHttp2Frame::get(2)).await?;
    let goaway = wire.reader.next_of_kind(frames::GOAWAY).await?.context("a GOAWAY")?;
    assert_eq!(goaway.reason(), Some(frames::PROTOCOL_ERROR));
    Ok(())
}

#[tokio::test]
async fn tls_front_decrypts_and_records_handshakes() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = tests::Endpoint::start(EndpointBehaviour::ok()).await?;
    let identity = authority.issue(&["a.test"]);
    let front =
        TlsFront::with_client_authority(endpoint.address, &identity, &["h2"], &authority).await?;
    let options = TlsClientOptions::trusting(&authority).with_alpn(&["h2"]);
    let with_certificate = options.clone().with_client_certificate(&authority.issue(&["client"]));
    let mut client =
        tests::Http1TestClient::connect_tls(front.address, "a.test", &with_certificate).await?;
    ensure!(client.get("/").await?.text() == "ok");
    let seen = front.handshakes().remove(0);
    assert_eq!(seen.server_name.as_deref(), Some("a.test"));
    assert_eq!((seen.protocol.as_deref(), seen.client_certificates), (Some("h2"), 1));

    ensure!(options.connect(front.address, "b.test").await.is_err(), "another name is accepted");
    let stranger = TlsClientOptions::trusting(&CertificateAuthority::new()).with_alpn(&["h2"]);
    ensure!(
        stranger.connect(front.address, "a.test").await.is_err(),
        "another authority is accepted"
    );
    // With TLS 1.3 the client gets the error when it reads.
    let mut client = tests::Http1TestClient::connect_tls(front.address, "a.test", &options).await?;
    ensure!(client.get("/").await.is_err(), "a client without a certificate is accepted");
    assert_eq!(front.handshakes().len(), 1);
    Ok(())
}

#[tokio::test]
async fn grpc_calls_carry_messages_and_a_status() -> Result {
    let endpoint = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        let sent = grpc::messages(call.read().await?.bytes).expect("whole messages");
        if sent[0].is_empty() {
            call.fail(grpc::UNIMPLEMENTED).await
        } else {
            call.reply(&sent[0]).await
        }
    })
    .await?;
    let client = Http2TestClient::connect(endpoint.address).await?;
    let reply = client.call("/a.B/C", b"hello").await?;
    ensure!(reply.code == grpc::OK && !reply.trailers_only, "{reply:?}");
    assert_eq!(reply.messages, ["hello"]);
    let reply = client.call("/a.B/C", b"").await?;
    ensure!(reply.code == grpc::UNIMPLEMENTED && reply.trailers_only, "{reply:?}");
    Ok(())
}
