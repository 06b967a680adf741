//! Events on standard error, one line each.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::flags::LogFormat;

/// Which events are shown: a level, or `tracing`'s directives.
const FILTER_VARIABLE: &str = "SHEAVE_LOG";

/// The client of the API server tells each failure before whoever asked does, who knows what it means.
const DUPLICATE_LOG_DIRECTIVE: &str = "kube_client::client::builder=off";

/// From here on events are written.
pub(crate) fn start(format: LogFormat) {
    // Directives that make no sense are named on standard error, and left out.
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(FILTER_VARIABLE)
        .from_env_lossy()
        .add_directive(DUPLICATE_LOG_DIRECTIVE.parse().expect("a directive"));
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => {
            events.with_target(false).with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init()
        }
        LogFormat::Json => events.json().flatten_event(true).init(),
    }
}
