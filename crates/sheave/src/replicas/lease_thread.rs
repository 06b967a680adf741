//! The thread that leases slots, exchanges reports and shares keys of session tickets: it owns the lease table and the channel to the other replicas.
//! Workers never wait for it.

use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use kube::OwnSecret;
use proxy::leases::{LeaseRefusal, ReplicaIdentity};
use proxy::limit::LimitRefusal;
use proxy::token_buckets::TokenRefusal;
use proxy::{
    DueReports, KeyRefusal, LimitExchange, PeerReports, Proxy, RateLimitSharing, ReportRefusal,
    SlotLeases, TicketKeyExchange, Time, clock,
};
use replica::{
    ChannelReceiver, ChannelSender, ChannelSettings, ChannelTimes, ReceivedMessage,
    ReplicaCertificates, ReplicaMessage, start_channel,
};
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::certificate_files::ReplicaCertificateFiles;
use super::issued_certificates::{self, ChannelCertificates};
use super::lease_status::ReplicaStatus;
use crate::authority::AuthorityKeeper;
use crate::failure::Failure;
use crate::flags::ReplicaFlags;

/// Longest pause after a step of the table: events that come together share a step.
const MAX_PAUSE: Duration = Duration::from_millis(1);
/// Length of the pause in relation to the step: steps take at most a tenth of a core. A slot that is borrowed takes
/// three steps, so pauses lengthen waits.
const PAUSE_FACTOR: u32 = 9;
/// Interval at which the address of the previous process is tried.
const REBIND_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the state is written for readers.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of messages between two steps of the table.
const MAX_MESSAGES: usize = 64;

/// The thread, as the control thread sees it.
pub(crate) struct SlotLeaseThread {
    members: watch::Sender<Arc<[SocketAddr]>>,
    certificates: CertificateSource,
    status: Arc<ReplicaStatus>,
    /// True once the first list has been handed over.
    has_members: bool,
    /// Ends the channel when it is dropped.
    channel_end: Option<oneshot::Sender<()>>,
    /// The thread ends with the process.
    _thread: JoinHandle<()>,
}

/// Source of the certificates of replicas.
enum CertificateSource {
    /// None: all replicas are on loopback.
    None,
    /// A folder, which is watched.
    Files {
        files: Box<ReplicaCertificateFiles>,
        certificates: watch::Sender<Option<Arc<ReplicaCertificates>>>,
    },
    /// A Secret, which a task follows.
    Secret { _keeper: AuthorityKeeper },
}

impl SlotLeaseThread {
    /// Binds the address for peers, and starts the thread. A process that succeeds another one on this machine gets the
    /// address when that has closed its channel, and has no leases before.
    ///
    /// # Errors
    /// If the certificates or the address cannot be used, or the thread cannot be started.
    pub(super) fn start(
        me: SocketAddr,
        flags: &ReplicaFlags,
        secret: Option<OwnSecret>,
        proxy: &Arc<Proxy>,
        has_predecessor: bool,
    ) -> Result<Self, Failure> {
        let status = Arc::new(ReplicaStatus::default());
        let awaits_certificates = secret.is_some();
        let (certificates, newest_certificates) = start_certificates(flags, secret, &status)?;
        let (members, newest_members) = watch::channel(Arc::from([me]));
        let listen = SocketAddr::new(me.ip(), flags.port_of(me));
        let listener = bind(listen, has_predecessor)?;
        let identity = ReplicaIdentity { member: me, incarnation: incarnation() };
        let leases = SlotLeases::new(Arc::clone(proxy), identity, flags.cut_off.into())
            .context("the data plane does not lease slots")?;
        let reports =
            PeerReports::new(Arc::clone(proxy)).context("the data plane does not report")?;
        let limits =
            LimitExchange::new(proxy, identity).context("the data plane does not share limits")?;
        let ticket_keys = TicketKeyExchange::new(proxy, me)
            .context("the data plane does not share keys of session tickets")?;
        let rate_limits = RateLimitSharing::new(Arc::clone(proxy), identity);
        let (channel_end, channel_ended) = oneshot::channel();
        let driver = LeaseDriver {
            leases,
            reports,
            limits,
            limits_due: Instant::now(),
            ticket_keys,
            rate_limits,
            rate_limits_due: Instant::now(),
            me: identity,
            listen,
            port: flags.replica_port,
            members: newest_members,
            certificates: newest_certificates,
            awaits_certificates,
            status: Arc::clone(&status),
            channel_ended,
            logged_refusals: [false; LeaseRefusal::ALL.len()],
            logged_report_refusals: [false; ReportRefusal::ALL.len()],
            logged_limit_refusals: [false; LimitRefusal::ALL.len()],
            logged_key_refusals: [false; KeyRefusal::ALL.len()],
            logged_token_refusals: [false; TokenRefusal::ALL.len()],
            status_due: Time::ZERO,
            last_step: Instant::now(),
        };
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the thread of leases")?;
        let run = move || runtime.block_on(driver.run(listener));
        let thread = thread::Builder::new().name("leases".to_owned());
        let thread = thread.spawn(run).context("cannot start the thread of leases")?;
        let channel_end = Some(channel_end);
        Ok(Self { members, certificates, status, has_members: false, channel_end, _thread: thread })
    }

