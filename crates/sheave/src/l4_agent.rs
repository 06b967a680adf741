//! `sheave l4`: the agent of the layer-4 data path on one node.
//!
//! It reads Services, EndpointSlices and Nodes, finds the links of this node, and keeps the maps of the eBPF programs
//! up to date. Packets are delivered while it is away.

/// From objects to services.
mod service_plan;
/// From services and places to the state of the data path.
mod desired_state;
/// Links, addresses and neighbours of the node.
mod network_view;
/// Reads and changes them.
mod netlink;
/// Brings the data path to the desired state.
mod agent;
/// Files or a cluster as the source of objects.
mod source;
/// One agent for each node.
mod node_lock;
/// State and metrics over HTTP.
mod agent_api;
/// Services of the data path, and their traffic.
mod overview;
/// The endpoint that a connection gets, and why.
mod flow_report;
/// Metrics.
pub(crate) mod metrics;

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use l4::{DataPathConfig, L4Error};
use rustix::fs::statfs;
use tokio::runtime;
use tokio::time::{Instant, sleep, sleep_until};

use crate::admin::{self, BoundedListener, ServedHosts};
use crate::failure::Failure;
use crate::flags::{AdminAddress, L4Flags};
use crate::log;
use crate::signals::{ProcessSignals, SignalRequest};
use agent::{AgentConfig, AgentError, L4Agent};
use agent_api::{AgentState, SharedState};
use netlink::NetworkChanges;
use node_lock::NodeLock;
pub(crate) use overview::{L4EndpointInfo, L4Overview, L4ServiceInfo, L4Traffic};
use service_plan::ServicePlan;
use source::{ObjectSource, SourceObjects};

/// Interval of passes without a change that is known.
const PERIOD: Duration = Duration::from_secs(10);
/// The same while a neighbour has not answered.
const UNRESOLVED_PERIOD: Duration = Duration::from_secs(1);
/// Shortest pause after a pass; a change of the network waits for its end.
const PAUSE: Duration = Duration::from_millis(100);
/// Length of the pause in relation to the pass: if the network changes all the time, passes take a twentieth of it.
const PAUSE_FACTOR: u32 = 19;
/// Type of a BPF file system in `statfs`.
const BPF_MAGIC: u64 = 0xcafe_4a11;

/// Runs until a signal ends it.
pub(crate) fn run(flags: L4Flags) -> Result<(), Failure> {
    if let Some(flow) = &flags.explain {
        return flow_report::print(flags.admin, flow);
    }
    if let Some(conflict) = flags.conflict() {
        return Err(Failure::input(conflict));
    }
    let _log = log::start(flags.log_format)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start its thread")?;
    let result = runtime.block_on(serve(flags));
    runtime.shutdown_background();
    result
}

fn lock(state: &SharedState) -> MutexGuard<'_, AgentState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(flags: L4Flags) -> Result<(), Failure> {
    let mut signals = ProcessSignals::new().context("cannot handle signals")?;
    let node = flags.node_name();
    let config = AgentConfig {
        node: node.clone(),
        uplinks: flags.uplink.clone(),
        mode: flags.mode,
        announces: flags.announce,
        vxlan_port: flags.vxlan_port,
    };
    let data_path = DataPathConfig {
        connections: flags.connections,
        ..DataPathConfig::new(pin_folder(&flags, &node))
    };
    if flags.remove {
        return remove(config, &data_path);
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node, "sheave l4 starts");
    let state = SharedState::default();
    if let AdminAddress::At(address) = flags.admin {
        let timeout = admin::REQUEST_TIMEOUT;
        let listener = BoundedListener::bind(address, "--admin", timeout, None).await?;
        let hosts = ServedHosts::new(flags.admin_host.clone());
        admin::serve_agent(listener, hosts, agent_api::router(Arc::clone(&state)));
    }
    let mut source = ObjectSource::open(&flags).await?;
    let first = tokio::select! {
        first = source.load_first() => first,
        () = signals.stop() => return Ok(()),
    };
    if !first.problems.is_empty() && !source.skips_invalid() {
        let mut lines: Vec<_> = first.problems.iter().map(ToString::to_string).collect();
        lines.push("sheave: errors in the configuration: nothing is served".to_owned());
        return Err(Failure::Input(lines));
    }
    let _lock = tokio::select! {
        lock = NodeLock::take() => lock.context("cannot become the agent of this node")?,
        () = signals.stop() => return Ok(()),
    };
    match L4Agent::open(config, &data_path) {
        Ok(mut agent) => {
            agent.plan = plan_of(&first, &node);
            lock(&state).agent = Some(agent);
        }
        // A pod that ends would be started again and again.
        Err(AgentError::DataPath(error)) if error.is_permanent() && flags.kubernetes => {
            let reason = format!("{:#}", anyhow::Error::from(error));
            tracing::error!(reason, "this node has no layer-4 data path: the proxy serves");
            lock(&state).unavailable = Some(reason);
            signals.stop().await;
            return Ok(());
        }
        Err(error) => return Err(failed_open(error)),
    }
    let ended = follow(&state, &mut source, &mut signals, &node).await;
    let agent = lock(&state).agent.take();
    match agent {
        Some(agent) if flags.remove_on_exit => {
            agent.remove().context("cannot remove the data path")?;
            tracing::info!("the data path is removed");
        }
        _ => tracing::info!("ends; the data path goes on without it"),
    }
    ended
}

