//! Lines of the log of a container, as they are written. The memory for one is bounded.

use http_body_util::BodyExt;
use kube_client::client::Body;
use tokio::time::timeout;

use super::{AccessError, REQUEST_TIMEOUT, RequiredPermission, cause, object_name};
use crate::ClusterClient;

/// Size limit of a line; a longer one is left out.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Log of a container, followed from now on.
pub struct LogLines {
    body: Body,
    splitter: LineSplitter,
}

/// Splits bytes into lines.
#[derive(Debug, Default)]
struct LineSplitter {
    /// Bytes of which lines have not been taken.
    bytes: Vec<u8>,
    /// True until the end of a line that is too long.
    skips: bool,
}

impl ClusterClient {
    /// Follows what a container of a pod writes from now on.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub async fn follow_log(
        &self,
        (namespace, pod): (&str, &str),
        container: &str,
    ) -> Result<LogLines, AccessError> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/log?container={}&follow=true&tailLines=0",
            object_name(namespace)?,
            object_name(pod)?,
            object_name(container)?
        );
        let permission = RequiredPermission::in_namespace("get", "pods/log", namespace);
        let what = format!("pod {namespace}/{pod}");
        let response = timeout(REQUEST_TIMEOUT, self.accepted(&path, &permission, &what)).await;
        let response = response.unwrap_or(Err(AccessError::Timeout))?;
        Ok(LogLines { body: response.into_body(), splitter: LineSplitter::default() })
    }
}

impl LogLines {
    /// Returns the next line; `None` when the container has ended. Cancel-safe.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn next_line(&mut self) -> Result<Option<Vec<u8>>, AccessError> {
        loop {
            if let Some(line) = self.splitter.take_line() {
                return Ok(Some(line));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.splitter.push(bytes);
                    }
                }
                Some(Err(error)) => return Err(AccessError::Unreachable(cause(&error))),
            }
        }
    }
}

impl LineSplitter {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let has_end = self.bytes.contains(&b'\n');
        if !has_end && self.bytes.len() > MAX_LINE_BYTES {
            self.bytes.clear();
            self.skips = true;
        }
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
            let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
            line.pop();
            if !std::mem::take(&mut self.skips) && line.len() <= MAX_LINE_BYTES {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            while let Some(line) = splitter.take_line() {
                lines.push(String::from_utf8_lossy(&line).into_owned());
            }
        }
        lines
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(lines(&[b"a\nb", b"c\n\nd"]), ["a", "bc", ""]);
    }

    #[test]
    fn line_that_is_too_long_is_left_out_and_not_kept() {
        let long = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(lines(&[&long, &long, b"x\nnext\n"]), ["next"]);
        let mut splitter = LineSplitter::default();
        for _ in 0..10 {
            splitter.push(&long);
        }
        assert!(splitter.bytes.len() <= MAX_LINE_BYTES);
    }
}