    pub(super) fn set_members(&mut self, members: Vec<SocketAddr>) {
        let is_first = !std::mem::replace(&mut self.has_members, true);
        self.members.send_if_modified(|current| {
            let is_new = is_first || **current != *members;
            if is_new {
                tracing::info!(replicas = members.len(), "replicas changed");
                *current = members.into();
            }
            is_new
        });
    }

    /// Waits until the files of the certificates change, and hands their content over. Cancel-safe.
    pub(super) async fn wait_and_apply(&mut self) {
        let CertificateSource::Files { files, certificates } = &mut self.certificates else {
            return pending().await;
        };
        files.changed().await;
        match files.load() {
            Ok(loaded) => {
                certificates.send_replace(Some(loaded));
                self.status.set_certificate_expiry(files.expiry());
                self.status.set_certificate_problem(None);
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the former certificates of replicas stay in use");
                self.status.set_certificate_problem(Some(error));
            }
        }
    }

    pub(super) fn close_channel(&mut self) {
        self.channel_end = None;
    }

    pub(super) fn status(&self) -> Arc<ReplicaStatus> {
        Arc::clone(&self.status)
    }
}

/// Binds the address for peers; `None`: the previous process still has it.
fn bind(address: SocketAddr, has_predecessor: bool) -> Result<Option<TcpListener>, Failure> {
    match TcpListener::bind(address) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if has_predecessor && error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(Failure::input(format_args!(
            "cannot listen for replicas on {address}: {error}: see --replica and --replica-port"
        ))),
    }
}

/// Certificates, replaced while the thread runs.
type NewestCertificates = watch::Receiver<Option<Arc<ReplicaCertificates>>>;

/// Starts to follow the Secret, or reads the files of `--replica-certs`.
fn start_certificates(
    flags: &ReplicaFlags,
    secret: Option<OwnSecret>,
    status: &Arc<ReplicaStatus>,
) -> Result<(CertificateSource, NewestCertificates), Failure> {
    let (certificates, newest) = watch::channel(None);
    if let Some(secret) = secret {
        let recipient = ChannelCertificates { certificates, status: Arc::clone(status) };
        let keeper = AuthorityKeeper::start(secret, issued_certificates::purpose(), recipient);
        return Ok((CertificateSource::Secret { _keeper: keeper }, newest));
    }
    let Some(folder) = &flags.replica_certs else { return Ok((CertificateSource::None, newest)) };
    let limits = "cannot watch files; `sysctl fs.inotify` shows the limits";
    let mut files = ReplicaCertificateFiles::new(folder).context(limits)?;
    let loaded =
        files.load().map_err(|error| Failure::input(format_args!("--replica-certs: {error:#}")))?;
    certificates.send_replace(Some(loaded));
    status.set_certificate_expiry(files.expiry());
    Ok((CertificateSource::Files { files: Box::new(files), certificates }, newest))
}

