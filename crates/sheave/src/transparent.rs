//! Transparent mode: connections to the ClusterIPs of annotated Services are taken by rules of this node's kernel.
//!
//! Three threads run beside the workers: that of the rules, that of their lease, and one that reads what takes long. If
//! anything of it fails after the start, kube-proxy serves and the process goes on; `docs/internals/transparent.md` has
//! the mechanism.

/// Addresses of the node.
mod node_address;
/// Sockets for taken connections.
mod sockets;
/// Marks of clients.
mod client_marks;
/// Clients of this node.
mod local_clients;
/// Work for the thread of the rules.
mod command_queue;
/// The thread of the rules.
mod control_thread;
/// The thread of the rules' lease.
mod lease_thread;
/// Failures of the kernel's rules.
mod kernel_failures;
/// When each worker has ticked.
mod worker_watch;
/// The thread that reads what takes long.
mod survey_thread;
/// When connections that bypass are counted and reset.
mod adoption;
/// Random times.
mod random;
/// The data plane's side.
mod interceptor;
/// State for probes, metrics and the admin API.
mod agent_status;
/// Metrics.
mod metrics;
/// Events.
mod events;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use gateway::TransparentSettings;
use gateway::transparent::{AdoptMode, TransparentService};
use intercept::{
    InterceptError, LEASE_TIMEOUT, MarkRange, ProxyAddresses, RuleTable, RuleTableConfig,
    TableLease,
};
use ipnet::IpNet;
use kube::{EventRecorder, ObjectEvent};
use proxy::{ConnectionInterceptor, Proxy};

use crate::cluster;
use crate::failure::Failure;
use crate::flags::{ServeFlags, TransparentFlags};
use crate::process;
pub(crate) use agent_status::AgentStatus;
use client_marks::ClientMarks;
pub(crate) use command_queue::TakenServices;
use command_queue::{AgentStage, CommandQueue};
use control_thread::{AgentParts, ControlThread};
use interceptor::NodeInterceptor;
use lease_thread::LeaseThread;
use local_clients::LocalClients;
pub(crate) use metrics::TRANSPARENT_METRICS;
use sockets::BoundSockets;
use survey_thread::{SurveyConfig, SurveyThread};

/// Time for which connections that the kernel has already translated arrive after the rules were withdrawn.
pub(crate) const ARRIVAL_TIME: Duration = Duration::from_millis(300);
/// Time for which a new configuration waits until the kernel has given up the addresses that it no longer has.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for which the end of the process waits for the thread of the rules.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Attempts to make the table, and the pause between them: that of a process which has just been killed may still be
/// there.
const OPEN_ATTEMPTS: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// Transparent mode before the workers run: its sockets and its table are there, and take nothing.
pub(crate) struct PreparedAgent {
    table: RuleTable,
    lease: TableLease,
    sockets: BoundSockets,
    handle: AgentHandle,
    survey: SurveyConfig,
}

/// Transparent mode of this process. Clones are handles on the same.
#[derive(Clone)]
pub(crate) struct AgentHandle {
    node: Arc<str>,
    marks: MarkRange,
    clients: Arc<Mutex<ClientMarks>>,
    local: Arc<LocalClients>,
    queue: Arc<CommandQueue>,
    status: Arc<AgentStatus>,
    addresses: ProxyAddresses,
}

impl PreparedAgent {
    /// Binds the sockets and makes the table if the flags ask for transparent mode. An error is an Event too, if the
    /// API server answers.
    pub(crate) async fn open(flags: &ServeFlags) -> Result<Option<Self>, Failure> {
        if !flags.transparent.transparent {
            return Ok(None);
        }
        let node = flags.transparent.node_name();
        // Nothing else runs yet, so this thread may wait for the kernel.
        match Self::open_at(&node, &flags.transparent, flags.drain_delay + flags.drain_timeout) {
            Ok(agent) => Ok(Some(agent)),
            Err(failure) => {
                if let Failure::Input(lines) = &failure {
                    report_failed_start(flags, &node, &lines.join(" ")).await;
                }
                Err(failure)
            }
        }
    }

