//! Interim (1xx) responses.

use anyhow::{Context, ensure};
use http::HeaderValue;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, within};

use super::fixture::{MultiplexedClient, MultiplexedFixture};

test_each_version! {
    early_hints_pass_before_the_response,
    expect_continue_is_answered_100,
}

async fn early_hints_pass_before_the_response<F: MultiplexedFixture>() -> Result {
    let steps = vec![
        ServeStep::send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        ServeStep::ReadBody,
        ServeStep::Answer,
    ];
    let endpoint = Endpoint::start(steps).await?;
    let fixture = F::start(&[endpoint.address]).await?;
    let response = fixture.connect().await?.get("/").await?;
    ensure!(response.status() == 200, "{response:?}");
    let hints = response.informational.first().context("hints")?;
    ensure!(hints.status() == 103 && hints.headers()["link"] == "</a>", "{response:?}");
    Ok(())
}

/// If a client sends `Expect: 100-continue`, the endpoint sends 100, and then the client sends the
/// body.
async fn expect_continue_is_answered_100<F: MultiplexedFixture>() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let fixture = F::start(&[endpoint.address]).await?;
    let client = fixture.connect().await?;
    let mut request = F::Client::request("POST", "/");
    request.headers_mut().insert("expect", HeaderValue::from_static("100-continue"));
    let (mut sending, mut response) = client.begin(request).await?;
    ensure!(within("100", F::Client::interim(&mut response)).await??.status() == 100);
    F::Client::send(&mut sending, b"hello").await?;
    F::Client::end(sending, None).await?;
    let response = within("an answer", F::Client::response(response)).await??;
    ensure!(response.status() == 200, "{response:?}");
    Ok(())
}
