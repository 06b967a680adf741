//! The command line, and the messages on standard input and output.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::defect::EndpointDefect;
use crate::request::JobRequest;
use crate::service::ServiceTime;

const USAGE: &str = "usage: loadgen [--endpoints N | --listen IP:PORT] [--delay-us N] [--exponential] [--at-once N]
               [--seed N] [--defect ENDPOINT=KIND]...

Serves as N endpoints [4] on loopback, or as one at IP:PORT, and runs the jobs that come as JSON lines on standard input. Each
endpoint answers after a delay [0] and serves --at-once requests concurrently [no limit]. The addresses of
the endpoints are the first line of output. --exponential draws each delay, with --delay-us as the mean.
KIND is slow:FACTOR, errors, black-hole, dead or dead:MILLISECONDS until it is back; the defect is injected
when the first job begins to count.";

pub(crate) struct LoadgenArguments {
    pub(crate) endpoints: usize,
    /// Address of the only endpoint; `None` is one on loopback for each.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) service_time: ServiceTime,
    /// Defects with the number of their endpoint, from 0.
    pub(crate) defects: Vec<(usize, EndpointDefect)>,
}

impl LoadgenArguments {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let service_time =
            ServiceTime { mean: Duration::ZERO, random: false, at_once: usize::MAX, seed: 0 };
        let mut parsed = Self { endpoints: 4, listen: None, service_time, defects: Vec::new() };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--endpoints" => parsed.endpoints = number(&word, &value()?)?,
                "--listen" => {
                    let text = value()?;
                    let address = text.parse().ok();
                    parsed.listen =
                        Some(address.with_context(|| format!("{word} {text}: not IP:PORT"))?);
                    parsed.endpoints = 1;
                }
                "--delay-us" => {
                    parsed.service_time.mean = Duration::from_micros(number(&word, &value()?)?);
                }
                "--exponential" => parsed.service_time.random = true,
                "--at-once" => parsed.service_time.at_once = number(&word, &value()?)?,
                "--seed" => parsed.service_time.seed = number(&word, &value()?)?,
                "--defect" => parsed.defects.push(defect(&value()?)?),
                _ => bail!("{USAGE}"),
            }
        }
        if let Some((endpoint, _)) = parsed.defects.iter().find(|(n, _)| *n >= parsed.endpoints) {
            bail!("--defect {endpoint}: there are {} endpoints, numbered from 0", parsed.endpoints);
        }
        Ok(parsed)
    }
}

fn number<N: FromStr>(word: &str, value: &str) -> Result<N> {
    value.parse().map_err(|_number| anyhow!("{word} {value}: not a number in range"))
}

fn defect(text: &str) -> Result<(usize, EndpointDefect)> {
    let (endpoint, kind) =
        text.split_once('=').with_context(|| format!("--defect {text}: not ENDPOINT=KIND"))?;
    Ok((number("--defect", endpoint)?, kind.parse()?))
}

/// One line of input.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum LoadgenJob {
    Load(LoadJob),
    Pace(OpenLoopJob),
    Trace(TraceJob),
    Hold(HoldJob),
    Shake(HandshakeJob),
    Release,
}

/// Closed loop: each connection sends a request as soon as the previous one is answered.
#[derive(Deserialize)]
pub(crate) struct LoadJob {
    pub(crate) target: SocketAddr,
    /// Further targets; connections use all targets in turn.
    #[serde(default)]
    pub(crate) others: Vec<SocketAddr>,
    pub(crate) connections: usize,
    /// Concurrent requests per connection over HTTP/2. Without it, HTTP/1.1.
    #[serde(default)]
    pub(crate) streams: Option<usize>,
    /// True for HTTP/3 instead of HTTP/2.
    #[serde(default)]
    pub(crate) http3: bool,
    pub(crate) request: JobRequest,
    #[serde(flatten)]
    pub(crate) extent: LoadExtent,
    /// Spin instead of sleeping, so that the proxy never pays for a wake-up.
    #[serde(default = "yes")]
    pub(crate) spin: bool,
    /// Processes of the proxy; their CPU time is read at both ends of the window.
    #[serde(default)]
    pub(crate) processes: Vec<u32>,
}

impl LoadJob {
    /// Returns the target of a connection, by its index.
    pub(crate) fn target_of(&self, index: usize) -> SocketAddr {
        let index = index % (self.others.len() + 1);
        index.checked_sub(1).map_or(self.target, |other| self.others[other])
    }
}

/// Closed loop of handshakes: a number of successive connections in parallel, each closed once it could be used.
#[derive(Deserialize)]
pub(crate) struct HandshakeJob {
    pub(crate) target: SocketAddr,
    /// SNI host name.
    pub(crate) host: String,
    pub(crate) connections: usize,
    /// True if each connection except the first of a sequence resumes the session of its
    /// predecessor.
    pub(crate) resume: bool,
    /// True if each connection sends a request, for servers that send tickets with their first
    /// response.
    #[serde(default)]
    pub(crate) ask: bool,
    /// True for QUIC instead of TLS over TCP; then sessions are not resumed and no request is sent.
    #[serde(default)]
    pub(crate) http3: bool,
    #[serde(flatten)]
    pub(crate) extent: LoadExtent,
    #[serde(default = "yes")]
    pub(crate) spin: bool,
    #[serde(default)]
    pub(crate) processes: Vec<u32>,
}

