//! Verification of passwords, on threads of its own.
//!
//! A hash of a password is slow to compute on purpose, and wrong passwords cost as much as right ones. So no worker
//! computes one: there are few threads for it, of low priority, and a queue with a limit for all clients and for each.
//! Passwords that were right are remembered by a keyed hash of the password and its hash. That a password belongs to a
//! hash stays true for ever: a user whose password changes gets another hash, and is looked up by it.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{iter, thread};

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::rand;
use gateway::snapshot::PasswordHash;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::password;
use crate::failure::Failure;
use crate::mutex::lock;

/// Maximum number of passwords that wait.
const MAX_WAITING: usize = 128;
/// Maximum number of them from one client: an IPv4 address, or an IPv6 network of 64 bits.
const MAX_WAITING_PER_CLIENT: usize = 16;
/// Number of workers for each thread that verifies passwords.
const WORKERS_PER_THREAD: usize = 4;
/// Nice value of the threads: a worker that has something to do comes first.
const NICE: i32 = 5;
/// Number of sets of passwords that were right, so that workers seldom meet at a lock.
const SETS: usize = 16;
/// Maximum number of passwords of a set, in each of two generations.
const GENERATION: usize = 512;

/// Verifies passwords, and remembers those that were right.
pub(crate) struct PasswordVerifier(Arc<VerifierState>);

struct VerifierState {
    /// Key of the hashes by which passwords are remembered.
    key: hmac::Key,
    right: Box<[Mutex<RightPasswords>]>,
    queue: Mutex<VerificationQueue>,
    ready: Condvar,
    max_threads: usize,
}

/// Keyed hash of a password and of its hash.
type PasswordKey = [u8; 32];

/// Passwords that were right. If a generation is full, the one before it is forgotten.
#[derive(Default)]
struct RightPasswords {
    recent: HashSet<PasswordKey>,
    older: HashSet<PasswordKey>,
}

/// The first step of a verification.
pub(super) enum VerificationStart {
    /// The password is known to be right.
    Known,
    /// A thread will tell if it is.
    Pending(oneshot::Receiver<bool>),
}

/// Passwords that wait, and the threads that verify them.
#[derive(Default)]
struct VerificationQueue {
    waiting: Vec<QueuedVerification>,
    /// Start of the last one that was taken.
    virtual_time: u64,
    threads: usize,
    idle_threads: usize,
    is_closed: bool,
}

struct QueuedVerification {
    hash: PasswordHash,
    password: Zeroizing<Vec<u8>>,
    key: PasswordKey,
    /// The client's network.
    network: IpAddr,
    /// Virtual start time (SFQ): the passwords of a client take turns with those of others.
    virtual_start: u64,
    verdict: oneshot::Sender<bool>,
}

impl PasswordVerifier {
    /// Returns a verifier, whose threads start when a password waits.
    pub(crate) fn new(workers: usize) -> Self {
        let mut key = [0; 32];
        rand::fill(&mut key).expect("the system has random numbers");
        Self(Arc::new(VerifierState {
            key: hmac::Key::new(HMAC_SHA256, &key),
            right: (0..SETS).map(|_| Mutex::default()).collect(),
            queue: Mutex::default(),
            ready: Condvar::new(),
            max_threads: workers.div_ceil(WORKERS_PER_THREAD),
        }))
    }