    fn open_at(node: &str, flags: &TransparentFlags, drain: Duration) -> Result<Self, Failure> {
        let ports = flags.transparent_ports;
        let sockets = sockets::bind(&flags.transparent_addresses, ports)?;
        let config = RuleTableConfig::new(sockets.addresses);
        let (name, marks) = (config.name.clone(), config.marks);
        let table = open_table(config)?;
        let lease = table.open_lease().map_err(failed_start)?;
        let status = Arc::new(AgentStatus::default());
        let own: BTreeSet<SocketAddr> = sockets.addresses.iter().collect();
        forget_dead(&own, &sockets.free, &status);
        let mut details = status.details();
        details.node = node.to_owned();
        details.proxy_addresses = own.iter().copied().collect();
        drop(details);
        tracing::info!(node, addresses = ?own, table = name, "transparent mode");
        let handle = AgentHandle {
            node: node.into(),
            marks,
            clients: Arc::new(Mutex::new(ClientMarks::new(marks))),
            local: Arc::default(),
            queue: Arc::default(),
            status,
            addresses: sockets.addresses,
        };
        let ips: BTreeSet<IpAddr> = own.iter().map(SocketAddr::ip).collect();
        let at_port = |port| ips.iter().map(move |ip| SocketAddr::new(*ip, port));
        let agents = ports.iter().flat_map(at_port).collect();
        // Until the kubelet has replaced the other one, and for what it does at its end.
        let handover = drain + Duration::from_secs(10);
        let survey = SurveyConfig { table: name, own, agents, handover };
        Ok(Self { table, lease, sockets, handle, survey })
    }

    pub(crate) fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }

    /// Begins to take connections: the proxy has its first configuration.
    pub(crate) fn start(self, proxy: &Arc<Proxy>, events: EventRecorder) -> Result<(), Failure> {
        let Self { table, lease, sockets, handle, survey } = self;
        let accepting = proxy.accept_intercepted(sockets.listeners);
        accepting.context("cannot accept taken connections")?;
        let parts = AgentParts {
            queue: Arc::clone(&handle.queue),
            clients: Arc::clone(&handle.clients),
            local: Arc::clone(&handle.local),
            status: Arc::clone(&handle.status),
            node: handle.node.to_string(),
            events,
        };
        let counted = Arc::clone(proxy);
        let counts = Box::new(move || counted.interception_counts());
        let control = ControlThread::new(table, parts.clone());
        let lease = LeaseThread::new(lease, parts.clone(), counts);
        let survey = SurveyThread::new(parts, survey);
        start_thread("rules", move || control.run())?;
        start_thread("lease", move || lease.run())?;
        start_thread("survey", move || survey.run())
    }
}

impl AgentHandle {
    /// Returns the settings of translations: the zone is not known yet.
    pub(crate) fn translation_settings(&self) -> TransparentSettings {
        let (ipv4, ipv6) = (self.addresses.ipv4.is_some(), self.addresses.ipv6.is_some());
        TransparentSettings { node: Arc::clone(&self.node), zone: None, ipv4, ipv6 }
    }

    /// Returns what the data plane asks.
    pub(crate) fn interceptor(&self) -> Arc<dyn ConnectionInterceptor> {
        Arc::new(NodeInterceptor {
            marks: self.marks,
            clients: Arc::clone(&self.clients),
            queue: Arc::clone(&self.queue),
        })
    }

    pub(crate) fn status(&self) -> Arc<AgentStatus> {
        Arc::clone(&self.status)
    }

    /// Sets the addresses of this node's pods, and the networks from which they come: clients there keep their address.
    pub(crate) fn set_local_clients(&self, pods: HashSet<IpAddr>, ranges: Vec<IpNet>) {
        self.local.set(pods, ranges);
    }

    /// Gives up the addresses that a new configuration does not have, before it is in force: the data plane resets what
    /// it does not know. Waits for the kernel, but only for a short time.
    pub(crate) fn release(&self, services: &[TransparentService]) {
        let (current, wanted) = (self.queue.services(), taken_services(services));
        if current.addresses.is_subset(&wanted.addresses) {
            return;
        }
        let generation = self.queue.set_services(TakenServices {
            addresses: &current.addresses & &wanted.addresses,
            resets: &current.resets & &wanted.resets,
        });
        if !self.queue.wait_until_applied(generation, RELEASE_TIMEOUT) {
            tracing::warn!("the kernel has not given up addresses of Services in time");
        }
    }

    /// Takes the addresses of a configuration that is in force.
    pub(crate) fn take(&self, services: &[TransparentService]) {
        self.queue.set_services(taken_services(services));
        let mut findings = BTreeMap::new();
        for service in services {
            for finding in &service.findings {
                let object = format!("{}/{}", service.namespace, service.name);
                let of_reason: &mut BTreeSet<_> = findings.entry(finding.reason).or_default();
                of_reason.insert((object, finding.message.clone()));
            }
        }
        self.status.details().set_service_findings(findings);
    }

