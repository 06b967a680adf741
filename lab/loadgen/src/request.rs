//! The request of a job, encoded for each protocol.

use serde::Deserialize;

use crate::message::{HttpMessage, field};

/// Prefix of each gRPC message: the compressed flag and the length.
const GRPC_PREFIX_BYTES: u64 = 5;

/// The request of a job; all its requests are equal.
#[derive(Deserialize)]
pub(crate) struct JobRequest {
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) body_bytes: usize,
    /// Required body length of every response.
    pub(crate) answer_bytes: u64,
    /// True for a connection per request: the request has `Connection: close`, and its response is complete when the
    /// proxy has closed.
    #[serde(default)]
    pub(crate) close: bool,
    /// True for a unary gRPC call: messages instead of bodies, and a status in the trailers. Over HTTP/2 only.
    #[serde(default)]
    pub(crate) grpc: bool,
}

impl JobRequest {
    /// Encodes the request for HTTP/1.1.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Self { method, host, path, body_bytes, close, .. } = self;
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sheave-lab/1\r\nAccept: */*\r\n"
        );
        if method != "GET" {
            text.push_str("Content-Type: application/octet-stream\r\n");
            text.push_str(&format!("Content-Length: {body_bytes}\r\n"));
        }
        if *close {
            text.push_str("Connection: close\r\n");
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len() + body_bytes, b'x');
        bytes
    }

    /// Encodes the request for HTTP/2 and HTTP/3.
    pub(crate) fn to_message(&self, scheme: &str) -> HttpMessage {
        let Self { method, host, path, body_bytes, grpc, .. } = self;
        let mut head = vec![
            field(":method", method),
            field(":scheme", scheme),
            field(":authority", host),
            field(":path", path),
            field("user-agent", "sheave-lab/1"),
        ];
        if *grpc {
            head.extend([field("content-type", "application/grpc"), field("te", "trailers")]);
        } else {
            head.push(field("accept", "*/*"));
        }
        let body = match (*grpc, method.as_str()) {
            (true, _) => grpc_message(*body_bytes),
            (false, "GET") => Vec::new(),
            (false, _) => {
                head.push(field("content-type", "application/octet-stream"));
                head.push(field("content-length", &body_bytes.to_string()));
                vec![b'x'; *body_bytes]
            }
        };
        HttpMessage { head, body, trailers: Vec::new() }
    }

    /// Returns the required body length of every response on the wire.
    pub(crate) fn expected_bytes(&self) -> u64 {
        self.answer_bytes + if self.grpc { GRPC_PREFIX_BYTES } else { 0 }
    }
}

/// Builds a gRPC message: the uncompressed flag, then its length.
pub(crate) fn grpc_message(bytes: usize) -> Vec<u8> {
    let length = u32::try_from(bytes).expect("messages of the lab are small");
    let mut message = vec![0];
    message.extend_from_slice(&length.to_be_bytes());
    message.resize(message.len() + bytes, b'x');
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_request_sends_connection_close() {
        let text =
            r#"{"method": "GET", "host": "h", "path": "/", "answer_bytes": 0, "close": true}"#;
        let request: JobRequest = serde_json::from_str(text).unwrap();
        assert!(request.to_bytes().ends_with(b"\r\nConnection: close\r\n\r\n"));
    }

    #[test]
    fn grpc_request_has_a_length_prefixed_message() {
        let text = r#"{"method": "POST", "host": "h", "path": "/", "body_bytes": 3, "answer_bytes": 7, "grpc": true}"#;
        let request: JobRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.to_message("http").body, b"\0\0\0\0\x03xxx");
        assert_eq!(request.expected_bytes(), 12);
    }
}
