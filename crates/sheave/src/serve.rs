//! `sheave serve`: one thread that watches the sources, serves the admin API and handles signals, beside the workers of
//! the data plane.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use gateway::{ApiObject, TranslationSettings};
use proxy::{AccessLog, Proxy, ProxySettings};
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::admin::{self, BoundedListener};
use crate::check::pluralize;
use crate::cluster::ClusterSource;
use crate::configuration::{self, CheckedConfiguration, ConfigurationController, ErrorPolicy};
use crate::dns::DnsWatcher;
use crate::failure::Failure;
use crate::files::{CertificateFiles, FileSource, SourceContents};
use crate::flags::{AdminAddress, LoggedShare, ServeFlags};
use crate::log;
use crate::memory::MemoryTrim;
use crate::process;
use crate::ready;
use crate::replicas::SlotAssignmentUpdater;
use crate::report::{ProcessPhase, ProcessReport};
use crate::scaler;
use crate::self_signed;
use crate::shutdown::Shutdown;

/// Runs until a signal stops the process.
pub(crate) fn run(flags: ServeFlags) -> Result<(), Failure> {
    if let Some(conflict) = flags.conflict() {
        return Err(Failure::input(conflict));
    }
    log::start(flags.log_format);
    let control = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control thread")?;
    let result = control.block_on(serve(flags));
    // A drain that a second signal cuts short still blocks a thread of its own; do not wait for it.
    control.shutdown_background();
    result
}

async fn serve(flags: ServeFlags) -> Result<(), Failure> {
    let mut signals = ProcessSignals::new().context("cannot handle signals")?;
    let mut sources = ObjectSources::new(&flags).await?;
    let checked = match sources.load_now() {
        Some(contents) => Some(configuration::check(contents).map_err(rejection)?),
        None => None,
    };
    process::raise_max_descriptors();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "sheave starts");
    let proxy = Arc::new(Proxy::start(proxy_settings(&flags)).context("cannot start the workers")?);
    let (report, reported) = watch::channel(ProcessReport::new());
    let admin = start_admin(flags.admin, &proxy, reported.clone()).await?;
    let scaler = bind_scaler(flags.scaler).await?;
    let scaler_address = scaler.as_ref().map(|listener| listener.address);
    let mut replicas = flags.replica.map(|me| SlotAssignmentUpdater::new(me, Arc::clone(&proxy)));
    let names = DnsWatcher::new(flags.dns, report.clone());
    let mut configuration = ConfigurationController::new(proxy.clone(), names, report.clone());
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
        replicas.set_members(sources.replicas().unwrap_or(flags.replicas));
    }
    tokio::select! {
        applied = apply_first(&mut configuration, checked) => applied?,
        () = signals.stop() => {
            sources.resign().await;
            return Ok(());
        }
    }
    sources.publish(&report);
    // The scaler starts now, when the Services are known.
    if let Some(listener) = scaler {
        scaler::serve(listener, Arc::clone(&proxy), reported);
    }
    report.send_modify(|report| report.phase = ProcessPhase::Ready);
    if let Some(path) = &flags.ready_file {
        write_ready_file(path, admin, scaler_address, &proxy)?;
    }

    let mut trim = MemoryTrim::default();
    trim.schedule();
    let mut shutdown = Shutdown::new(proxy, flags.drain_delay, flags.drain_timeout, report.clone());
    loop {
        tokio::select! {
            changed = sources.changed() => changed.context("cannot watch files")?,
            () = configuration.follow() => {
                sources.publish(&report);
                continue;
            }
            () = follow_slot_assignment(&mut replicas) => continue,
            () = trim.trim() => continue,
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
        configuration.reload(sources.load());
        sources.publish(&report);
        trim.schedule();
        if let (Some(replicas), Some(members)) = (&mut replicas, sources.replicas()) {
            replicas.set_members(members);
        }
    }
}

