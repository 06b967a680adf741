//! `sheave serve`: one thread that watches the sources, serves the admin API and handles signals, beside the workers of
//! the data plane.

use std::env;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ::xds::ResourcePublisher;
use anyhow::Context;
use gateway::{ApiObject, LoadBalancerSettings, TranslationSettings};
use kube::{EventRecorder, OwnSecret};
use proxy::trace::TraceSettings;
use proxy::{AccessLog, Proxy, ProxySettings};
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::admin::{self, ApiState, BoundedListener, ComponentStatuses, ServedHosts};
use crate::check::pluralize;
use crate::cluster::ClusterSource;
use crate::configuration::{self, CheckedConfiguration, ConfigurationController};
use crate::dns::DnsWatcher;
use crate::failure::Failure;
use crate::files::{CertificateFiles, FileSource, SourceContents};
use crate::flags::{AdminAddress, LoggedShare, MemoryLimit, ReplicaFlags, ServeFlags};
use crate::log::{self, DroppedEvents};
use crate::memory::MemoryTrim;
use crate::memory_limit;
use crate::metrics_api;
use crate::node_pods::NodePods;
use crate::process;
use crate::ready::{self, ProcessAddresses};
use crate::replicas::ReplicaSlots;
use crate::report::{ProcessPhase, ProcessReport};
use crate::scaler;
use crate::self_signed;
use crate::shutdown::Shutdown;
use crate::signals::{ProcessSignals, SignalRequest};
use crate::traces::{PreparedExporter, TraceExporter};
use crate::transparent::{AgentHandle, PreparedAgent};
use crate::upgrade::{InheritedSockets, ProcessSocket, ProcessSuccession};
use crate::xds::{self, PreparedServer};

/// Runs until a signal stops the process.
pub(crate) fn run(flags: ServeFlags) -> Result<(), Failure> {
    if let Some(conflict) = flags.conflict() {
        return Err(Failure::input(conflict));
    }
    let log = log::start(flags.log_format)?;
    let (exporter, traces) = match trace_configuration(&flags)? {
        Some(configuration) => {
            let (exporter, settings) = TraceExporter::start(configuration)?;
            (Some(exporter), Some(settings))
        }
        None => (None, None),
    };
    let control = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control thread")?;
    let result = control.block_on(serve(flags, traces, log.dropped()));
    // A drain that a second signal cuts short still blocks a thread of its own; do not wait for it.
    control.shutdown_background();
    if let Some(exporter) = exporter {
        exporter.finish();
    }
    result
}