/// Follows the objects and the links until a signal.
async fn follow(
    state: &SharedState,
    source: &mut ObjectSource,
    signals: &mut ProcessSignals,
    node: &str,
) -> Result<(), Failure> {
    let mut changes = NetworkChanges::watch().context("cannot watch the links of this node")?;
    let mut last_error = String::new();
    loop {
        let begun = Instant::now();
        let period = reconcile(state, &mut last_error);
        let not_before = Instant::now() + (begun.elapsed() * PAUSE_FACTOR).max(PAUSE);
        let network_changed = async {
            changes.changed().await;
            sleep_until(not_before).await;
        };
        tokio::select! {
            changed = source.changed() => changed.context("cannot watch files")?,
            () = network_changed => continue,
            () = sleep(period) => continue,
            signal = signals.next() => match signal {
                SignalRequest::Reload => source.expire(),
                SignalRequest::Stop => return Ok(()),
            },
        }
        load(state, source, node);
    }
}

/// Makes one pass. Returns the time until the next one.
fn reconcile(state: &SharedState, last_error: &mut String) -> Duration {
    let mut state = lock(state);
    let Some(agent) = &mut state.agent else { return PERIOD };
    let error = agent.reconcile().err().map(|error| format!("{:#}", anyhow::Error::from(error)));
    let period = match (&error, agent.is_unresolved()) {
        (None, false) => PERIOD,
        (Some(_), _) | (None, true) => UNRESOLVED_PERIOD,
    };
    let error = error.unwrap_or_default();
    if !error.is_empty() && error != *last_error {
        tracing::error!(error, "the data path stays as it is: another attempt follows");
    }
    last_error.clone_from(&error);
    state.error = error;
    period
}

/// Reads the objects. Files with an error change nothing.
fn load(state: &SharedState, source: &mut ObjectSource, node: &str) {
    let read = source.load();
    let is_kept = !read.problems.is_empty() && !source.skips_invalid();
    for problem in &read.problems {
        tracing::warn!(%problem, "error in an object");
    }
    let mut state = lock(state);
    state.problems = read.problems.iter().map(ToString::to_string).collect();
    if is_kept {
        tracing::error!("errors in the configuration: the one before stays in force");
        return;
    }
    if let Some(agent) = &mut state.agent {
        agent.plan = plan_of(&read, node);
    }
}

fn plan_of(read: &SourceObjects, node: &str) -> ServicePlan {
    service_plan::plan(&read.objects, &read.addresses, node)
}

/// Removes the data path of this node, unless an agent runs.
fn remove(config: AgentConfig, data_path: &DataPathConfig) -> Result<(), Failure> {
    let lock = NodeLock::try_take().context("cannot become the agent of this node")?;
    if lock.is_none() {
        return Err(Failure::input(
            "an agent of this node runs: end it first, or start it with --remove-on-exit",
        ));
    }
    let agent = L4Agent::open(config, data_path).map_err(failed_open)?;
    agent.remove().context("cannot remove the data path")?;
    tracing::info!("the data path is removed");
    Ok(())
}

fn failed_open(error: AgentError) -> Failure {
    let advice = match &error {
        AgentError::DataPath(L4Error::NoBpfFileSystem { .. }) => {
            ": mount one with `mount -t bpf bpf /sys/fs/bpf`, or name another folder with --pin-folder"
        }
        _ => "",
    };
    Failure::Internal(anyhow::anyhow!("{:#}{advice}", anyhow::Error::from(error)))
}

/// Returns the folder of the pins: each node has its own, for several nodes can be on one machine in tests.
fn pin_folder(flags: &L4Flags, node: &str) -> PathBuf {
    if let Some(folder) = &flags.pin_folder {
        return folder.clone();
    }
    let system = Path::new("/sys/fs/bpf");
    let is_bpf = statfs(system).is_ok_and(|it| it.f_type as u64 == BPF_MAGIC);
    let parent = if is_bpf { "/sys/fs/bpf/sheave" } else { "/run/sheave/l4" };
    // A BPF file system accepts no dot in names.
    Path::new(parent).join(node.replace('.', "_"))
}
