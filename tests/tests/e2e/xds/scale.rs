//! Many clients of many Services: the time until all of them have a change, and what they cost.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::machine::CpuWaitMeter;
use tests::{ConfigDirectory, Result, SheaveProcess, objects, within};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::DiscoveryStream;

const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

const CLIENTS: usize = 1_000;
const SERVICES: u16 = 100;
const ENDPOINTS_PER_SERVICE: u16 = 50;
/// Longest time from a change of a file until the last client has it, while there are CPUs for it.
const BOUND: Duration = Duration::from_millis(500);
/// Most memory that each client may take: its connection, its names, and a buffer of the size of its largest response.
const BYTES_PER_CLIENT: u64 = 300_000;

fn service(number: u16) -> String {
    format!("s{number}")
}

/// Writes the endpoints of a Service: one slice for each.
fn write_endpoints(configuration: &ConfigDirectory, number: u16, endpoints: u16) -> Result {
    let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + u32::from(number));
    let endpoints: Vec<_> =
        (1..=endpoints).map(|port| SocketAddr::from((address, 1000 + port))).collect();
    let name = service(number);
    let mut all = vec![objects::service(&name)];
    all.extend(objects::slices(&name, &endpoints));
    Ok(configuration.write(&format!("{name}.yaml"), &all)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_one_endpoint_reaches_a_thousand_clients() -> Result {
    let configuration = ConfigDirectory::empty()?;
    for number in 0..SERVICES {
        write_endpoints(&configuration, number, ENDPOINTS_PER_SERVICE)?;
    }
    let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
    let sheave = Arc::new(sheave);
    let (before, cpu_before) = (sheave.memory_bytes()?, sheave.cpu_time()?);
    let all: Vec<_> =
        (0..SERVICES).map(|number| format!("default/{}:80", service(number))).collect();
    // All are connected, then all have what they asked for, then all wait for the change.
    let (ready, start) = (Arc::new(Barrier::new(CLIENTS + 1)), Instant::now());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (sheave, names, ready) = (Arc::clone(&sheave), all.clone(), Arc::clone(&ready));
        clients.spawn(async move {
            let mut stream = DiscoveryStream::open(&sheave, ENDPOINTS, names).await?;
            let mut count = 0;
            while count < usize::from(SERVICES) {
                count += stream.next().await?;
                stream.accept().await?;
            }
            ready.wait().await;
            let changed = stream.next().await?;
            ensure!(changed == 1, "one Service has changed, not {changed}");
            Ok((Instant::now(), stream))
        });
    }
    tokio::select! {
        _ = ready.wait() => {}
        Some(failed) = clients.join_next() => {
            failed??;
        }
    }
    let (first, memory) = (start.elapsed(), sheave.memory_bytes()?.saturating_sub(before));
    let cpu_of_all = sheave.cpu_time()?;
    let waits = CpuWaitMeter::start(&sheave)?;
    let change = Instant::now();
    write_endpoints(&configuration, 0, ENDPOINTS_PER_SERVICE + 1)?;
    let mut times = Vec::new();
    let mut streams = Vec::new();
    while let Some(done) = within("the change", clients.join_next()).await? {
        let (time, stream) = done??;
        times.push(time.duration_since(change));
        streams.push(stream);
    }
    let waited = waits.waited()?;
    let cpu_of_change = sheave.cpu_time()?.saturating_sub(cpu_of_all);
    times.sort_unstable();
    let last = *times.last().context("a client")?;
    let per_client = memory / CLIENTS as u64;
    eprintln!(
        "{}",
        json!({
            "all_have_all_ms": first.as_millis(),
            "cpu_of_all_ms": cpu_of_all.saturating_sub(cpu_before).as_millis(),
            "cpu_of_change_ms": cpu_of_change.as_millis(),
            "bytes_per_client": per_client,
            "median_ms": times[CLIENTS / 2].as_millis(),
            "last_ms": last.as_millis(),
            "waited_for_cpus_ms": waited.as_millis(),
        })
    );
    ensure!(last <= BOUND + waited, "the last client has the change after {last:?}");
    ensure!(per_client <= BYTES_PER_CLIENT, "{per_client} bytes for each client");
    Ok(())
}
