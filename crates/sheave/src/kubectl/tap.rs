//! `kubectl sheave tap SERVICE`: live requests of a Service, from the access logs of all replicas.
//!
//! The rate of printed lines and the size of each are bounded. Queries are not shown unless asked for: they often hold
//! credentials.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Context;
use kube::{AccessError, LogLines, PodSummary};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::replicas::ReplicaGroup;
use super::text::escaped;
use crate::explain::ServiceName;
use crate::failure::Failure;
use crate::flags::TapFlags;

/// Longest method, host and path that are shown.
const MAX_TARGET: usize = 200;
/// Matching lines that may wait to be printed; further ones are left out and counted.
const MAX_WAITING: usize = 256;
const SECOND: Duration = Duration::from_secs(1);

/// A line of the access log, as far as it is shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TappedRequest {
    timestamp: String,
    duration_seconds: f64,
    #[serde(rename = "http.request.method")]
    method: String,
    #[serde(rename = "server.address")]
    host: String,
    #[serde(rename = "url.path")]
    path: String,
    #[serde(rename = "url.query")]
    query: Option<String>,
    #[serde(rename = "http.response.status_code")]
    status: u16,
    #[serde(rename = "error.type")]
    error: Option<String>,
    #[serde(rename = "sheave.backend")]
    backend: String,
    #[serde(rename = "sheave.endpoint")]
    endpoint: Option<String>,
    #[serde(rename = "sheave.attempts")]
    attempts: u32,
    #[serde(rename = "sheave.queue_seconds")]
    queue_seconds: f64,
}

/// A line to print, or the end of a log.
enum TapEvent {
    Line(String),
    Ended(String),
}

/// Counts lines within a second, so that no more than the bound are printed.
struct LineBudget {
    per_second: u32,
    printed: u32,
    dropped: u64,
}

/// Follows the logs until a bound is reached, or all have ended.
pub(super) fn run(
    group: &ReplicaGroup<'_>,
    flags: &TapFlags,
    namespace: &str,
) -> Result<(), Failure> {
    let service = flags.service.in_namespace(namespace);
    let share = group.pods.iter().map(logged_share).max_by(f64::total_cmp).unwrap_or_default();
    if share <= 0.0 {
        return Err(Failure::input(
            "the access log of Sheave is off, and without it requests cannot be seen: set logs.accessLog of the chart to \
             \"on\", or to a share such as \"0.01\"",
        ));
    }
    if share < 1.0 {
        note(&format!(
            "the access log has {:.2} % of the requests (logs.accessLog)",
            share * 100.0
        ));
    }
    group.cluster.wait(follow(group, flags, &service))
}

async fn follow(
    group: &ReplicaGroup<'_>,
    flags: &TapFlags,
    service: &ServiceName,
) -> Result<(), Failure> {
    let (sender, mut events) = mpsc::channel(MAX_WAITING);
    let mut logs = JoinSet::new();
    let mut open = 0_usize;
    for pod in group.pods.iter().filter(|pod| pod.phase == "Running") {
        let name = (group.namespace.as_str(), pod.name.as_str());
        match group.cluster.client.follow_log(name, &pod.container).await {
            Ok(lines) => {
                open += 1;
                let (flags, service) = (flags.clone(), service.clone());
                logs.spawn(read(pod.name.clone(), lines, flags, service, sender.clone()));
            }
            // Without this permission no log can be read.
            Err(error @ AccessError::Forbidden(_)) => {
                return Err(Failure::input(escaped(&error.to_string())));
            }
            Err(error) => note(&format!("{}: {}", escaped(&pod.name), escaped(&error.to_string()))),
        }
    }
    drop(sender);
    if open == 0 {
        return Err(Failure::input("no log of Sheave can be read"));
    }
    let mut budget = LineBudget { per_second: flags.rate.get(), printed: 0, dropped: 0 };
    let mut left = flags.count.map(NonZeroU32::get);
    let end = flags.duration.map(|duration| Instant::now() + duration);
    let mut tick = Instant::now() + SECOND;
    while left != Some(0) && open > 0 {
        let due = end.map_or(tick, |end| end.min(tick));
        tokio::select! {
            event = events.recv() => match event {
                Some(TapEvent::Line(line)) => {
                    if budget.takes() {
                        if !put(&line)? {
                            return Ok(());
                        }
                        left = left.map(|left| left.saturating_sub(1));
                    }
                }
                Some(TapEvent::Ended(reason)) => {
                    open -= 1;
                    note(&reason);
                }
                None => break,
            },
            () = sleep_until(due) => {
                if end.is_some_and(|end| end <= Instant::now()) {
                    break;
                }
                tick = Instant::now() + SECOND;
                if let Some(text) = budget.refill() {
                    note(&text);
                }
            }
        }
    }
    if let Some(text) = budget.refill() {
        note(&text);
    }
    Ok(())
}

