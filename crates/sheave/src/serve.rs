//! `sheave serve`: one thread that watches, answers the admin API and obeys signals, beside the workers of the data
//! plane.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use gateway::ApiObject;
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

/// Runs until a signal ends it.
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
    // A drain that a second signal cut short still waits on a thread of its own: nobody waits for that.
    control.shutdown_background();
    result
}

async fn serve(flags: ServeFlags) -> Result<(), Failure> {
    let mut signals = ProcessSignals::new().context("cannot take signals")?;
    let mut sources = ObjectSources::new(&flags).await?;
    let checked = match sources.load_now() {
        Some(contents) => Some(configuration::check(contents).map_err(rejection)?),
        None => None,
    };
    process::raise_max_descriptors();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "sheave starts");
    let proxy = Arc::new(Proxy::start(settings(&flags)).context("cannot start the workers")?);
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
    // Before anything is served: until others are known, each cap is ours alone.
    if let Some(replicas) = &mut replicas {
        replicas.set_members(sources.replicas().unwrap_or(flags.replicas));
    }
    apply_first(&mut configuration, checked).await?;
    sources.publish(&report);
    // Now it knows which Services there are.
    if let Some(listener) = scaler {
        scaler::serve(listener, Arc::clone(&proxy), reported);
    }
    report.send_modify(|report| report.phase = ProcessPhase::Ready);
    if let Some(path) = &flags.ready_file {
        write_ready_file(path, admin, scaler_address, &proxy)?;
    }

    let mut leftovers = MemoryTrim::default();
    leftovers.schedule();
    let mut ending = Shutdown::new(proxy, flags.drain_delay, flags.drain_timeout, report.clone());
    loop {
        tokio::select! {
            changed = sources.changed() => changed.context("cannot watch files")?,
            () = configuration.follow() => {
                sources.publish(&report);
                continue;
            }
            () = follow_slot_assignment(&mut replicas) => continue,
            () = leftovers.trim() => continue,
            ended = ending.wait_until_drained() => return ended,
            signal = signals.next() => match signal {
                SignalRequest::Reload => sources.expire(),
                SignalRequest::Stop => {
                    ending.begin()?;
                    sources.resign().await;
                    continue;
                }
            },
        }
        configuration.reload(sources.load()).await;
        sources.publish(&report);
        leftovers.schedule();
        if let (Some(replicas), Some(members)) = (&mut replicas, sources.replicas()) {
            replicas.set_members(members);
        }
    }
}

/// Waits until slots are to be dealt anew, and does it.
async fn follow_slot_assignment(replicas: &mut Option<SlotAssignmentUpdater>) {
    match replicas {
        Some(replicas) => replicas.wait_and_apply().await,
        None => pending().await,
    }
}

/// Where objects come from.
struct ObjectSources {
    /// What the flags stand for.
    objects: Vec<ApiObject>,
    files: FileSource,
    cluster: Option<ClusterSource>,
    /// Those of `--cert` and `--key`.
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
        let cluster =
            ClusterSource::connect(&flags.cluster, flags.drain_delay + flags.drain_timeout).await?;
        Ok(Self { objects, files, cluster, certificates })
    }

    /// What there is without waiting for it; none if a cluster has to be asked first.
    fn load_now(&mut self) -> Option<SourceContents> {
        self.cluster.is_none().then(|| self.load())
    }

    /// What there is once the cluster has told all that it holds.
    async fn load_first(&mut self) -> SourceContents {
        tracing::info!("waiting for the cluster to tell what it holds");
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
            (contents.addresses, contents.error_policy) =
                (of_cluster.addresses, of_cluster.error_policy);
        }
        let objects = self.objects.iter().cloned().chain(certificates.objects);
        contents.objects.splice(0..0, objects);
        contents.problems.splice(0..0, certificates.problems);
        contents
    }

    /// Waits until there is something to load. May be dropped and called again.
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

    /// Who shares fixed caps with this Sheave, where the cluster knows.
    fn replicas(&self) -> Option<Vec<SocketAddr>> {
        self.cluster.as_ref()?.replicas()
    }

    /// Tells the cluster what became of its objects.
    fn publish(&mut self, report: &watch::Sender<ProcessReport>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.publish(&report.borrow());
            report.send_modify(|report| report.nodes = cluster.nodes());
        }
    }

    /// Leaves it to others to tell the cluster what becomes of its objects: this process ends.
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

/// What signals ask for.
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

fn settings(flags: &ServeFlags) -> ProxySettings {
    let workers = flags.workers.or_else(|| thread::available_parallelism().ok());
    let access_log = match flags.access_log {
        LoggedShare::Nothing => None,
        LoggedShare::Fraction(sample) => Some(AccessLog { sample, output: Box::new(io::stdout()) }),
    };
    let workers = workers.unwrap_or(NonZeroUsize::MIN);
    ProxySettings { workers, access_log, exemplars: flags.exemplars }
}

/// Binds the admin address and answers on it; returns it as bound.
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

/// The first configuration is served as a whole or not at all, unless what is in error may be left out.
async fn apply_first(
    configuration: &mut ConfigurationController,
    checked: CheckedConfiguration,
) -> Result<(), Failure> {
    let errors = checked.error_policy;
    let unbound = configuration.apply(checked).await;
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
        "sheave: {} in the configuration, nothing is served",
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