/// Open loop: requests are sent at times that do not depend on responses. The intended send time decides whether a
/// request counts, and its latency counts from then.
#[derive(Deserialize)]
pub(crate) struct OpenLoopJob {
    pub(crate) target: SocketAddr,
    /// Requests per second, at intervals drawn exponentially.
    pub(crate) rate: f64,
    pub(crate) seed: u64,
    /// Maximum number of requests in flight; further requests wait for a connection, and their
    /// latency counts from the intended send time.
    pub(crate) connections: usize,
    pub(crate) request: JobRequest,
    pub(crate) warmup_seconds: f64,
    pub(crate) seconds: f64,
    #[serde(default = "yes")]
    pub(crate) spin: bool,
    #[serde(default)]
    pub(crate) processes: Vec<u32>,
}

/// A closed loop over HTTP/1.1 around the onset of defects, which reports every request.
#[derive(Deserialize)]
pub(crate) struct TraceJob {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) request: JobRequest,
    /// Time before anything is reported.
    pub(crate) warmup_seconds: f64,
    /// Reported time before the onset of defects.
    pub(crate) seconds_before: f64,
    /// Time from the onset until no further request is sent.
    pub(crate) seconds_after: f64,
    /// Time for requests in flight to end after that.
    pub(crate) drain_seconds: f64,
    #[serde(default = "yes")]
    pub(crate) spin: bool,
    #[serde(default)]
    pub(crate) processes: Vec<u32>,
}

/// Connections that stay open, idle, after one request each.
#[derive(Deserialize)]
pub(crate) struct HoldJob {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) request: JobRequest,
    /// Requests in flight at a time: the proxy needs as many connections to endpoints.
    pub(crate) at_once: usize,
}

/// Duration of a load.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(crate) enum LoadExtent {
    /// A fixed number of requests, all of them counted.
    Requests { requests: u64 },
    /// Requests are counted for `seconds`, after `warmup_seconds` in which they are not.
    Time { warmup_seconds: f64, seconds: f64 },
}

/// The first line of output.
#[derive(Serialize)]
pub(crate) struct ReadyLine<'a> {
    pub(crate) endpoints: &'a [SocketAddr],
}

/// One line of output for each completed job; a trace has one more at the onset of defects.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum JobReport {
    Load(LoadReport),
    Onset(OnsetReport),
    Trace(TraceReport),
    Hold(HoldReport),
}

/// Results of the measurement window. Errors of a closed loop are counted outside of it too.
#[derive(Serialize)]
pub(crate) struct LoadReport {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Text of the first error, if there was one.
    pub(crate) first_error: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) latency_p10_us: f64,
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    pub(crate) latency_max_us: f64,
    /// Requests that each endpoint answered inside the window.
    pub(crate) served: Vec<u64>,
    pub(crate) cpu_ns: u64,
    /// Time in which the proxy could have run but waited for a CPU: the measure of a disturbed run.
    pub(crate) wait_ns: u64,
}

/// Report of the onset: requests sent from now on are after it.
#[derive(Serialize)]
pub(crate) struct OnsetReport {
    pub(crate) onset: bool,
}

/// Every request that ended after the warm-up or had no response by the end, in the order of their ends. Times count
/// from the onset.
#[derive(Default, Serialize)]
pub(crate) struct TraceReport {
    /// Start of each request; negative if it began before the onset.
    pub(crate) began_us: Vec<i64>,
    pub(crate) took_us: Vec<u64>,
    /// Outcome of each request, as an index of `outcomes`.
    pub(crate) outcome: Vec<usize>,
    /// Distinct outcomes in words; the first is success.
    pub(crate) outcomes: Vec<String>,
    /// Requests that each endpoint has answered since the onset, each `sample_ms` from the onset on.
    pub(crate) served: Vec<Vec<u64>>,
    pub(crate) sample_ms: u64,
    /// Requests whose bytes each endpoint had received, and not answered, when it died.
    pub(crate) unanswered: Vec<u64>,
    /// Time from the warm-up to the last request sent, in which `cpu_ns` and `wait_ns` were taken.
    pub(crate) seconds: f64,
    pub(crate) cpu_ns: u64,
    /// Time in which the proxy could have run but waited for a CPU.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<LoadgenArguments> {
        LoadgenArguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn defects_are_given_by_endpoint() {
        let parsed = parse("--endpoints 5 --defect 4=slow:10 --defect 0=black-hole").unwrap();
        assert_eq!(
            parsed.defects,
            [(4, EndpointDefect::Slow(10.0)), (0, EndpointDefect::BlackHole)]
        );
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        let words = ["--endpoints", "--endpoints x", "--defect 9=errors", "--defect errors", "-h"];
        for wrong in words {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