/// Waits until the slot assignment changes, and applies it.
async fn follow_slot_assignment(replicas: &mut Option<SlotAssignmentUpdater>) {
    match replicas {
        Some(replicas) => replicas.wait_and_apply().await,
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
}

impl ObjectSources {
    async fn new(flags: &ServeFlags) -> Result<Self, Failure> {
        let mut objects = flags.shorthand.objects()?;
        if flags.shorthand.needs_certificate() {
            objects.push(self_signed::secret(proxy::clock::wall())?);
        }
        let limits = "cannot watch files; `sysctl fs.inotify` shows the limits";
        let files = FileSource::new(flags.config.clone()).context(limits)?;
        let certificates = CertificateFiles::new(flags.shorthand.pairs()).context(limits)?;
        let drain = flags.drain_delay + flags.drain_timeout;
        let cluster =
            ClusterSource::connect(&flags.cluster, translation_settings(flags), drain).await?;
        Ok(Self { objects, files, cluster, certificates })
    }

    /// Returns the content that is available without waiting; `None` if a cluster is a source.
    fn load_now(&mut self) -> Option<SourceContents> {
        self.cluster.is_none().then(|| self.load())
    }

    /// Returns the content after the initial lists of the cluster are complete.
    async fn load_first(&mut self) -> SourceContents {
        tracing::info!("waiting for the initial lists of the cluster");
        if let Some(cluster) = &mut self.cluster {
            cluster.changed().await;
        }
        self.load()
    }

    fn load(&mut self) -> SourceContents {
        let (mut contents, certificates) = (self.files.load(), self.certificates.load());
        if let Some(cluster) = &mut self.cluster {
            let of_cluster = cluster.load();
            contents.objects.extend(of_cluster.objects);
            contents.problems.extend(of_cluster.problems);
            (contents.settings, contents.error_policy) =
                (of_cluster.settings, of_cluster.error_policy);
        }
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

    /// Returns the replicas that share fixed limits, if the cluster is the source.
    fn replicas(&self) -> Option<Vec<SocketAddr>> {
        self.cluster.as_ref()?.replicas()
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

/// Request made by a signal.
enum SignalRequest {
    Reload,
    Stop,
}

struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl ProcessSignals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }

    async fn stop(&mut self) {
        while let SignalRequest::Reload = self.next().await {}
    }
}

/// Returns the settings of translations of a cluster. Objects of the cluster must not name addresses of this process.
fn translation_settings(flags: &ServeFlags) -> TranslationSettings {
    let mut settings = flags.cluster.translation_settings();
    let filter = &mut settings.address_filter;
    filter.add_own(process::interface_addresses());
    filter.add_own(flags.replica.map(|replica| replica.ip()));
    for address in [flags.admin, flags.scaler] {
        if let AdminAddress::At(address) = address {
            filter.add_private_port(address.port());
        }
    }
    settings
}

fn proxy_settings(flags: &ServeFlags) -> ProxySettings {
    let workers = flags.workers.or_else(|| thread::available_parallelism().ok());
    let access_log = match flags.access_log {
        LoggedShare::Nothing => None,
        LoggedShare::Fraction(sample) => Some(AccessLog { sample, output: Box::new(io::stdout()) }),
    };
    let workers = workers.unwrap_or(NonZeroUsize::MIN);
    ProxySettings { workers, access_log, exemplars: flags.exemplars }
}

/// Binds the admin address and serves the API on it; returns the bound address.
async fn start_admin(
    address: AdminAddress,
    proxy: &Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
) -> Result<Option<SocketAddr>, Failure> {
    match address {
        AdminAddress::Off => Ok(None),
        AdminAddress::At(address) => Ok(Some(admin::start(address, proxy.clone(), report).await?)),
    }
}

async fn bind_scaler(address: AdminAddress) -> Result<Option<BoundedListener>, Failure> {
    match address {
        AdminAddress::Off => Ok(None),
        AdminAddress::At(address) => Ok(Some(BoundedListener::bind(address, "--scaler").await?)),
    }
}

/// Applies the first configuration as a whole or not at all, unless its error policy is to skip invalid objects.
async fn apply_first(
    configuration: &mut ConfigurationController,
    checked: CheckedConfiguration,
) -> Result<(), Failure> {
    let errors = checked.error_policy;
    let unbound = configuration.apply_first(checked).await;
    if unbound.is_empty() {
        return Ok(());
    }
    if errors == ErrorPolicy::SkipInvalid {
        unbound.iter().for_each(|sentence| tracing::error!("{sentence}"));
        return Ok(());
    }
    Err(Failure::Input(unbound.into_iter().map(|sentence| format!("sheave: {sentence}")).collect()))
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
    admin: Option<SocketAddr>,
    scaler: Option<SocketAddr>,
    proxy: &Proxy,
) -> Result<(), Failure> {
    ready::write(path, admin, scaler, proxy).map_err(|error| {
        let path = path.display();
        Failure::input(format_args!("cannot write --ready-file {path}: {error}"))
    })
}
