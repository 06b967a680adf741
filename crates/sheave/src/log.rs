//! Events on standard error, one line each.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::flags::LogFormat;

/// Which events are shown: a level, or `tracing`'s directives.
const FILTER: &str = "SHEAVE_LOG";

/// From here on events are written.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_unset| EnvFilter::new("info"));
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => {
            events.with_target(false).with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init()
        }
        LogFormat::Json => events.json().flatten_event(true).init(),
    }
}
