//! Endpoints that speak HTTP/2.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use bytes::Bytes;
use gateway::snapshot::{BackendSettings, EndpointProtocol};
use h2::ext::Protocol as Extended;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use crate::fixture::{ProxyFixture, backend};

/// A proxy in front of an HTTP/2 endpoint.
pub(crate) fn start_fixture() -> ProxyFixture {
    ProxyFixture::with(vec![backend("backend", serve(), in_http2())], None)
}

pub(crate) fn in_http2() -> BackendSettings {
    BackendSettings { protocol: EndpointProtocol::Http2, ..BackendSettings::default() }
}

/// Starts an endpoint that acts as the request path says.
pub(crate) fn serve() -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve_connection(socket));
            }
        });
    });
    address
}

/// Number of requests whose bodies were reset, for all endpoints together.
static RESETS: AtomicU32 = AtomicU32::new(0);

async fn serve_connection(socket: tokio::net::TcpStream) {
    let handshake = server::Builder::new().enable_connect_protocol().handshake(socket).await;
    let mut connection: server::Connection<_, Bytes> = handshake.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        if request.uri().path() == "/leave" {
            connection.graceful_shutdown();
        }
        tokio::spawn(answer(request, respond));
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    match request.uri().path() {
        "/empty" => {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::NO_CONTENT;
            respond.send_response(head, true).unwrap();
        }
        "/early" => {
            let hints = Response::builder().status(103).header("link", "</a.css>");
            respond.send_informational(hints.body(()).unwrap()).unwrap();
            echo(request, respond).await;
        }
        "/resets" => {
            let resets = RESETS.load(Ordering::Relaxed);
            let head = Response::builder().header("x-resets", resets).body(()).unwrap();
            respond.send_response(head, true).unwrap();
        }
        "/break" => {
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data("half".into(), false).unwrap();
            // The client sends a byte after it has received the data.
            request.into_body().data().await.unwrap().unwrap();
            body.send_reset(Reason::INTERNAL_ERROR);
        }
        "/reset" => respond.send_reset(Reason::INTERNAL_ERROR),
        "/refuse-first" if ASKED.fetch_add(1, Ordering::Relaxed) == 0 => {
            respond.send_reset(Reason::REFUSED_STREAM);
        }
        "/refuse" => respond.send_reset(Reason::REFUSED_STREAM),
        _ => echo(request, respond).await,
    }
}

/// Responds with the request's method, URI and fields, and sends back the body.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let method = request.method().clone();
    let protocol = request.extensions().get::<Extended>().map(|it| it.as_str().to_owned());
    let mut head = Response::builder().header("x-asked", format!("{method} {}", request.uri()));
    for (name, value) in request.headers() {
        head = head.header(format!("x-got-{name}"), value);
    }
    head = head.header("x-protocol", protocol.unwrap_or_default());
    let is_whole = method == Method::HEAD;
    let mut back = respond.send_response(head.body(()).unwrap(), is_whole).unwrap();
    if is_whole {
        return;
    }
    let mut body = request.into_body();
    while let Some(data) = body.data().await {
        let Ok(data) = data else {
            RESETS.fetch_add(1, Ordering::Relaxed);
            return;
        };
        body.flow_control().release_capacity(data.len()).unwrap();
        back.send_data(data, false).unwrap();
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-after", "all".parse().unwrap());
    for (name, value) in body.trailers().await.unwrap().unwrap_or_default() {
        trailers.insert(name.unwrap(), value);
    }
    back.send_trailers(trailers).unwrap();
}
