//! Hashes of passwords, as `htpasswd` writes them.

use std::fmt;
use std::sync::LazyLock;

use data_encoding::{BASE64, BitOrder, Encoding, Specification};

/// Largest cost of bcrypt. Each step doubles the time of a verification, which is about a second here.
const MAX_COST: u8 = 14;
/// Least cost that bcrypt has.
const MIN_COST: u8 = 4;
const UNSUPPORTED: &str =
    "has a hash that is not supported, only bcrypt ($2a$, $2b$, $2y$), {SHA} and $apr1$ are";

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub enum PasswordHash {
    /// bcrypt.
    Bcrypt {
        /// The binary logarithm of the number of rounds.
        cost: u8,
        /// The salt.
        salt: [u8; 16],
        /// The hash.
        hash: [u8; 23],
    },
    /// SHA-1 without a salt.
    Sha1([u8; 20]),
    /// Apache's variant of MD5-crypt: 1,000 rounds.
    Apr1 {
        /// The salt, of at most 8 bytes.
        salt: Box<[u8]>,
        /// The hash.
        hash: [u8; 16],
    },
}

impl PasswordHash {
    /// Parses a hash as `htpasswd` writes it. The message of an error does not contain it.
    ///
    /// # Errors
    /// What is wrong with the hash.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let unsupported = || UNSUPPORTED.to_owned();
        let text = str::from_utf8(text).ok().ok_or_else(unsupported)?;
        if let Some(digest) = text.strip_prefix("{SHA}") {
            let digest = BASE64.decode(digest.as_bytes()).ok().and_then(|it| it.try_into().ok());
            return digest.map(Self::Sha1).ok_or_else(|| malformed("{SHA}"));
        }
        if let Some(rest) = text.strip_prefix("$apr1$") {
            return parse_apr1(rest).ok_or_else(|| malformed("$apr1$"));
        }
        let rest = ["$2a$", "$2b$", "$2y$"].iter().find_map(|prefix| text.strip_prefix(prefix));
        let rest = rest.ok_or_else(unsupported)?;
        let (cost, salt, hash) = parse_bcrypt(rest).ok_or_else(|| malformed("bcrypt"))?;
        match cost {
            MIN_COST..=MAX_COST => Ok(Self::Bcrypt { cost, salt, hash }),
            _ => {
                Err(format!("has a hash of bcrypt whose cost is not from {MIN_COST} to {MAX_COST}"))
            }
        }
    }
}

// No hash is shown.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash")
    }
}

fn malformed(scheme: &str) -> String {
    format!("has a malformed {scheme} hash")
}

/// Parses `cost$` and 53 characters of salt and hash.
fn parse_bcrypt(text: &str) -> Option<(u8, [u8; 16], [u8; 23])> {
    /// The digits of bcrypt. Of the last digit of salt and hash not all bits count.
    static DIGITS: LazyLock<Encoding> = LazyLock::new(|| {
        let mut specification = Specification::new();
        specification
            .symbols
            .push_str("./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789");
        specification.check_trailing_bits = false;
        specification.encoding().expect("64 digits")
    });
    let (cost, rest) = text.split_once('$')?;
    let cost = Some(cost).filter(|it| it.len() == 2 && it.bytes().all(|it| it.is_ascii_digit()))?;
    let (salt, hash) = rest.as_bytes().split_at_checked(22)?;
    let decode = |text| DIGITS.decode(text).ok();
    Some((cost.parse().ok()?, decode(salt)?.try_into().ok()?, decode(hash)?.try_into().ok()?))
}

/// Parses `salt$` and 22 characters of the hash, whose bytes are in the order of MD5-crypt.
fn parse_apr1(text: &str) -> Option<PasswordHash> {
    /// The digits, of which the least significant comes first.
    static DIGITS: LazyLock<Encoding> = LazyLock::new(|| {
        let mut specification = Specification::new();
        specification
            .symbols
            .push_str("./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
        specification.bit_order = BitOrder::LeastSignificantFirst;
        specification.encoding().expect("64 digits")
    });
    /// Position in the hash of each decoded byte.
    const ORDER: [usize; 16] = [12, 6, 0, 13, 7, 1, 14, 8, 2, 15, 9, 3, 5, 10, 4, 11];
    let (salt, digits) = text.split_once('$')?;
    let salt = Some(salt.as_bytes()).filter(|salt| (1..=8).contains(&salt.len()))?;
    let bytes: [u8; 16] = DIGITS.decode(digits.as_bytes()).ok()?.try_into().ok()?;
    let mut hash = [0; 16];
    ORDER.iter().zip(bytes).for_each(|(place, byte)| hash[*place] = byte);
    Some(PasswordHash::Apr1 { salt: salt.into(), hash })
}
