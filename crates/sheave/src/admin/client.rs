//! Client of the admin API: one query with a time limit.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Time limit to connect, and for each read.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Size limit of a response, larger than the state of any Sheave.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024 * 1024;

/// Returns the parsed response of a path, or the error as a sentence fragment.
pub(crate) fn query<T: DeserializeOwned>(admin: SocketAddr, path: &str) -> Result<T, String> {
    let answer = get(admin, path).map_err(|error| error.to_string())?;
    let body = body(&answer).ok_or("the server there is not Sheave's admin API")?;
    serde_json::from_slice(body).map_err(|_error| {
        "the response has an unknown format: it may be another version of Sheave".to_owned()
    })
}

/// Returns `None` if a path answers with 200, else the reason.
pub(crate) fn failure(server: SocketAddr, path: &str) -> Option<String> {
    let answer = match get(server, path) {
        Ok(answer) => answer,
        Err(error) => return Some(format!("{server} does not answer: {error}")),
    };
    if body(&answer).is_some() {
        return None;
    }
    let text = String::from_utf8_lossy(&answer);
    let reason = text.split_once("\r\n\r\n").map_or(&*text, |(_, body)| body);
    Some(reason.trim().to_owned())
}

/// Sends the request as HTTP/1.0, so that the end of the connection ends the response.
fn get(admin: SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&admin, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {admin}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Returns the body of a response with status 200.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let is_fine = line.starts_with(b"HTTP/1.") && line.get(8..13) == Some(b" 200 ");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    is_fine.then_some(&answer[end + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_response_yields_a_body() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}"), Some(&b"{}"[..]));
        assert_eq!(body(b"HTTP/1.0 404 Not Found\r\n\r\n{}"), None);
        assert_eq!(body(b"SSH-2.0-OpenSSH\r\n\r\n"), None);
        assert_eq!(body(b"HTTP/1.0 200 OK\r\n"), None);
    }
}
