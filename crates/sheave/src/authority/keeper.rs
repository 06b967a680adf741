//! The task that follows the Secret of the authorities: it issues the certificate of this replica, and writes what is due
//! in the Secret. All replicas run it; the API server lets one of them write each change.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kube::{OwnSecret, SecretState, SecretVersion, SecretWriteOutcome};
use proxy::clock;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::issued::IssuedCertificate;
use super::plan::{AuthorityChange, SecretContent};
use super::review::KeeperState;
use super::{AuthorityPurpose, AuthoritySet};

/// Interval at which the plan is made anew if nothing changes: what depends on time is days ahead.
const REVIEW_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a failed write, first and at most.
const MIN_WRITE_PAUSE: Duration = Duration::from_secs(2);
const MAX_WRITE_PAUSE: Duration = Duration::from_secs(64);

/// User of the certificates.
pub(crate) trait CertificateRecipient: Send + Sync + 'static {
    /// Uses this certificate from now on.
    ///
    /// # Errors
    /// If it cannot be used: the former one stays in use, and another one is issued later.
    fn accept(&mut self, issued: &IssuedCertificate, now: u64) -> anyhow::Result<()>;

    /// Takes the reason why there may be no newer certificate; `None`: all is well.
    fn report(&mut self, problem: Option<String>);
}

/// The running task; dropping it ends it.
#[derive(Debug)]
pub(crate) struct AuthorityKeeper(JoinHandle<()>);

impl AuthorityKeeper {
    /// Starts the task on the runtime of the caller.
    pub(crate) fn start(
        secret: OwnSecret,
        purpose: Arc<AuthorityPurpose>,
        recipient: impl CertificateRecipient,
    ) -> Self {
        let name = secret.name();
        let task = SecretFollower { secret, name, state: KeeperState::new(purpose), recipient };
        Self(tokio::spawn(task.run()))
    }
}

impl Drop for AuthorityKeeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The task.
struct SecretFollower<R> {
    secret: OwnSecret,
    /// Namespace and name of the Secret.
    name: String,
    state: KeeperState,
    recipient: R,
}

impl<R: CertificateRecipient> SecretFollower<R> {
    async fn run(mut self) {
        let mut pause = MIN_WRITE_PAUSE;
        let mut no_write_before = Instant::now();
        let mut logged = None;
        loop {
            let observed = self.secret.observation.borrow_and_update().clone();
            let (content, version) = self.read(&observed.state);
            let now = seconds(clock::wall());
            let review = self.state.review(content.as_ref(), now);
            let mut problem = self.state.problem.take().or(observed.problem);
            if review.is_new
                && let Err(error) = self.publish(now)
            {
                problem = Some(format!("cannot use the certificate: {error:#}"));
            }
            let mut next_review = REVIEW_INTERVAL;
            if let Some((change, authorities)) = review.write {
                if Instant::now() >= no_write_before {
                    match self.write(change, &authorities, version.as_deref()).await {
                        Ok(()) => pause = MIN_WRITE_PAUSE,
                        Err(error) => {
                            problem = Some(error);
                            pause = (pause * 2).min(MAX_WRITE_PAUSE);
                        }
                    }
                    // The watch reports what was written; until then it is not written again.
                    no_write_before = Instant::now() + pause;
                }
                next_review = no_write_before.saturating_duration_since(Instant::now());
            }
            self.report(problem, &mut logged);
            tokio::select! {
                changed = self.secret.observation.changed() => match changed {
                    Ok(()) => {}
                    Err(_) => return,
                },
                () = sleep(next_review) => {}
            }
        }
    }

    /// Returns the content of the Secret and its version; `None`: it has not been read, or there is none.
    fn read(&self, state: &SecretState) -> (Option<SecretContent>, Option<Arc<SecretVersion>>) {
        match state {
            SecretState::Unknown => (None, None),
            SecretState::Absent => (Some(SecretContent::Absent), None),
            SecretState::Present(version) => {
                let content = self.state.read(&version.secret_type, &version.data);
                (Some(content), Some(Arc::clone(version)))
            }
        }
    }

    /// Gives the newest certificate to its user; another one is issued at the next review if it cannot be used.
    fn publish(&mut self, now: u64) -> anyhow::Result<()> {
        let Some(issued) = self.state.issued.take() else { return Ok(()) };
        self.recipient.accept(&issued, now)?;
        self.state.issued = Some(issued);
        Ok(())
    }

    /// Writes a change; returns the reason if it fails.
    async fn write(
        &self,
        change: AuthorityChange,
        authorities: &AuthoritySet,
        version: Option<&SecretVersion>,
    ) -> Result<(), String> {
        let data = authorities.data();
        let written = match version {
            None => {
                let writer = authorities.current.name();
                self.secret.create(self.state.secret_type(), data, &writer).await
            }
            Some(version) => self.secret.replace(version, data).await,
        };
        match written {
            Ok(SecretWriteOutcome::Written) => {
                let (secret, authority) = (&self.name, authorities.current.name());
                tracing::info!(%secret, ?change, authority, "changed the authorities");
                Ok(())
            }
            Ok(SecretWriteOutcome::Superseded) => Ok(()),
            Err(error) => Err(format!("cannot write it: {:#}", anyhow::Error::from(error))),
        }
    }

    /// Writes the problem into the status, and logs it once.
    fn report(&mut self, problem: Option<String>, logged: &mut Option<String>) {
        let problem = problem.map(|problem| format!("Secret {}: {problem}", self.name));
        if problem != *logged {
            match &problem {
                Some(error) => {
                    tracing::error!(error, "the former certificates stay in use");
                }
                None => tracing::info!(secret = %self.name, "the Secret can be used again"),
            }
            logged.clone_from(&problem);
        }
        self.recipient.report(problem);
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
