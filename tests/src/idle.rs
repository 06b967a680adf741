//! Memory cost of idle connections.

use anyhow::{Result, ensure};

use crate::sheave::SheaveProcess;

/// Returns the body that each connection sends before it is idle: bodies cause the allocation of
/// buffers.
pub fn warm_up_body() -> Vec<u8> {
    vec![b'x'; 16 * 1024]
}

/// Opens a connection, and then `count` more, each of which must cost less than `most` bytes.
/// Returns all of them.
pub async fn check_memory_per_connection<C>(
    sheave: &SheaveProcess,
    protocol: &str,
    count: usize,
    most: u64,
    open: impl AsyncFn() -> Result<C>,
) -> Result<Vec<C>> {
    let mut clients = vec![open().await?];
    let before = sheave.memory_bytes()?;
    while clients.len() <= count {
        clients.push(open().await?);
    }
    let each = sheave.memory_bytes()?.saturating_sub(before) / count as u64;
    eprintln!("{count} idle connections of {protocol}: {each} bytes each");
    ensure!(each < most, "{each} bytes for each of {count}");
    Ok(clients)
}