async fn serve(
    flags: ServeFlags,
    traces: Option<TraceSettings>,
    dropped_events: Arc<DroppedEvents>,
) -> Result<(), Failure> {
    let mut signals = ProcessSignals::new().context("cannot handle signals")?;
    let prepared = PreparedAgent::open(&flags).await?;
    let agent = prepared.as_ref().map(PreparedAgent::handle);
    let mut sources = ObjectSources::new(&flags, agent.as_ref()).await?;
    let checked = match sources.load_now().await {
        Some(contents) => Some(configuration::check(contents).map_err(rejection)?),
        None => None,
    };
    process::raise_max_descriptors();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "sheave starts");
    let settings = ProxySettings { traces, ..proxy_settings(&flags, agent.as_ref())? };
    let proxy = Arc::new(Proxy::start(settings).context("cannot start the workers")?);
    let (report, reported) = watch::channel(ProcessReport::new());
    let (mut succession, inherited) = match &flags.upgrade_socket {
        Some(path) => ProcessSuccession::begin(path, &proxy)?,
        None => Default::default(),
    };
    let mut servers = ProcessServers { inherited, ..ProcessServers::default() };
    let secret = sources.replica_secret(&flags.replica);
    let has_predecessor = flags.upgrade_socket.is_some();
    let mut replicas = ReplicaSlots::start(&flags.replica, secret, &proxy, has_predecessor)?;
    let xds_publisher = flags.xds.address().map(|_| Arc::<ResourcePublisher>::default());
    let statuses = ComponentStatuses {
        agent: agent.as_ref().map(AgentHandle::status),
        replicas: replicas.as_ref().and_then(ReplicaSlots::status),
        xds: xds_publisher.clone(),
    };
    let state = ApiState::new(Arc::clone(&proxy), reported.clone(), dropped_events, statuses);
    servers.start_admin(&flags, state).await?;
    let scaler = servers.bind(flags.scaler, "--scaler", scaler::REQUEST_TIMEOUT).await?;
    servers.addresses.scaler = scaler.as_ref().map(|listener| listener.address);
    let metrics_api = match flags.metrics_api.metrics_api {
        AdminAddress::Off => None,
        AdminAddress::At(address) => Some(metrics_api::bind(address).await?),
    };
    servers.addresses.metrics_api = metrics_api.as_ref().map(|listener| listener.address);
    let xds_listener = servers.bind(flags.xds.xds, "--xds", xds::REQUEST_TIMEOUT).await?;
    servers.addresses.xds = xds_listener.as_ref().map(|listener| listener.address);
    let xds_server = match (xds_listener, &xds_publisher) {
        (Some(listener), Some(publisher)) => {
            Some(PreparedServer::new(listener, &flags.xds, Arc::clone(publisher))?)
        }
        _ => None,
    };
    let names = DnsWatcher::new(flags.dns, report.clone());
    let mut configuration =
        ConfigurationController::new(proxy.clone(), names, agent.clone(), report.clone())
            .with_xds(xds_publisher.clone());
    let checked = match checked {
        Some(checked) => checked,
        None => tokio::select! {
            contents = sources.load_first() => configuration::check(contents).map_err(rejection)?,
            () = signals.stop() => {
                sources.resign().await;
                return Ok(());
            }
        },
    };
    // Before serving starts: until other replicas are known, this replica has each limit to itself.
    if let Some(replicas) = &mut replicas {
        let members = sources.replicas().unwrap_or(flags.replica.replicas);
        replicas.set_members(members, xds_publisher.as_deref());
    }
    tokio::select! {
        applied = apply_first(&mut configuration, checked) => applied?,
        () = signals.stop() => {
            sources.resign().await;
            return Ok(());
        }
    }
    sources.publish(&report);
    let mut pods = sources.node_pods(&proxy, agent.as_ref());
    if let Some(pods) = &mut pods {
        pods.load().await;
    }
    if let (Some(prepared), Some(events)) = (prepared, sources.events()) {
        prepared.start(&proxy, events)?;
    }
    // The scaler, the API of metrics and the xDS server start now, when the Services are known.
    if let Some(server) = xds_server {
        servers.tasks.push(server.serve(Arc::clone(&proxy), reported.clone()));
    }
    if let Some(listener) = scaler {
        servers.tasks.push(scaler::serve(listener, Arc::clone(&proxy), reported));
    }
    if let (Some(listener), Some(cluster)) = (metrics_api, &sources.cluster) {
        let cluster = cluster.metrics_api(&flags.metrics_api);
        servers.tasks.push(metrics_api::serve(listener, cluster, Arc::clone(&proxy)));
    }
    if let Some(cluster) = sources.cluster.as_mut().filter(|_| flags.cluster.pod_deletion_cost) {
        cluster.write_deletion_costs(Arc::clone(&proxy));
    }
    report.send_modify(|report| report.phase = ProcessPhase::Ready);
    if let Some(path) = &flags.ready_file {
        write_ready_file(path, servers.addresses, &proxy)?;
    }
    if let Some(path) = &flags.upgrade_socket {
        succession.take_over(path, &proxy, std::mem::take(&mut servers.sockets))?;
    }

    let mut trim = MemoryTrim::default();
    trim.schedule();
    let mut shutdown = Shutdown::new(
        Arc::clone(&proxy),
        flags.drain_delay,
        flags.drain_timeout,
        report.clone(),
        agent,
    );
    loop {
        tokio::select! {
            changed = sources.changed() => changed.context("cannot watch files")?,
            () = configuration.follow() => {
                sources.publish(&report);
                continue;
            }
            () = follow_pods(&mut pods) => continue,
            () = follow_replicas(&mut replicas) => continue,
            () = trim.trim() => continue,
            () = succession.next_handover(&proxy) => {
                servers.stop();
                if let Some(replicas) = &mut replicas {
                    replicas.close_channel();
                }
                shutdown.begin_handover();
                continue;
            }
            ended = shutdown.wait_until_drained() => return ended,
            signal = signals.next() => match signal {
                SignalRequest::Reload => sources.expire(),
                SignalRequest::Stop => {
                    shutdown.begin()?;
                    sources.resign().await;
                    continue;
                }
            },
        }
        configuration.reload(sources.load().await);
        sources.publish(&report);
        trim.schedule();
        if let (Some(replicas), Some(members)) = (&mut replicas, sources.replicas()) {
            replicas.set_members(members, xds_publisher.as_deref());
        }
    }
}

