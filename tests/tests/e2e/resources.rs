//! Memory and file descriptors of the process: attackers that hold as much as they may, and a client that is served
//! meanwhile without a failure. Nothing but the command line says how much there is.

/// Memory: responses and requests that are not read.
mod memory;
/// File descriptors: idle connections and UDP flows.
mod descriptors;