/// Returns a number that increases with each start: the time.
fn incarnation() -> u64 {
    let since = clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// The thread's state.
struct LeaseDriver {
    leases: SlotLeases,
    reports: PeerReports,
    limits: LimitExchange,
    /// Time of the next message about limits.
    limits_due: Instant,
    ticket_keys: TicketKeyExchange,
    rate_limits: RateLimitSharing,
    /// Time of the next messages about tokens of rate limits.
    rate_limits_due: Instant,
    me: ReplicaIdentity,
    listen: SocketAddr,
    port: u16,
    members: watch::Receiver<Arc<[SocketAddr]>>,
    certificates: NewestCertificates,
    /// True if the channel waits for the first certificates.
    awaits_certificates: bool,
    status: Arc<ReplicaStatus>,
    channel_ended: oneshot::Receiver<()>,
    /// Reasons for refusals that have been logged.
    logged_refusals: [bool; LeaseRefusal::ALL.len()],
    logged_report_refusals: [bool; ReportRefusal::ALL.len()],
    logged_limit_refusals: [bool; LimitRefusal::ALL.len()],
    logged_key_refusals: [bool; KeyRefusal::ALL.len()],
    logged_token_refusals: [bool; TokenRefusal::ALL.len()],
    status_due: Time,
    last_step: Instant,
}

/// The channel, once its address is free.
struct OpenChannel {
    sender: ChannelSender,
    receiver: ChannelReceiver,
}

impl LeaseDriver {
    /// Runs until the process ends.
    async fn run(mut self, mut listener: Option<TcpListener>) {
        let mut channel = self.try_open(&mut listener);
        // The first list comes before the first configuration.
        if self.members.changed().await.is_err() {
            return;
        }
        self.update_members();
        let mut rebind_at = Instant::now();
        let mut pause = Duration::ZERO;
        loop {
            // Events that come together are handled together.
            sleep_until(self.last_step + pause).await;
            self.last_step = Instant::now();
            let now = clock::now();
            for message in self.leases.step(now) {
                if let Some(channel) = &channel {
                    channel.sender.send(message.to.member, ReplicaMessage::Lease(message));
                }
            }
            self.send_reports(&channel, now);
            self.send_limits(&channel, now);
            self.send_ticket_keys(&channel, now);
            self.send_tokens(&channel, now);
            self.write_status(now);
            pause = MAX_PAUSE.min(PAUSE_FACTOR * self.last_step.elapsed());
            let next = self.leases.next_step(now).min(self.reports.next_step());
            let next = instant(next.min(self.ticket_keys.next_step()), now);
            tokio::select! {
                message = receive(&mut channel) => match message {
                    Some(message) => self.receive_all(message, &mut channel),
                    None => channel = None,
                },
                () = self.leases.changed() => {}
                changed = self.members.changed() => match changed {
                    Ok(()) => self.update_members(),
                    // The control thread has ended, and the process ends.
                    Err(_) => return,
                },
                _ = &mut self.channel_ended, if !self.channel_ended.is_terminated() => channel = None,
                () = wait_to_open(&mut self.certificates, self.awaits_certificates, rebind_at), if channel.is_none() && !self.channel_ended.is_terminated() => {
                    // The previous process may have the address still.
                    rebind_at = Instant::now() + REBIND_INTERVAL;
                    listener = listener.take().or_else(|| TcpListener::bind(self.listen).ok());
                    channel = self.try_open(&mut listener);
                }
                () = sleep_until(next) => {}
                () = sleep_until(self.limits_due), if self.limits.has_peers() => {}
                () = sleep_until(self.rate_limits_due), if self.rate_limits.is_needed() => {}
            }
        }
    }

    fn lacks_certificates(&self) -> bool {
        self.awaits_certificates && self.certificates.borrow().is_none()
    }

    /// Opens the channel if there are an address and certificates.
    fn try_open(&self, listener: &mut Option<TcpListener>) -> Option<OpenChannel> {
        if self.lacks_certificates() {
            return None;
        }
        self.open_channel(listener.take()?)
    }

    fn open_channel(&self, listener: TcpListener) -> Option<OpenChannel> {
        let settings = ChannelSettings {
            me: self.me,
            listener,
            port: self.port,
            members: self.members.clone(),
            certificates: self.certificates.clone(),
            times: ChannelTimes::default(),
        };
        match start_channel(settings) {
            Ok((sender, receiver)) => {
                tracing::info!(address = %self.listen, "listening for replicas");
                self.status.set_channel(sender.clone());
                Some(OpenChannel { sender, receiver })
            }
            Err(error) => {
                tracing::error!(%error, "replicas cannot lease slots to one another");
                None
            }
        }
    }

    fn update_members(&mut self) {
        let members = Arc::clone(&self.members.borrow_and_update());
        self.leases.update_members(members.iter().copied(), clock::now());
        self.limits.update_members(members.iter().copied());
        self.ticket_keys.update_members(members.iter().copied());
        self.rate_limits.update_members(members.iter().copied(), clock::now());
    }

    /// Sends tokens of rate limits to the peers that want them, and asks for tokens, if it is time.
    fn send_tokens(&mut self, channel: &Option<OpenChannel>, now: Time) {
        if self.last_step < self.rate_limits_due {
            return;
        }
        self.rate_limits_due = self.last_step + RateLimitSharing::INTERVAL;
        let messages = self.rate_limits.step(now);
        let Some(channel) = channel else { return };
        for message in messages {
            channel.sender.send(message.to.member, ReplicaMessage::Tokens(message));
        }
    }

    /// Tells all peers what has been learned, if it is time.
    fn send_limits(&mut self, channel: &Option<OpenChannel>, now: Time) {
        let Some(channel) = channel else { return };
        if self.last_step < self.limits_due || !self.limits.has_peers() {
            return;
        }
        self.limits_due = self.last_step + LimitExchange::INTERVAL;
        let Some(message) = self.limits.message(now) else { return };
        let members = Arc::clone(&self.members.borrow());
        for &member in members.iter().filter(|&&member| member != self.me.member) {
            channel.sender.send(member, ReplicaMessage::Limits(message.clone()));
        }
    }

    /// Takes a message, and others that have arrived.
    fn receive_all(&mut self, first: ReceivedMessage, channel: &mut Option<OpenChannel>) {
        self.receive_one(first);
        for _ in 1..MAX_MESSAGES {
            match channel.as_mut().and_then(|channel| channel.receiver.try_receive()) {
                Some(message) => self.receive_one(message),
                None => return,
            }
        }
    }

    fn receive_one(&mut self, received: ReceivedMessage) {
        let (from, now) = (received.from.member, clock::now());
        match received.message {
            ReplicaMessage::Lease(message) => {
                if let Err(refusal) = self.leases.receive(&message, now)
                    && !std::mem::replace(&mut self.logged_refusals[refusal as usize], true)
                {
                    let reason = refusal.name();
                    tracing::warn!(replica = %from, reason, "a message about leases is refused");
                }
            }
            ReplicaMessage::Limits(message) => {
                if let Err(refusal) = self.limits.receive(&message, now)
                    && !std::mem::replace(&mut self.logged_limit_refusals[refusal as usize], true)
                {
                    let reason = refusal.name();
                    tracing::warn!(replica = %from, reason, "a message about limits is refused");
                }
            }
            ReplicaMessage::TicketKeys(message) => {
                if let Err(refusal) = self.ticket_keys.receive(&message)
                    && !std::mem::replace(&mut self.logged_key_refusals[refusal as usize], true)
                {
                    let reason = refusal.name();
                    tracing::warn!(replica = %from, reason, "keys of session tickets are refused");
                }
            }
            ReplicaMessage::Tokens(message) => {
                if let Err(refusal) = self.rate_limits.receive(&message, now)
                    && !std::mem::replace(&mut self.logged_token_refusals[refusal as usize], true)
                {
                    let reason = refusal.name();
                    tracing::warn!(replica = %from, reason, "a message about rate limits is refused");
                }
            }
            ReplicaMessage::Demand(message) => {
                let result = self.reports.receive_demand(from, &message, now);
                self.log_report(from, result);
            }
            ReplicaMessage::Refusals(message) => {
                let result = self.reports.receive_refusals(&message, now);
                self.log_report(from, result);
            }
            ReplicaMessage::Outages(message) => {
                let result = self.reports.receive_outages(from, &message, now);
                self.log_report(from, result);
            }
        }
    }

    /// Logs the first refusal for each reason.
    fn log_report(&mut self, from: SocketAddr, result: Result<(), ReportRefusal>) {
        if let Err(refusal) = result
            && !std::mem::replace(&mut self.logged_report_refusals[refusal as usize], true)
        {
            tracing::warn!(replica = %from, reason = refusal.name(), "a report of a replica is refused");
        }
    }

    /// Sends the reports that are due to all peers.
    fn send_reports(&mut self, channel: &Option<OpenChannel>, now: Time) {
        let DueReports { demand, refusals, outages } = self.reports.step(now);
        let messages = [
            demand.map(ReplicaMessage::Demand),
            refusals.map(ReplicaMessage::Refusals),
            outages.map(ReplicaMessage::Outages),
        ];
        if let Some(channel) = channel {
            messages.iter().flatten().for_each(|message| channel.sender.send_to_all(message));
        }
    }

    /// Sends the keys of session tickets to all peers, if it is time.
    fn send_ticket_keys(&mut self, channel: &Option<OpenChannel>, now: Time) {
        let message = self.ticket_keys.step(now).map(ReplicaMessage::TicketKeys);
        if let (Some(channel), Some(message)) = (channel, message) {
            channel.sender.send_to_all(&message);
        }
    }

    fn write_status(&mut self, now: Time) {
        if now >= self.status_due {
            self.status_due = now + STATUS_INTERVAL;
            self.status.set(self.leases.status(), self.reports.counts());
            self.status.set_limits(self.limits.status(now));
            self.status.set_ticket_keys(self.ticket_keys.status());
            self.status.set_token_refusals(self.rate_limits.refused());
        }
    }
}

/// Waits until it can be tried to open the channel: there are certificates, and the time has come. Cancel-safe.
async fn wait_to_open(
    certificates: &mut NewestCertificates,
    awaits_certificates: bool,
    time: Instant,
) {
    while awaits_certificates && certificates.borrow_and_update().is_none() {
        if certificates.changed().await.is_err() {
            return pending().await;
        }
    }
    sleep_until(time).await;
}

/// Waits for a message; forever without a channel.
async fn receive(channel: &mut Option<OpenChannel>) -> Option<ReceivedMessage> {
    match channel {
        Some(channel) => channel.receiver.receive().await,
        None => pending().await,
    }
}

fn instant(time: Time, now: Time) -> Instant {
    Instant::now() + time.saturating_since(now)
}