/// Waits until slots or certificates of replicas change, and applies that.
async fn follow_replicas(replicas: &mut Option<ReplicaSlots>) {
    match replicas {
        Some(replicas) => replicas.wait_and_apply().await,
        None => pending().await,
    }
}

/// Waits until pods of this node come or go, and hands them over.
async fn follow_pods(pods: &mut Option<NodePods>) {
    match pods {
        Some(pods) => pods.wait_and_apply().await,
        None => pending().await,
    }
}

/// Sources of Kubernetes objects.
struct ObjectSources {
    /// Objects built from flags.
    objects: Vec<ApiObject>,
    files: FileSource,
    cluster: Option<ClusterSource>,
    /// Files of `--cert` and `--key`.
    certificates: CertificateFiles,
    /// True if there may be clients that choose endpoints themselves.
    proxyless: bool,
}

impl ObjectSources {
    async fn new(flags: &ServeFlags, agent: Option<&AgentHandle>) -> Result<Self, Failure> {
        let mut objects = flags.shorthand.objects()?;
        if flags.shorthand.needs_certificate() {
            objects.push(self_signed::secret(proxy::clock::wall())?);
        }
        let limits = "cannot watch files; `sysctl fs.inotify` shows the limits";
        let files = FileSource::new(flags.config.clone()).context(limits)?;
        let certificates = CertificateFiles::new(flags.shorthand.pairs()).context(limits)?;
        let cluster = ClusterSource::connect(flags, translation_settings(flags, agent)).await?;
        let proxyless = flags.xds.address().is_some();
        Ok(Self { objects, files, cluster, certificates, proxyless })
    }

    /// Returns the content that is available without waiting; `None` if a cluster is a source.
    async fn load_now(&mut self) -> Option<SourceContents> {
        if self.cluster.is_some() {
            return None;
        }
        Some(self.load().await)
    }

    /// Returns the content after the initial lists of the cluster are complete.
    async fn load_first(&mut self) -> SourceContents {
        tracing::info!("waiting for the initial lists of the cluster");
        if let Some(cluster) = &mut self.cluster {
            cluster.changed().await;
        }
        self.load().await
    }

    async fn load(&mut self) -> SourceContents {
        let (mut contents, certificates) = (self.files.load(), self.certificates.load());
        if let Some(cluster) = &mut self.cluster {
            let of_cluster = cluster.load(&contents.objects).await;
            contents.objects.extend(of_cluster.objects);
            contents.problems.extend(of_cluster.problems);
            (contents.settings, contents.error_policy) =
                (of_cluster.settings, of_cluster.error_policy);
        }
        contents.settings.proxyless = self.proxyless;
        let objects = self.objects.iter().cloned().chain(certificates.objects);
        contents.objects.splice(0..0, objects);
        contents.problems.splice(0..0, certificates.problems);
        contents
    }