/// Sends the matching lines of a log.
async fn read(
    pod: String,
    mut lines: LogLines,
    flags: TapFlags,
    service: ServiceName,
    sender: mpsc::Sender<TapEvent>,
) {
    let reason = loop {
        match lines.next_line().await {
            Ok(Some(line)) => {
                if let Some(text) = matching(&line, &service, &flags) {
                    // If the channel is full, the terminal is slow: the log is read on when it has space.
                    if sender.send(TapEvent::Line(text)).await.is_err() {
                        return;
                    }
                }
            }
            Ok(None) => break "its log has ended".to_owned(),
            Err(error) => break escaped(&error.to_string()),
        }
    };
    // The receiver may have gone.
    drop(sender.send(TapEvent::Ended(format!("{}: {reason}", escaped(&pod)))).await);
}

/// Returns the line to print for a line of the log, if it is a request that is asked for.
fn matching(line: &[u8], service: &ServiceName, flags: &TapFlags) -> Option<String> {
    // Events of the process are in the same log.
    let request: TappedRequest = serde_json::from_slice(line).ok()?;
    let is_asked = service.is_of_backend(&request.backend)
        && flags.status.is_none_or(|range| range.contains(request.status))
        && flags.method.as_ref().is_none_or(|it| it.eq_ignore_ascii_case(&request.method))
        && flags.host.as_ref().is_none_or(|it| it.eq_ignore_ascii_case(&request.host))
        && flags.path.as_ref().is_none_or(|it| request.path.starts_with(it));
    is_asked.then(|| request.text(flags.show_query))
}

impl TappedRequest {
    /// Returns the request in one line, with its time, status, duration, endpoint, and what was unusual.
    fn text(&self, shows_query: bool) -> String {
        let time = self.timestamp.get(11..23).unwrap_or("-");
        let query = match (&self.query, shows_query) {
            (None, _) => String::new(),
            (Some(query), true) => format!("?{query}"),
            (Some(_), false) => "?...".to_owned(),
        };
        let mut target: String =
            escaped(&format!("{} {}{}{query}", self.method, self.host, self.path));
        if target.chars().count() > MAX_TARGET {
            target = target.chars().take(MAX_TARGET).chain(['…']).collect();
        }
        let duration = self.duration_seconds * 1e3;
        let endpoint = escaped(self.endpoint.as_deref().unwrap_or("no endpoint"));
        let mut text = format!(
            "{} {:>3} {duration:>8.1} ms  {endpoint}  {target}",
            escaped(time),
            self.status
        );
        if self.attempts > 1 {
            text.push_str(&format!("  attempts={}", self.attempts));
        }
        if self.queue_seconds > 0.0 {
            text.push_str(&format!("  queued={:.0}ms", self.queue_seconds * 1e3));
        }
        if let Some(error) = &self.error {
            text.push_str(&format!("  {}", escaped(error)));
        }
        text
    }
}

impl LineBudget {
    fn takes(&mut self) -> bool {
        let takes = self.printed < self.per_second;
        if takes {
            self.printed += 1;
        } else {
            self.dropped += 1;
        }
        takes
    }

    /// Begins a new second; returns a note if lines of the last one were left out.
    fn refill(&mut self) -> Option<String> {
        self.printed = 0;
        let dropped = std::mem::take(&mut self.dropped);
        (dropped > 0).then(|| format!("{dropped} more requests (--rate {})", self.per_second))
    }
}

