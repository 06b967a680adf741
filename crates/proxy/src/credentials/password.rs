//! Verification of a password against its hash: a pure computation, whose time depends on the hash alone.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use gateway::snapshot::PasswordHash;
use zeroize::Zeroizing;

/// Number of bytes of a password that bcrypt takes into account.
const BCRYPT_BYTES: usize = 72;

/// Returns the part of a password that its hash depends on.
pub(super) fn effective_part<'p>(hash: &PasswordHash, password: &'p [u8]) -> &'p [u8] {
    match hash {
        PasswordHash::Bcrypt { .. } => &password[..password.len().min(BCRYPT_BYTES)],
        PasswordHash::Sha1(_) | PasswordHash::Apr1 { .. } => password,
    }
}

/// True if the hash is that of the password, which contains no NUL.
pub(super) fn matches(hash: &PasswordHash, password: &[u8]) -> bool {
    let is_equal = |computed: &[u8], hash: &[u8]| verify_slices_are_equal(computed, hash).is_ok();
    match hash {
        PasswordHash::Bcrypt { cost, salt, hash } => {
            let mut key = Zeroizing::new([0; BCRYPT_BYTES]);
            let length = password.len().min(BCRYPT_BYTES);
            key[..length].copy_from_slice(&password[..length]);
            // The NUL at the end belongs to the key, if there is room for it.
            let key = &key[..(length + 1).min(BCRYPT_BYTES)];
            is_equal(&bcrypt::bcrypt(u32::from(*cost), *salt, key)[..hash.len()], hash)
        }
        PasswordHash::Sha1(hash) => {
            is_equal(digest(&SHA1_FOR_LEGACY_USE_ONLY, password).as_ref(), hash)
        }
        PasswordHash::Apr1 { salt, hash } => is_equal(&apr1(salt, password), hash),
    }
}

/// Computes Apache's variant of MD5-crypt.
fn apr1(salt: &[u8], password: &[u8]) -> [u8; 16] {
    let mut inner = md5::Context::new();
    [password, salt, password].iter().for_each(|part| inner.consume(part));
    let inner = inner.finalize().0;
    let mut context = md5::Context::new();
    [password, b"$apr1$", salt].iter().for_each(|part| context.consume(part));
    for start in (0..password.len()).step_by(inner.len()) {
        context.consume(&inner[..inner.len().min(password.len() - start)]);
    }
    let mut rest = password.len();
    while rest > 0 {
        context.consume(if rest & 1 == 1 { &[0] } else { &password[..1] });
        rest >>= 1;
    }
    let mut hash = context.finalize().0;
    for round in 0..1000 {
        let mut context = md5::Context::new();
        let is_odd = round % 2 == 1;
        context.consume(if is_odd { password } else { &hash });
        if round % 3 != 0 {
            context.consume(salt);
        }
        if round % 7 != 0 {
            context.consume(password);
        }
        context.consume(if is_odd { &hash } else { password });
        hash = context.finalize().0;
    }
    hash
}