    /// Waits until there is something to load. Cancel-safe.
    async fn changed(&mut self) -> io::Result<()> {
        let cluster = async {
            match &mut self.cluster {
                Some(cluster) => cluster.changed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = self.files.changed() => changed,
            changed = self.certificates.changed() => changed,
            () = cluster => Ok(()),
        }
    }

    /// Returns the recorder of Events, if the cluster is the source.
    fn events(&self) -> Option<EventRecorder> {
        self.cluster.as_ref().map(ClusterSource::events)
    }

    /// Returns the pods of this node, in transparent mode.
    fn node_pods(&self, proxy: &Arc<Proxy>, agent: Option<&AgentHandle>) -> Option<NodePods> {
        Some(NodePods::new(self.cluster.as_ref()?.node()?, proxy, agent?))
    }

    /// Returns the replicas that share fixed limits, if the cluster is the source.
    fn replicas(&self) -> Option<Vec<SocketAddr>> {
        self.cluster.as_ref()?.replicas()
    }

    /// Returns the Secret with the authorities of replicas, if a flag names one.
    fn replica_secret(&self, flags: &ReplicaFlags) -> Option<OwnSecret> {
        Some(self.cluster.as_ref()?.own_secret(flags.replica_secret.as_deref()?))
    }

    /// Hands the statuses of objects over, to be written to the cluster.
    fn publish(&mut self, report: &watch::Sender<ProcessReport>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.publish(&report.borrow());
            report.send_modify(|report| report.nodes = cluster.nodes());
        }
    }

    /// Gives up leadership, so that another replica writes statuses: this process shuts down.
    async fn resign(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.resign().await;
        }
    }

    fn expire(&mut self) {
        self.files.expire();
        self.certificates.expire();
    }
}

/// Returns the settings of translations of a cluster. Objects of the cluster must not name addresses of this process.
fn translation_settings(flags: &ServeFlags, agent: Option<&AgentHandle>) -> TranslationSettings {
    let mut settings = flags.cluster.translation_settings();
    settings.transparent = agent.map(AgentHandle::translation_settings);
    settings.proxyless = flags.xds.address().is_some();
    settings.load_balancer = flags.cluster.load_balancer.then(|| LoadBalancerSettings {
        is_default: flags.cluster.default_load_balancer,
        node: flags.transparent.node_name().into(),
        ..LoadBalancerSettings::default()
    });
    let filter = &mut settings.address_filter;
    filter.add_own(process::interface_addresses());
    if let Some(me) = flags.replica.replica {
        filter.add_own([me.ip()]);
        if flags.replica.lease_slots {
            filter.add_private_port(flags.replica.port_of(me));
        }
    }
    let others = [flags.scaler, flags.metrics_api.metrics_api, flags.xds.xds];
    for address in [flags.admin, flags.probes].into_iter().chain(others) {
        if let AdminAddress::At(address) = address {
            filter.add_private_port(address.port());
        }
    }
    if agent.is_some() {
        // A connection to an own port of taken connections would lead back here.
        flags.transparent.transparent_ports.iter().for_each(|port| filter.add_private_port(port));
    }
    settings
}

/// Returns the exporter of traces before its start; `None`: there is no collector.
fn trace_configuration(flags: &ServeFlags) -> Result<Option<PreparedExporter>, Failure> {
    let variable = |name: &str| env::var(name).ok();
    let workers = flags.workers.or_else(|| thread::available_parallelism().ok());
    let workers = workers.map_or(1, NonZeroUsize::get);
    let prepared = PreparedExporter::new(&flags.traces, variable, process::host_name(), workers);
    prepared.map_err(Failure::input)
}

fn proxy_settings(
    flags: &ServeFlags,
    agent: Option<&AgentHandle>,
) -> Result<ProxySettings, Failure> {
    let workers = flags.workers.or_else(|| thread::available_parallelism().ok());
    let access_log = match flags.access_log {
        LoggedShare::Nothing => None,
        LoggedShare::Fraction(sample) => Some(AccessLog { sample, output: Box::new(io::stdout()) }),
    };
    let workers = workers.unwrap_or(NonZeroUsize::MIN);
    let affinity_key = flags.affinity_key_file.as_deref().map(read_affinity_key).transpose()?;
    Ok(ProxySettings {
        workers,
        access_log,
        exemplars: flags.exemplars,
        traces: None,
        affinity_key,
        interceptor: agent.map(AgentHandle::interceptor),
        leases_slots: flags.replica.lease_slots,
        memory_limit: match flags.memory_limit {
            MemoryLimit::Auto => memory_limit::detect(),
            MemoryLimit::Off => None,
            MemoryLimit::Bytes(bytes) => Some(bytes),
        },
        max_descriptors: process::max_descriptors(),
    })
}

