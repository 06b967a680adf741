//! Signals of processes that serve: those that end it or make it read its configuration again, and those that it ignores.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Request made by a signal.
pub(crate) enum SignalRequest {
    Reload,
    Stop,
}

/// Signals of a process that runs until one of them ends it.
pub(crate) struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Signals that would end the process and mean nothing to it: timers, I/O, and those that other programs use to reopen
/// logs or to be replaced.
const IGNORED_SIGNALS: [i32; 9] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
    libc::SIGXFSZ,
];

impl ProcessSignals {
    pub(crate) fn new() -> io::Result<Self> {
        for number in IGNORED_SIGNALS.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
            // Its handler stays for the life of the process, though nothing reads this stream. A signal that a
            // supervisor such as valgrind keeps for itself cannot be handled, and does not arrive either.
            drop(signal(SignalKind::from_raw(number)));
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next request. Cancel-safe.
    pub(crate) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }

    /// Waits for the request to stop.
    pub(crate) async fn stop(&mut self) {
        while let SignalRequest::Reload = self.next().await {}
    }
}