/// Returns the share of requests that a replica logs, by its arguments.
fn logged_share(pod: &PodSummary) -> f64 {
    let value = pod.arguments.iter().rev().find_map(|it| it.strip_prefix("--access-log="));
    match value {
        None | Some("off") => 0.0,
        Some("on") => 1.0,
        Some(share) => share.parse().unwrap_or(1.0),
    }
}

/// Prints a line; returns false if the reader has closed the pipe.
fn put(line: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output").map_err(Failure::from),
    }
}

#[expect(clippy::print_stderr, reason = "standard output has the requests alone")]
fn note(text: &str) {
    eprintln!("sheave: {text}");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TapLine {
        #[command(flatten)]
        flags: TapFlags,
    }

    fn shown(line: &str, arguments: &str) -> Option<String> {
        let words = ["tap"].into_iter().chain(arguments.split_whitespace());
        let TapLine { flags } = TapLine::parse_from(words);
        let service = flags.service.in_namespace("shop");
        matching(line.as_bytes(), &service, &flags)
    }

    const LINE: &str = r#"{"timestamp":"2026-11-20T12:50:17.139861Z","duration_seconds":0.0059,
        "http.request.method":"GET","server.address":"shop.example","url.path":"/cart","url.query":"token=s3cret",
        "http.response.status_code":503,"error.type":"queue_full","sheave.backend":"shop/web:80",
        "sheave.endpoint":"10.0.0.1:80","sheave.attempts":2,"sheave.queue_seconds":0.25}"#;

    #[test]
    fn request_is_one_line_without_its_query() {
        let text = shown(LINE, "web").unwrap();
        assert_eq!(
            text,
            "12:50:17.139 503      5.9 ms  10.0.0.1:80  GET shop.example/cart?...  attempts=2  queued=250ms  queue_full"
        );
        assert!(shown(LINE, "web --show-query").unwrap().contains("/cart?token=s3cret"));
    }

    #[test]
    fn filters_select_requests() {
        for (arguments, is_shown) in [
            ("shop/web:80", true),
            ("other", false),
            ("other/web", false),
            ("web:81", false),
            ("web --status 5xx", true),
            ("web --status 503", true),
            ("web --status 2xx", false),
            ("web --method get", true),
            ("web --method POST", false),
            ("web --host SHOP.example --path /ca", true),
            ("web --path /other", false),
        ] {
            assert_eq!(shown(LINE, arguments).is_some(), is_shown, "{arguments}");
        }
    }

    #[test]
    fn other_lines_of_the_log_are_passed_over_and_hostile_ones_escaped() {
        assert_eq!(shown("2026-11-20T12:50:17Z INFO sheave: ready", "web"), None);
        assert_eq!(shown(r#"{"level":"INFO","fields":{}}"#, "web"), None);
        let line = LINE.replace("/cart", &format!("/\\u001b[2J{}", "x".repeat(4000)));
        let text = shown(&line, "web").unwrap();
        assert!(text.contains("/\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
        assert!(text.len() < 400, "{text}");
    }

    #[test]
    fn lines_per_second_are_bounded_and_the_others_counted() {
        let mut budget = LineBudget { per_second: 2, printed: 0, dropped: 0 };
        assert_eq!([budget.takes(), budget.takes(), budget.takes()], [true, true, false]);
        assert_eq!(budget.refill().as_deref(), Some("1 more requests (--rate 2)"));
        assert!(budget.takes());
        assert_eq!(budget.refill(), None);
    }

    #[test]
    fn share_that_is_logged_is_that_of_the_pods_arguments() {
        let share = |argument: &str| {
            logged_share(&PodSummary {
                arguments: vec![argument.to_owned()],
                ..PodSummary::default()
            })
        };
        assert_eq!(share("--access-log=off"), 0.0);
        assert_eq!(share("--access-log=on"), 1.0);
        assert_eq!(share("--access-log=0.25"), 0.25);
        assert_eq!(share("--admin=:9900"), 0.0);
    }
}