/// Reads the key of session affinity.
fn read_affinity_key(path: &Path) -> Result<Vec<u8>, Failure> {
    const SIZES: RangeInclusive<usize> = 16..=4096;
    let invalid = |message: String| {
        Failure::Input(vec![format!("--affinity-key-file {}: {message}", path.display())])
    };
    let file = File::open(path).map_err(|error| invalid(error.to_string()))?;
    let mut key = Vec::new();
    // One byte more than allowed shows that the file is too long.
    let limited = file.take(*SIZES.end() as u64 + 1).read_to_end(&mut key);
    limited.map_err(|error| invalid(error.to_string()))?;
    if !SIZES.contains(&key.len()) {
        return Err(invalid("must have 16 to 4096 bytes".to_owned()));
    }
    Ok(key)
}

/// The admin API, the probes and the scaler.
#[derive(Default)]
struct ProcessServers {
    /// Sockets of the previous process.
    inherited: InheritedSockets,
    addresses: ProcessAddresses,
    /// Duplicates of the sockets, for the next process.
    sockets: Vec<ProcessSocket>,
    /// Tasks that accept connections.
    tasks: Vec<AbortHandle>,
}

impl ProcessServers {
    /// Binds the address of a flag; returns `None` if it is off.
    async fn bind(
        &mut self,
        address: AdminAddress,
        flag: &str,
        request_timeout: Duration,
    ) -> Result<Option<BoundedListener>, Failure> {
        let AdminAddress::At(address) = address else { return Ok(None) };
        let inherited = self.inherited.take(flag);
        let listener = BoundedListener::bind(address, flag, request_timeout, inherited).await?;
        let socket = ProcessSocket::of_flag(flag, &listener);
        self.sockets.push(socket.with_context(|| format!("the socket of {flag}"))?);
        Ok(Some(listener))
    }

    /// Serves the admin API and the probes.
    async fn start_admin(&mut self, flags: &ServeFlags, state: ApiState) -> Result<(), Failure> {
        let health = state.health();
        let names = flags.admin_host.iter().cloned().chain([process::host_name()]);
        let hosts = ServedHosts::new(names);
        if flags.admin != AdminAddress::Off {
            self.tasks.push(tokio::spawn(state.recorder().run()).abort_handle());
        }
        match (flags.admin, self.bind(flags.admin, "--admin", admin::REQUEST_TIMEOUT).await) {
            (_, Ok(None)) => {}
            (_, Ok(Some(listener))) => {
                self.addresses.admin = Some(listener.address);
                self.tasks.push(admin::serve(listener, hosts, state));
            }
            (AdminAddress::At(address), Err(_)) if flags.transparent.transparent => {
                let serving = tokio::spawn(admin::serve_when_free(address, hosts, state));
                self.tasks.push(serving.abort_handle());
            }
            (_, Err(failure)) => return Err(failure),
        }
        if let Some(listener) = self.bind(flags.probes, "--probes", admin::REQUEST_TIMEOUT).await? {
            self.addresses.probes = Some(listener.address);
            self.tasks.push(admin::serve_probes(listener, health));
        }
        Ok(())
    }

    /// Stops accepting connections; the open ones continue.
    fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

/// Applies the first configuration as a whole or not at all, unless its error policy is to skip invalid objects.
async fn apply_first(
    configuration: &mut ConfigurationController,
    checked: CheckedConfiguration,
) -> Result<(), Failure> {
    let unbound = configuration.apply_first(checked).await.map_err(|errors| {
        let sentences = errors.iter().map(configuration::with_advice);
        Failure::Input(sentences.map(|sentence| format!("sheave: {sentence}")).collect())
    })?;
    unbound.iter().for_each(|sentence| tracing::error!("{sentence}"));
    Ok(())
}

fn rejection(problems: Vec<gateway::ObjectProblem>) -> Failure {
    let mut lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.push(format!(
        "sheave: {} in the configuration: nothing is served",
        pluralize(lines.len(), "error")
    ));
    Failure::Input(lines)
}

fn write_ready_file(
    path: &Path,
    addresses: ProcessAddresses,
    proxy: &Proxy,
) -> Result<(), Failure> {
    ready::write(path, addresses, proxy).map_err(|error| {
        let path = path.display();
        Failure::input(format_args!("cannot write --ready-file {path}: {error}"))
    })
}