    /// Returns the hash that stands in for that of an unknown user: always the same for a name, and as costly as that of
    /// a known user.
    pub(super) fn decoy<'u>(
        &self,
        users: &'u [(Box<str>, PasswordHash)],
        name: &str,
    ) -> &'u PasswordHash {
        let tag = hmac::sign(&self.0.key, name.as_bytes());
        let number = tag.as_ref().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        &users[(number % users.len() as u64) as usize].1
    }

    /// Returns the verdict about a password if it is known, or lets a thread verify it. `network` is that of the client.
    pub(super) fn start(
        &self,
        hash: &PasswordHash,
        password: &[u8],
        network: IpAddr,
    ) -> Result<VerificationStart, Failure> {
        let state = &self.0;
        let password = password::effective_part(hash, password);
        let key = state.password_key(hash, password);
        if state.is_known(&key) {
            return Ok(VerificationStart::Known);
        }
        let (verdict, receiver) = oneshot::channel();
        let mut queue = lock(&state.queue);
        // Those whose client has gone need no place.
        if queue.waiting.len() >= MAX_WAITING {
            queue.waiting.retain(|it| !it.verdict.is_closed());
        }
        let of_client = queue.waiting.iter().filter(|it| it.network == network);
        let (count, last) =
            of_client.fold((0, 0), |(count, last), it| (count + 1, last.max(it.virtual_start)));
        if queue.waiting.len() >= MAX_WAITING || count >= MAX_WAITING_PER_CLIENT {
            return Err(Failure::CredentialOverload);
        }
        let virtual_start = queue.virtual_time.max(last) + 1;
        let (hash, password) = (hash.clone(), Zeroizing::new(password.to_vec()));
        queue.waiting.push(QueuedVerification {
            hash,
            password,
            key,
            network,
            virtual_start,
            verdict,
        });
        if queue.idle_threads == 0 && queue.threads < state.max_threads {
            let shared = Arc::clone(state);
            let thread = thread::Builder::new().name("passwords".to_owned());
            if let Err(error) = thread.spawn(move || shared.run()) {
                tracing::warn!(%error, "no thread to verify passwords");
                if queue.threads == 0 {
                    queue.waiting.clear();
                    return Err(Failure::CredentialOverload);
                }
            } else {
                queue.threads += 1;
            }
        }
        drop(queue);
        state.ready.notify_one();
        Ok(VerificationStart::Pending(receiver))
    }
}

impl Drop for PasswordVerifier {
    fn drop(&mut self) {
        lock(&self.0.queue).is_closed = true;
        self.0.ready.notify_all();
    }
}

impl VerifierState {
    /// Verifies passwords until the verifier is dropped.
    fn run(&self) {
        // Without it the threads only compete with the workers more.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "verification of passwords keeps its priority");
        }
        while let Some(QueuedVerification { hash, password, key, verdict, .. }) = self.next() {
            // A client that has gone awaits no verdict; one of several requests at once may have brought it.
            if verdict.is_closed() {
                continue;
            }
            let is_right = self.is_known(&key) || password::matches(&hash, &password);
            if is_right {
                self.remember(key);
            }
            // The client may have gone meanwhile.
            verdict.send(is_right).unwrap_or_default();
        }
    }

    fn next(&self) -> Option<QueuedVerification> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_closed {
                return None;
            }
            let all = queue.waiting.iter().enumerate();
            if let Some((first, _)) = all.min_by_key(|(_, it)| it.virtual_start) {
                let next = queue.waiting.remove(first);
                queue.virtual_time = next.virtual_start;
                return Some(next);
            }
            queue.idle_threads += 1;
            queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle_threads -= 1;
        }
    }

    fn password_key(&self, hash: &PasswordHash, password: &[u8]) -> PasswordKey {
        let mut context = hmac::Context::with_key(&self.key);
        let mut add = |part: &[u8]| {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        };
        match hash {
            PasswordHash::Bcrypt { cost, salt, hash } => {
                iter::once(&[0, *cost][..]).chain([&salt[..], hash]).for_each(&mut add);
            }
            PasswordHash::Sha1(hash) => iter::once(&[1][..]).chain([&hash[..]]).for_each(&mut add),
            PasswordHash::Apr1 { salt, hash } => {
                iter::once(&[2][..]).chain([&**salt, hash]).for_each(&mut add);
            }
        }
        add(password);
        let mut key = PasswordKey::default();
        key.copy_from_slice(context.sign().as_ref());
        key
    }

    fn is_known(&self, key: &PasswordKey) -> bool {
        let mut set = lock(self.set(key));
        if set.recent.contains(key) {
            return true;
        }
        // One that is still in use outlives its generation.
        let is_older = set.older.contains(key);
        if is_older {
            set.insert(*key);
        }
        is_older
    }

    fn remember(&self, key: PasswordKey) {
        lock(self.set(&key)).insert(key);
    }

    fn set(&self, key: &PasswordKey) -> &Mutex<RightPasswords> {
        &self.right[usize::from(key[0]) % self.right.len()]
    }
}

impl RightPasswords {
    fn insert(&mut self, key: PasswordKey) {
        if self.recent.len() >= GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key);
    }
}

#[cfg(test)]
mod tests;
