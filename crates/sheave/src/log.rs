//! Log events on standard error, one line each.
//!
//! A thread that serves never waits for the reader of standard error: a thread of the log writes the lines. If it falls
//! behind, lines are dropped and counted. A place of the code that logs too often is limited, so that its lines do not
//! displace others.

/// Limit of the events of one place in the code.
mod limit;
/// The thread that writes lines.
mod writer;

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::flags::LogFormat;
use limit::EventLimiter;
pub(crate) use writer::DroppedEvents;
use writer::LineWriter;

/// Environment variable with the log level or with `tracing` directives.
const FILTER_VARIABLE: &str = "SHEAVE_LOG";

/// The Kubernetes client logs each failure itself, before its caller logs it with more context.
const DUPLICATE_LOG_DIRECTIVE: &str = "kube_client::client::builder=off";

/// Time that the end of the process waits for standard error.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The log of the process. When it is dropped, it waits a short time until all lines are written.
pub(crate) struct EventLog {
    writer: LineWriter,
    dropped: Arc<DroppedEvents>,
}

/// Starts to write log events.
pub(crate) fn start(format: LogFormat) -> anyhow::Result<EventLog> {
    // Invalid directives are reported on standard error and ignored.
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(FILTER_VARIABLE)
        .from_env_lossy()
        .add_directive(DUPLICATE_LOG_DIRECTIVE.parse().expect("the directive is valid"));
    let dropped = Arc::new(DroppedEvents::default());
    let writer = LineWriter::start(Box::new(io::stderr()), Arc::clone(&dropped))
        .context("cannot start the thread of the log")?;
    let limiter = EventLimiter::new(Arc::clone(&dropped), proxy::clock::now);
    let events = tracing_subscriber::registry().with(filter).with(limiter);
    let layer = fmt::layer().with_writer(writer.clone());
    match format {
        LogFormat::Text => {
            let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
            events.with(layer.with_target(false).with_ansi(is_terminal)).init();
        }
        LogFormat::Json => events.with(layer.json().flatten_event(true)).init(),
    }
    Ok(EventLog { writer, dropped })
}

impl EventLog {
    /// Returns the counts of the events that were not written.
    pub(crate) fn dropped(&self) -> Arc<DroppedEvents> {
        Arc::clone(&self.dropped)
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.writer.flush(EXIT_TIMEOUT);
    }
}

/// Writes the last lines of the process to standard error, unless its reader keeps them waiting.
pub(crate) fn write_at_exit(lines: Vec<String>) {
    if lines.is_empty() {
        return;
    }
    let (written, is_written) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        let mut stderr = io::stderr().lock();
        for line in lines {
            // If this write fails, there is no other place to report it.
            writeln!(stderr, "{line}").ok();
        }
        drop(written);
    });
    // The sender is dropped when all is written.
    is_written.recv_timeout(EXIT_TIMEOUT).ok();
}