    /// Ends the rules at the start of a shutdown: new connections take the way of kube-proxy.
    pub(crate) fn withdraw(&self) {
        self.status.is_leaving.store(true, Ordering::Relaxed);
        self.queue.enter(AgentStage::Withdrawn);
        tracing::info!("the rules are withdrawn: kube-proxy serves new connections");
    }

    /// Waits until new connections take the way of kube-proxy, if another program's change of rules delays that. Waits
    /// for the kernel, or for the end of the lease.
    pub(crate) fn wait_until_withdrawn(&self) {
        if !self.queue.wait_until_left(Duration::ZERO) {
            // It is no longer renewed.
            self.queue.wait_until_left(LEASE_TIMEOUT);
            thread::sleep(ARRIVAL_TIME);
        }
    }

    /// Removes the rules after the drain, and then what the kernel remembers of connections to this process. Waits for
    /// the kernel.
    pub(crate) fn end(&self) {
        self.queue.enter(AgentStage::Ended);
        if !self.queue.wait_until_ended(END_TIMEOUT) {
            tracing::warn!(
                "the kernel has not removed the rules yet: it does so when the process ends"
            );
        }
        forget_dead(&self.addresses.iter().collect(), &BTreeSet::new(), &self.status);
    }
}

/// Returns the Events of what is not taken of Services.
pub(crate) fn service_events(services: &[TransparentService]) -> Vec<ObjectEvent> {
    events::of_services(services)
}

fn taken_services(services: &[TransparentService]) -> TakenServices {
    let addresses = |is_meant: fn(&&TransparentService) -> bool| {
        services
            .iter()
            .filter(is_meant)
            .flat_map(|service| service.addresses.iter().copied())
            .collect()
    };
    TakenServices {
        addresses: addresses(|_| true),
        resets: addresses(|service| service.adopt == AdoptMode::Reset),
    }
}

/// Makes the table. A process that was killed a moment ago may still have one of the same name.
fn open_table(config: RuleTableConfig) -> Result<RuleTable, Failure> {
    for _ in 1..OPEN_ATTEMPTS {
        match RuleTable::open(config.clone()) {
            Err(InterceptError::ForeignTable { .. }) => thread::sleep(OPEN_PAUSE),
            result => return result.map_err(failed_start),
        }
    }
    RuleTable::open(config).map_err(failed_start)
}

fn failed_start(error: InterceptError) -> Failure {
    let advice = match error {
        InterceptError::MissingCapability => ": run it as root, or give it CAP_NET_ADMIN",
        InterceptError::ForeignTable { .. } => {
            ": delete it if no program needs it, or choose other --transparent-ports"
        }
        _ => "",
    };
    Failure::input(format_args!("{:#}{advice}", anyhow::Error::from(error)))
}

/// Deletes what the kernel remembers of connections to agents that are gone. Without it a client that uses its port
/// again is refused once; no more, so an error is a warning.
fn forget_dead(own: &BTreeSet<SocketAddr>, free: &BTreeSet<SocketAddr>, status: &AgentStatus) {
    match survey_thread::forget_dead_agents(&(own | free)) {
        Ok(count) => _ = status.dead_entries.fetch_add(count, Ordering::Relaxed),
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(error, "cannot delete connections to agents that are gone");
        }
    }
}

/// Reports that transparent mode cannot start, if the API server answers in a short time.
async fn report_failed_start(flags: &ServeFlags, node: &str, message: &str) {
    let Ok(cluster) = cluster::connect().await else { return };
    let instance = flags.cluster.identity.clone().unwrap_or_else(process::host_name);
    let event = events::of_node(node, events::NOT_STARTED, message.to_owned());
    kube::write_last_event(&cluster, &flags.cluster.controller, &instance, &event).await;
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    Ok(started.map(drop).with_context(|| format!("cannot start the thread {name}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_all_services_are_taken_and_some_adopted() {
        let service = |name: &str, address: &str, adopt| TransparentService {
            namespace: "shop".into(),
            name: name.into(),
            uid: None,
            addresses: vec![address.parse().unwrap()],
            adopt,
            findings: Vec::new(),
        };
        let taken = taken_services(&[
            service("a", "10.96.0.1:80", AdoptMode::New),
            service("b", "10.96.0.2:80", AdoptMode::Reset),
        ]);
        assert_eq!(taken.addresses.len(), 2);
        assert_eq!(taken.resets, ["10.96.0.2:80".parse().unwrap()].into());
    }
}
