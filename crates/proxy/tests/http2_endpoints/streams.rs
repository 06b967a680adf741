//! HTTP/2 clients with HTTP/2 endpoints: each client stream maps to an endpoint stream.

use std::future::Future;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::net::TcpStream;

use crate::endpoint::start_fixture;
use crate::fixture::PATIENCE;

/// Runs a client over one connection.
fn run<F: Future<Output = ()>>(client_task: impl FnOnce(SendRequest<Bytes>) -> F) {
    let fixture = start_fixture();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = TcpStream::connect(fixture.address).await.unwrap();
        let (requests, connection) = client::handshake(socket).await.unwrap();
        tokio::spawn(connection);
        tokio::time::timeout(PATIENCE, client_task(requests.ready().await.unwrap())).await.unwrap();
    });
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://a.example{path}")).header("te", "trailers").body(()).unwrap()
}

async fn next(body: &mut RecvStream) -> Bytes {
    let data = body.data().await.unwrap().unwrap();
    body.flow_control().release_capacity(data.len()).unwrap();
    data
}

#[test]
fn messages_stream_in_both_directions() {
    run(|mut requests| async move {
        let (response, mut sending) = requests.send_request(post("/"), false).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        assert_eq!(head.headers["x-asked"], "POST http://a.example/");
        assert_eq!(head.headers["x-got-te"], "trailers");
        for message in ["one", "two", "three"] {
            sending.send_data(message.into(), false).unwrap();
            assert_eq!(next(&mut body).await, message);
        }
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "3".parse().unwrap());
        sending.send_trailers(trailers).unwrap();
        assert!(body.data().await.is_none());
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-sum"], "3");
        assert_eq!(trailers["x-after"], "all");
    });
}

#[test]
fn client_reset_cancels_the_endpoint_stream() {
    run(|mut requests| async move {
        let (response, mut sending) = requests.send_request(post("/"), false).unwrap();
        let body = response.await.unwrap().into_body();
        sending.send_reset(Reason::CANCEL);
        drop(body);
        // The endpoint reports how many requests were reset.
        loop {
            let (response, _) = requests.send_request(post("/resets"), true).unwrap();
            if response.await.unwrap().headers()["x-resets"] != "0" {
                return;
            }
        }
    });
}

#[test]
fn truncated_response_is_reset() {
    run(|mut requests| async move {
        let (response, mut sending) = requests.send_request(post("/break"), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(next(&mut body).await, "half");
        sending.send_data("go on".into(), false).unwrap();
        assert!(body.data().await.unwrap().unwrap_err().is_reset());
    });
}

#[test]
fn many_streams_are_open_at_a_time() {
    run(|requests| async move {
        let tasks: Vec<_> = (0..100)
            .map(|number| {
                let mut requests = requests.clone();
                tokio::spawn(async move {
                    let message = format!("{number}").repeat(10_000);
                    let (response, mut sending) = requests.send_request(post("/"), false).unwrap();
                    sending.send_data(message.clone().into(), true).unwrap();
                    let mut body = response.await.unwrap().into_body();
                    let mut back = Vec::new();
                    while back.len() < message.len() {
                        back.extend_from_slice(&next(&mut body).await);
                    }
                    assert!(back == message.as_bytes());
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}
