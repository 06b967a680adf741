//! Log events on standard error, one line each.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::flags::LogFormat;

/// Environment variable with the log level or with `tracing` directives.
const FILTER_VARIABLE: &str = "SHEAVE_LOG";

/// The Kubernetes client logs each failure itself, before its caller logs it with more context.
const DUPLICATE_LOG_DIRECTIVE: &str = "kube_client::client::builder=off";

/// Starts to write log events.
pub(crate) fn start(format: LogFormat) {
    // Invalid directives are reported on standard error and ignored.
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(FILTER_VARIABLE)
        .from_env_lossy()
        .add_directive(DUPLICATE_LOG_DIRECTIVE.parse().expect("the directive is valid"));
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => {
            events.with_target(false).with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init()
        }
        LogFormat::Json => events.json().flatten_event(true).init(),
    }
}
