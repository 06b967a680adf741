//! The clients and endpoints of TLS, HTTP/2 and gRPC, against one another: what they say can be believed.

use anyhow::{Context, ensure};
use bytes::Bytes;
use h2::Reason;
use http::HeaderMap;
use tests::certificates::Authority;
use tests::frames::{self, Frame, Wire};
use tests::grpc;
use tests::http2::{Call, Client, Endpoint, Manner};
use tests::tls::{Front, Terms};
use tests::{Behaviour, Result, within};

#[tokio::test]
async fn endpoint_records_streams() -> Result {
    let endpoint = Endpoint::ok().await?;
    let client = Client::connect(endpoint.address).await?;
    ensure!(client.get("/a").await?.text() == "ok");
    ensure!(client.post("/b", "hello").await?.status() == 200);
    let counts = endpoint.counts();
    assert_eq!((counts.requests, counts.in_flight, counts.most_in_flight), (2, 0, 1));
    assert_eq!((counts.accepted, counts.connections, counts.unanswered), (1, 1, 0));
    assert_eq!(counts.heads[1].uri().path(), "/b");
    drop(client);
    endpoint.until("its end", |counts| counts.connections == 0).await?;
    Ok(())
}

#[tokio::test]
async fn bodies_and_trailers_are_echoed() -> Result {
    let endpoint = Endpoint::start(|call: Call| async { call.echo().await }).await?;
    let client = Client::connect(endpoint.address).await?;
    let large = Bytes::from(vec![b'x'; 1_000_000]);
    ensure!(client.post("/", large.clone()).await?.body == large);

    let (response, mut sending) = client.begin(tests::http2::post("/"), false).await?;
    sending.send_data(Bytes::from_static(b"hello"), false)?;
    sending.send_trailers(HeaderMap::from_iter([("sum".parse()?, "5".parse()?)]))?;
    let response = within("an answer", Client::response(response)).await??;
    ensure!(response.text() == "hello" && response.trailer("sum") == Some("5"), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn resets_are_detected_on_both_sides() -> Result {
    let endpoint = Endpoint::start(|mut call: Call| async move {
        if call.number == 1 {
            call.reset(Reason::REFUSED_STREAM);
        } else {
            assert_eq!(call.given_up().await?, Reason::CANCEL);
        }
        Ok(())
    })
    .await?;
    let client = Client::connect(endpoint.address).await?;
    let error = client.get("/").await.expect_err("it is refused").downcast::<h2::Error>()?;
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));

    let given_up = client.begin(tests::http2::get("/"), true).await?;
    endpoint.until("the second", |counts| counts.requests == 2).await?;
    drop(given_up);
    let counts = endpoint.until("its end", |counts| counts.in_flight == 0).await?;
    assert_eq!(counts.unanswered, 2);
    Ok(())
}

#[tokio::test]
async fn endpoint_closes_connections_after_their_requests() -> Result {
    let manner = Manner { requests: Some(2), ..Manner::default() };
    let endpoint = Endpoint::with(manner, |call| async { call.answer("ok").await }).await?;
    let client = Client::connect(endpoint.address).await?;
    ensure!(client.get("/").await?.status() == 200);
    ensure!(client.get("/").await?.status() == 200);
    client.ended().await??;
    endpoint.until("its end", |counts| counts.connections == 0).await?;
    Ok(())
}

#[tokio::test]
async fn handwritten_frames_are_understood() -> Result {
    let endpoint = Endpoint::ok().await?;
    let mut wire = Wire::connect(endpoint.address, &[]).await?;
    wire.write(&Frame::get(1)).await?;
    let head = wire.reader.next(frames::HEADERS).await?.context("an answer")?;
    assert_eq!((head.stream, head.payload.first()), (1, Some(&frames::STATUS_200)));
    assert_eq!(endpoint.only().uri(), "http://test/");

    // A stream of an even number is none that a client may open.
    wire.write(&Frame::get(2)).await?;
    let goaway = wire.reader.next(frames::GOAWAY).await?.context("a verdict")?;
    assert_eq!(goaway.reason(), Some(frames::PROTOCOL_ERROR));
    Ok(())
}

#[tokio::test]
async fn tls_front_decrypts_and_records_handshakes() -> Result {
    let authority = Authority::new();
    let endpoint = tests::Endpoint::start(Behaviour::ok()).await?;
    let identity = authority.vouch(&["a.test"]);
    let front = Front::guarded(endpoint.address, &identity, &["h2"], &authority).await?;
    let terms = Terms::trusting(&authority).offering(&["h2"]);
    let shown = terms.clone().showing(&authority.vouch(&["client"]));
    let mut client = tests::Client::connect_tls(front.address, "a.test", &shown).await?;
    ensure!(client.get("/").await?.text() == "ok");
    let seen = front.seen().remove(0);
    assert_eq!(seen.server_name.as_deref(), Some("a.test"));
    assert_eq!((seen.protocol.as_deref(), seen.client_certificates), (Some("h2"), 1));

    ensure!(terms.connect(front.address, "b.test").await.is_err(), "another name");
    let stranger = Terms::trusting(&Authority::new()).offering(&["h2"]);
    ensure!(stranger.connect(front.address, "a.test").await.is_err(), "another authority");
    // With TLS 1.3 the client hears of it when it reads.
    let mut client = tests::Client::connect_tls(front.address, "a.test", &terms).await?;
    ensure!(client.get("/").await.is_err(), "no certificate");
    assert_eq!(front.seen().len(), 1);
    Ok(())
}

#[tokio::test]
async fn grpc_calls_carry_messages_and_a_status() -> Result {
    let endpoint = Endpoint::start(|mut call: Call| async move {
        let sent = grpc::messages(call.read().await?.bytes).expect("whole messages");
        if sent[0].is_empty() {
            call.fail(grpc::UNIMPLEMENTED).await
        } else {
            call.reply(&sent[0]).await
        }
    })
    .await?;
    let client = Client::connect(endpoint.address).await?;
    let reply = client.call("/a.B/C", b"hello").await?;
    ensure!(reply.code == grpc::OK && !reply.trailers_only, "{reply:?}");
    assert_eq!(reply.messages, ["hello"]);
    let reply = client.call("/a.B/C", b"").await?;
    ensure!(reply.code == grpc::UNIMPLEMENTED && reply.trailers_only, "{reply:?}");
    Ok(())
}
