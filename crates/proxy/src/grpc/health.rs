//! gRPC health checking protocol (grpc.health.v1): one call over an HTTP/2 connection.
//!
//! Its two messages have one field each, so they are encoded and decoded by hand. The caller sets the timeout.

use bytes::Bytes;
use codec::grpc::GrpcCode;
use codec::grpc::message::{self, ServingStatus};
use h2::client;
use http::{HeaderMap, Request, Response, Uri};
use tokio::io::{AsyncRead, AsyncWrite};

/// Largest response body. A valid response takes a few bytes.
const MOST_BYTES: usize = 4096;

/// Parameters of a health check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HealthCheckRequest<'a> {
    pub(crate) scheme: &'static str,
    pub(crate) authority: &'a str,
    /// Service name; empty for the server as a whole.
    pub(crate) service: &'a str,
}

/// Result of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthCheckResult {
    Serving,
    NotServing,
    /// The endpoint does not know this service.
    ServiceUnknown,
    /// The endpoint responds with status UNKNOWN or without a known status.
    Unknown,
    /// The endpoint does not implement the health service.
    Unimplemented,
    /// The call ends with another gRPC status.
    Failed,
    /// The response is not gRPC.
    Malformed,
    /// The connection failed, or does not speak HTTP/2.
    Broken,
}

impl HealthCheckResult {
    /// Returns the description for the log.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Serving => "SERVING",
            Self::NotServing => "NOT_SERVING",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
            Self::Unknown => "UNKNOWN",
            Self::Unimplemented => {
                "UNIMPLEMENTED: the endpoint does not serve grpc.health.v1.Health"
            }
            Self::Failed => "the health check call failed",
            Self::Malformed => "the response is not gRPC",
            Self::Broken => "the connection failed, or does not speak HTTP/2",
        }
    }
}

/// Checks the health over a connection that is used for this check only, and then closed.
pub(crate) async fn check_health(
    io: impl AsyncRead + AsyncWrite + Unpin,
    check: &HealthCheckRequest<'_>,
) -> HealthCheckResult {
    let Ok((requests, connection)) = client::handshake(io).await else {
        return HealthCheckResult::Broken;
    };
    tokio::select! {
        health = call(requests, check) => health.unwrap_or(HealthCheckResult::Broken),
        _ = connection => HealthCheckResult::Broken,
    }
}

async fn call(
    requests: client::SendRequest<Bytes>,
    check: &HealthCheckRequest<'_>,
) -> Result<HealthCheckResult, h2::Error> {
    let Some(request) = request(check) else { return Ok(HealthCheckResult::Malformed) };
    let (response, mut body) = requests.ready().await?.send_request(request, false)?;
    body.send_data(message::frame_message(&message::health_check_request(check.service)), true)?;
    let (head, mut body) = response.await?.into_parts();
    let mut received = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        if received.len() + data.len() > MOST_BYTES {
            return Ok(HealthCheckResult::Malformed);
        }
        received.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len())?;
    }
    let trailers = body.trailers().await?;
    Ok(interpret_response(&Response::from_parts(head, ()), &received, trailers.as_ref()))
}

fn request(check: &HealthCheckRequest<'_>) -> Option<Request<()>> {
    let uri = Uri::builder()
        .scheme(check.scheme)
        .authority(check.authority)
        .path_and_query("/grpc.health.v1.Health/Check")
        .build();
    Request::post(uri.ok()?)
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "sheave-probe")
        .body(())
        .ok()
}

fn interpret_response(
    head: &Response<()>,
    body: &[u8],
    trailers: Option<&HeaderMap>,
) -> HealthCheckResult {
    let status = trailers.and_then(status).or_else(|| status(head.headers()));
    match status {
        Some(GrpcCode::Ok) if head.status() == 200 => serving_result(body),
        Some(GrpcCode::Unimplemented) => HealthCheckResult::Unimplemented,
        Some(GrpcCode::NotFound) => HealthCheckResult::ServiceUnknown,
        Some(_) => HealthCheckResult::Failed,
        None => HealthCheckResult::Malformed,
    }
}

fn serving_result(body: &[u8]) -> HealthCheckResult {
    match message::parse_health_check_response(body) {
        Some(ServingStatus::Serving) => HealthCheckResult::Serving,
        Some(ServingStatus::NotServing) => HealthCheckResult::NotServing,
        Some(ServingStatus::ServiceUnknown) => HealthCheckResult::ServiceUnknown,
        Some(ServingStatus::Unknown) => HealthCheckResult::Unknown,
        None => HealthCheckResult::Malformed,
    }
}

fn status(fields: &HeaderMap) -> Option<GrpcCode> {
    fields.get("grpc-status").map(|value| GrpcCode::parse(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use h2::server;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const CHECK: HealthCheckRequest<'_> =
        HealthCheckRequest { scheme: "http", authority: "10.0.0.1:50051", service: "a.B" };

    /// Answers one call with this status; if `message` is present, it is the body and the status is in the trailers.
    async fn answer(io: DuplexStream, status: &'static str, message: Option<&[u8]>) {
        let mut connection = server::handshake(io).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        assert_eq!(request.uri().authority().unwrap(), "10.0.0.1:50051");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        let mut body = request.into_body();
        let asked = async {
            assert_eq!(body.data().await.unwrap().unwrap(), message::frame_message(b"\x0a\x03a.B"));
            let mut fields = HeaderMap::new();
            fields.insert("grpc-status", status.parse().unwrap());
            let mut head = Response::new(());
            let Some(message) = message else {
                *head.headers_mut() = fields;
                respond.send_response(head, true).unwrap();
                return;
            };
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(message::frame_message(message), false).unwrap();
            body.send_trailers(fields).unwrap();
        };
        // The connection makes progress only while it is polled; it ends when the client closes it.
        tokio::join!(asked, async { while let Some(Ok(_)) = connection.accept().await {} });
    }

    fn check(status: &'static str, message: Option<&[u8]>) -> HealthCheckResult {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, far) = duplex(64 * 1024);
            tokio::join!(check_health(near, &CHECK), answer(far, status, message)).0
        })
    }

    #[test]
    fn grpc_health_check_responses_are_classified() {
        assert_eq!(check("0", Some(b"\x08\x01")), HealthCheckResult::Serving);
        assert_eq!(check("0", Some(b"\x08\x02")), HealthCheckResult::NotServing);
        assert_eq!(check("12", None), HealthCheckResult::Unimplemented);
        assert_eq!(check("5", None), HealthCheckResult::ServiceUnknown);
        assert_eq!(check("14", Some(b"\x08\x01")), HealthCheckResult::Failed);
        assert_eq!(check("0", Some(&[0x12; 5000])), HealthCheckResult::Malformed);
    }

    #[test]
    fn non_http2_response_fails_the_grpc_health_check() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let health = runtime.block_on(async {
            let (near, mut far) = duplex(64 * 1024);
            let answer = tokio::io::AsyncWriteExt::write_all(&mut far, b"HTTP/1.1 400 \r\n\r\n");
            let (health, _) = tokio::join!(check_health(near, &CHECK), answer);
            health
        });
        assert_eq!(health, HealthCheckResult::Broken);
    }
}
