//! The language spoken on standard input and output, and the command line.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

const USAGE: &str = "usage: loadgen [--endpoints N] [--delay-us N]

Serves as N endpoints [4] on loopback, each answering after a delay [0], and runs the jobs that
come as JSON lines on standard input. The endpoints' addresses are the first line of output.";

pub(crate) struct Arguments {
    pub(crate) endpoints: usize,
    pub(crate) delay: Duration,
}

impl Arguments {
    pub(crate) fn from_command_line() -> Result<Self> {
        let mut parsed = Self { endpoints: 4, delay: Duration::ZERO };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut number = || -> Result<u64> {
                let value = words.next().with_context(|| format!("{word} needs a number"))?;
                value.parse().with_context(|| format!("{word} {value}: not a number"))
            };
            match word.as_str() {
                "--endpoints" => parsed.endpoints = usize::try_from(number()?)?,
                "--delay-us" => parsed.delay = Duration::from_micros(number()?),
                _ => bail!("{USAGE}"),
            }
        }
        Ok(parsed)
    }
}

/// One line of input.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum Job {
    Load(LoadJob),
    Hold(HoldJob),
    Release,
}

/// Requests over kept-alive connections, each sent as soon as the one before it is answered.
#[derive(Deserialize)]
pub(crate) struct LoadJob {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) request: Request,
    #[serde(flatten)]
    pub(crate) extent: Extent,
    /// Spin instead of sleeping, so that the proxy never pays for a wake-up.
    #[serde(default = "yes")]
    pub(crate) spin: bool,
    /// The proxy's processes, whose CPU time is read at both ends of the window.
    #[serde(default)]
    pub(crate) processes: Vec<u32>,
}

/// Connections that stay open, idle, after one request each.
#[derive(Deserialize)]
pub(crate) struct HoldJob {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) request: Request,
    /// How many requests are in flight at a time: the proxy needs as many connections to endpoints.
    pub(crate) at_once: usize,
}

/// How long a load lasts.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Extent {
    /// Exactly so many requests, all of them counted.
    Requests { requests: u64 },
    /// Requests are counted for `seconds`, after `warmup_seconds` in which they are not.
    Time { warmup_seconds: f64, seconds: f64 },
}

/// What every request of a job says.
#[derive(Deserialize)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) body_bytes: usize,
    /// The length that every answer must have.
    pub(crate) answer_bytes: u64,
}

impl Request {
    /// The request as it goes over the wire.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Self { method, host, path, body_bytes, .. } = self;
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sheave-lab/1\r\nAccept: */*\r\n"
        );
        if method != "GET" {
            text.push_str("Content-Type: application/octet-stream\r\n");
            text.push_str(&format!("Content-Length: {body_bytes}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len() + body_bytes, b'x');
        bytes
    }
}

/// The first line of output.
#[derive(Serialize)]
pub(crate) struct Ready {
    pub(crate) endpoints: Vec<SocketAddr>,
}

/// One line of output for each job that has ended.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Report {
    Load(LoadReport),
    Hold(HoldReport),
}

/// What was counted inside the window.
#[derive(Serialize)]
pub(crate) struct LoadReport {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// The first error in words, if there was one.
    pub(crate) first_error: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    pub(crate) latency_max_us: f64,
    /// Requests that each endpoint answered inside the window.
    pub(crate) served: Vec<u64>,
    pub(crate) cpu_ns: u64,
    /// Time in which the proxy could have run but waited for a CPU: the measure of a disturbed run.
    pub(crate) wait_ns: u64,
}

#[derive(Serialize)]
pub(crate) struct HoldReport {
    pub(crate) held: usize,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

fn yes() -> bool {
    true
}
