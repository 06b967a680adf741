//! gRPC-Web for browsers, which cannot use gRPC: translated to gRPC.

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::HeaderValue;
use tests::grpc;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{Http1TestClient, Result, http2};

use crate::fixture::{GrpcFixture, METHOD};

async fn echo() -> Result<Http2TestEndpoint> {
    Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        let sent = grpc::messages(call.read().await?.bytes).expect("whole messages");
        call.reply(&sent.concat()).await
    })
    .await
}

/// Splits a gRPC-Web body into its messages and its trailers, which are in a frame of their own at
/// the end.
fn split_messages_and_trailers(mut body: Bytes) -> Result<(Vec<Bytes>, String)> {
    let position = body.windows(2).rposition(|pair| pair == [0x80, 0]).context("trailers")?;
    let trailers = body.split_off(position);
    let length = u32::from_be_bytes(trailers[1..5].try_into()?) as usize;
    ensure!(trailers.len() == 5 + length, "the trailers are not last: {trailers:?}");
    Ok((grpc::messages(body)?, String::from_utf8(trailers[5..].to_vec())?))
}

fn fields(kind: &'static str) -> [(&'static str, &'static str); 2] {
    [("Content-Type", kind), ("X-Grpc-Web", "1")]
}

#[tokio::test]
async fn grpc_web_call_is_translated_to_grpc() -> Result {
    let server = echo().await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let mut client = Http1TestClient::connect(site.sheave.address()).await?;
    let kind = "application/grpc-web";
    let message = grpc::message(b"hello");
    let response = client.exchange("POST", METHOD, &fields(kind), &message).await?;
    ensure!(response.status() == 200, "{response:?}");
    assert_eq!(response.field("content-type").as_deref(), Some(kind));
    let (messages, trailers) = split_messages_and_trailers(response.body.into())?;
    assert_eq!(messages, ["hello"]);
    ensure!(trailers.to_lowercase().contains("grpc-status:"), "{trailers:?}");
    let seen = server.only_request();
    assert_eq!(seen.headers()["content-type"], "application/grpc");
    assert_eq!(seen.headers()["te"], "trailers");
    Ok(())
}

/// Encoded in base64, for clients that cannot read binary data; here over HTTP/2.
#[tokio::test]
async fn grpc_web_text_is_supported() -> Result {
    let server = echo().await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let client = http2::Http2TestClient::connect(site.sheave.address()).await?;
    let mut head = http2::post(METHOD);
    let kind = HeaderValue::from_static("application/grpc-web-text");
    head.headers_mut().insert("content-type", kind);
    // The message `hello` with its five-byte prefix.
    let response = client.exchange(head, Bytes::from_static(b"AAAAAAVoZWxsbw==")).await?;
    ensure!(response.status() == 200, "{response:?}");
    let (messages, trailers) = split_messages_and_trailers(from_base64(&response.text())?.into())?;
    assert_eq!(messages, ["hello"]);
    ensure!(trailers.contains("grpc-status"), "{trailers:?}");
    Ok(())
}

#[tokio::test]
async fn refused_grpc_web_call_gets_a_grpc_web_status() -> Result {
    let site = GrpcFixture::of(&[], &[]).await?;
    let mut client = Http1TestClient::connect(site.sheave.address()).await?;
    let fields = fields("application/grpc-web+proto");
    let response = client.exchange("POST", METHOD, &fields, &grpc::message(b"")).await?;
    ensure!(response.status() == 200, "{response:?}");
    let status = match response.field("grpc-status") {
        Some(status) => status,
        None => split_messages_and_trailers(response.body.clone().into())?.1,
    };
    ensure!(status.contains("14"), "UNAVAILABLE: {response:?}");
    Ok(())
}

/// Decodes one or more concatenated base64 texts, each of which may be padded.
fn from_base64(text: &str) -> Result<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for four in text.trim().as_bytes().chunks(4) {
        let digits: Vec<u8> = four.iter().copied().take_while(|digit| *digit != b'=').collect();
        let mut value = 0_u32;
        for digit in &digits {
            let position = DIGITS.iter().position(|known| known == digit).context("base64")?;
            value = value << 6 | position as u32;
        }
        value <<= 6 * (4 - digits.len());
        bytes.extend(&value.to_be_bytes()[1..digits.len()]);
    }
    Ok(bytes)
}
