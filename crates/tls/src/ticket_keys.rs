//! Session tickets that other replicas can open too.
//!
//! The keys and their times are handed in; this file derives what seals and opens, and compares with the clock at each
//! use: if nothing hands in new keys any more, tickets end as if it did. A ticket is sealed as RFC 5077 §4 recommends
//! and rustls does it: AES-256-CBC with a random IV, then HMAC-SHA-256 over all of it.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::cipher::{
    AES_256, AES_256_KEY_LEN, AES_CBC_IV_LEN, DecryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{self, Prk, Salt};
use aws_lc_rs::{hmac, iv};
use balance::Time;
use balance::shared_keys::{KeySecret, OPENING_TIME, SharedKey};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

/// Format of what a ticket contains. It is rustls' own and may change with any version, so keys are derived for this
/// one: replicas of two versions do not open each other's tickets. A test compares it with the version in use.
pub(crate) const CONTENT_FORMAT: &str = "sheave session ticket of rustls 0.23.46";

/// Size of the name of a key in bytes. A ticket begins with it.
const NAME_BYTES: usize = 16;
/// Size of the authentication code at the end of a ticket.
const CODE_BYTES: usize = 32;
/// Maximum size of a ticket. It has two names, a secret and times, and never a certificate: entries that request
/// certificates of clients have keys of their own.
const MAX_TICKET_BYTES: usize = 1024;

/// Keys of session tickets in force. All listeners whose sessions may be resumed at another replica use them.
pub struct TicketKeyRing {
    keys: RwLock<Arc<[TicketKey]>>,
    clock: Box<dyn Fn() -> Time + Send + Sync>,
}

/// A key, with the times of its use.
#[derive(Clone)]
struct TicketKey {
    key: SharedKey,
    cipher: Arc<TicketCipher>,
}

impl TicketKeyRing {
    /// Returns a ring without keys: there are no tickets until [`set`](Self::set) is called.
    pub fn new(clock: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self { keys: RwLock::new(Arc::from([])), clock: Box::new(clock) }
    }

    /// Puts keys in force, the preferred ones first. Others can no longer be used.
    pub fn set(&self, keys: &[SharedKey]) {
        let before = self.keys();
        let cipher =
            |key: &SharedKey| match before.iter().find(|it| it.key.secret() == key.secret()) {
                Some(known) => Ok(Arc::clone(&known.cipher)),
                None => TicketCipher::derive(key.secret()).map(Arc::new),
            };
        let ticket_key = |key: &SharedKey| match cipher(key) {
            Ok(cipher) => Some(TicketKey { key: key.clone(), cipher }),
            Err(Unspecified) => {
                tracing::error!("cannot derive the key of session tickets: it is not used");
                None
            }
        };
        let keys: Arc<[TicketKey]> = keys.iter().filter_map(ticket_key).collect();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    fn keys(&self) -> Arc<[TicketKey]> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ProducesTickets for TicketKeyRing {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(OPENING_TIME.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, message: &[u8]) -> Option<Vec<u8>> {
        let now = (self.clock)();
        self.keys().iter().find(|it| it.key.seals(now))?.cipher.seal(message)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let now = (self.clock)();
        let name = ticket.first_chunk::<NAME_BYTES>()?;
        let keys = self.keys();
        let key = keys.iter().find(|it| it.cipher.name == *name && it.key.opens(now))?;
        key.cipher.open(ticket)
    }
}

/// Keys are not shown.
impl Debug for TicketKeyRing {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TicketKeyRing").finish_non_exhaustive()
    }
}

/// The keys that are derived from one secret.
struct TicketCipher {
    name: [u8; NAME_BYTES],
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
    authenticating: hmac::Key,
}

impl TicketCipher {
    fn derive(secret: &KeySecret) -> Result<Self, Unspecified> {
        let secret =
            Salt::new(hkdf::HKDF_SHA256, CONTENT_FORMAT.as_bytes()).extract(secret.bytes());
        let encryption: Zeroizing<[u8; AES_256_KEY_LEN]> = derive(&secret, "encryption")?;
        let authentication: Zeroizing<[u8; CODE_BYTES]> = derive(&secret, "authentication")?;
        let cipher_key = || UnboundCipherKey::new(&AES_256, &*encryption);
        Ok(Self {
            name: *derive(&secret, "name")?,
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(cipher_key()?)?,
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(cipher_key()?)?,
            authenticating: hmac::Key::new(hmac::HMAC_SHA256, &*authentication),
        })
    }

    /// Returns the ticket with this content: name, IV, ciphertext, authentication code of all these.
    fn seal(&self, content: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = content.to_vec();
        let context = self.encrypting.encrypt(&mut sealed).ok()?;
        let iv: &[u8] = (&context).try_into().ok()?;
        let mut ticket = [&self.name[..], iv, &sealed].concat();
        let code = hmac::sign(&self.authenticating, &ticket);
        ticket.extend_from_slice(code.as_ref());
        (ticket.len() <= MAX_TICKET_BYTES).then_some(ticket)
    }

    /// Returns the content of a ticket; `None` unless this key has sealed it.
    fn open(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > MAX_TICKET_BYTES {
            return None;
        }
        let (authenticated, code) = ticket.split_last_chunk::<CODE_BYTES>()?;
        hmac::verify(&self.authenticating, authenticated, code).ok()?;
        let (iv, sealed) =
            authenticated.get(NAME_BYTES..)?.split_first_chunk::<AES_CBC_IV_LEN>()?;
        let context = DecryptionContext::Iv128(iv::FixedLength::from(*iv));
        let mut content = sealed.to_vec();
        let length = self.decrypting.decrypt(&mut content, context).ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

/// Returns the key for one purpose.
fn derive<const N: usize>(secret: &Prk, purpose: &str) -> Result<Zeroizing<[u8; N]>, Unspecified> {
    let mut key = Zeroizing::new([0; N]);
    secret.expand(&[purpose.as_bytes()], KeyLength(N))?.fill(&mut *key)?;
    Ok(key)
}

/// Length of a derived key in bytes.
struct KeyLength(usize);

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Returns a new random secret; `None` if the system has no randomness.
#[must_use]
pub fn new_secret() -> Option<KeySecret> {
    let mut bytes = Zeroizing::new([0; balance::shared_keys::SECRET_BYTES]);
    aws_lc_rs::rand::fill(&mut *bytes).ok()?;
    Some(KeySecret::new(*bytes))
}
