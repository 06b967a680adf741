//! The ready file: it tells the parent process the bound addresses.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use proxy::Proxy;
use serde::{Deserialize, Serialize};

/// Bound addresses of the process, apart from its listeners; `None`: off.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ProcessAddresses {
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) probes: Option<SocketAddr>,
    pub(crate) scaler: Option<SocketAddr>,
    pub(crate) metrics_api: Option<SocketAddr>,
    #[serde(default)]
    pub(crate) xds: Option<SocketAddr>,
}

#[derive(Serialize)]
struct ReadyFile {
    #[serde(flatten)]
    addresses: ProcessAddresses,
    listeners: Vec<ReadyListener>,
}

#[derive(Serialize)]
struct ReadyListener {
    name: String,
    address: SocketAddr,
}

/// Reads the addresses of a process from its file.
pub(crate) fn read(path: &Path) -> io::Result<ProcessAddresses> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Writes a temporary file and renames it, so that a reader never sees a partial file.
pub(crate) fn write(path: &Path, addresses: ProcessAddresses, proxy: &Proxy) -> io::Result<()> {
    let listener = |view: proxy::ListenerView| ReadyListener {
        name: view.name.to_string(),
        address: view.address,
    };
    let ready =
        ReadyFile { addresses, listeners: proxy.listeners().into_iter().map(listener).collect() };
    let mut text = serde_json::to_string(&ready)?;
    text.push('\n');
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    fs::write(&unfinished, text)?;
    fs::rename(&unfinished, path)
}
