//! Rules of the queue and of what is remembered; hashes of other programs.

use super::*;

/// Hashes that `htpasswd` 2.4.71 made, with their passwords.
const VECTORS: [(&str, &str); 9] = [
    ("$2y$05$PhRmFM0twWKvgUsfTnxtCOUtaX/xEKwZl5DFPaJFrqB/Wo0l4wtZq", "secret"),
    ("$2y$05$BdLyVvl/p.GP2HvXjFr//OQFDbrKG/aksBvpBgUdhzP5Vd1Jn1Tvu", ""),
    ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "secret"),
    ("$apr1$1ldR0To.$ByyxwvND8ojBXW2mdNGtV/", "secret"),
    ("$apr1$cJSLc85Q$4Yp4rr/0zfRuZ0AOO9VDv0", ""),
    ("$apr1$0.mzEAC/$mSnVuToUqwf0hH7.a9L5h/", "Grüße"),
    ("$apr1$jNObV83P$NwkhpYSLVz2wrnjisWYln.", "abcdefghijabcdefghijabcdefghijabcdefghij"),
    // 80 times `x`, of which bcrypt takes 72.
    (
        "$2y$04$i/WSP2gXEldxMcMBFB041uxBQPteRnGvkKSTbE2x0J2OBb2aAwlrq",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ),
    // By the library of the system, `crypt`.
    ("$2b$05$aaaaaaaaaaaaaaaaaaaaaOEqz3KoKH6bru/RRpFuAJrwlceiJnvGu", "x"),
];

fn hash(text: &str) -> PasswordHash {
    PasswordHash::parse(text.as_bytes()).unwrap()
}

fn client(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

#[test]
fn passwords_match_the_hashes_that_htpasswd_made_of_them() {
    for (text, password) in VECTORS {
        let hash = hash(text);
        assert!(password::matches(&hash, password.as_bytes()), "{text}");
        for other in [format!("{password}x"), password.chars().skip(1).collect()] {
            let is_cut = password.len() == 72 && other.len() > 72;
            let matches = password::matches(&hash, other.as_bytes());
            assert_eq!(matches, is_cut || other == password, "{text} {other}");
        }
    }
}

/// The blocks of MD5 and the bits of the length both count in apr1. The hashes are OpenSSL's.
#[test]
fn apr1_is_that_of_openssl_for_each_length() {
    let text = "abcdefghijklm".repeat(8);
    for (length, hash) in [
        (15, "$apr1$s15$OfB2S6TYyvMs7idftCRDx."),
        (16, "$apr1$s16$9l23P3ZKQXM9gBpVfH94O1"),
        (17, "$apr1$s17$dbsEjo7zyDGoUbhI37Nj1/"),
        (33, "$apr1$s33$666roEco0Tj4yz0Tk8ebC/"),
        (100, "$apr1$s100$XDQt4wNvTjto./iiA3oFk/"),
    ] {
        let hash = PasswordHash::parse(hash.as_bytes()).unwrap();
        assert!(password::matches(&hash, &text.as_bytes()[..length]), "{length}");
        assert!(!password::matches(&hash, &text.as_bytes()[..length - 1]), "{length}");
    }
}

#[test]
fn verdicts_come_from_a_thread_and_right_passwords_are_remembered() {
    let verifier = PasswordVerifier::new(1);
    let hash = hash(VECTORS[0].0);
    let start = |password: &[u8]| match verifier.start(&hash, password, client(1)).unwrap() {
        VerificationStart::Known => None,
        VerificationStart::Pending(verdict) => Some(verdict.blocking_recv().unwrap()),
    };
    assert_eq!(start(b"wrong"), Some(false));
    assert_eq!(start(b"secret"), Some(true));
    assert_eq!(start(b"secret"), None);
    assert_eq!(start(b"wrong"), Some(false));
    // The same password of another hash was never right.
    let other = PasswordHash::parse(VECTORS[1].0.as_bytes()).unwrap();
    let start = verifier.start(&other, b"secret", client(1)).unwrap();
    assert!(matches!(start, VerificationStart::Pending(_)));
}

#[test]
fn passwords_that_wait_are_limited_for_a_client_and_for_all() {
    let verifier = PasswordVerifier::new(1);
    // No thread takes any.
    lock(&verifier.0.queue).threads = 1;
    let hash = hash(VECTORS[0].0);
    let mut verdicts = Vec::new();
    let mut start = |last| match verifier.start(&hash, b"wrong", client(last)) {
        Ok(VerificationStart::Pending(verdict)) => {
            verdicts.push(verdict);
            true
        }
        Ok(VerificationStart::Known) => panic!("a wrong password is known"),
        Err(failure) => {
            assert_eq!(failure, Failure::CredentialOverload);
            false
        }
    };
    let of_each: Vec<_> = (0..16).map(|last| (0..20).filter(|_| start(last)).count()).collect();
    assert_eq!(of_each[..8], [MAX_WAITING_PER_CLIENT; 8]);
    assert_eq!(of_each[8..], [0; 8]);
    // Clients that have gone make room.
    verdicts.truncate(MAX_WAITING - 1);
    let start = verifier.start(&hash, b"wrong", client(9));
    assert!(matches!(start, Ok(VerificationStart::Pending(_))));
}

#[test]
fn unknown_users_get_one_of_the_hashes_each_always_the_same() {
    let verifier = PasswordVerifier::new(1);
    let users: Vec<_> = VECTORS.iter().map(|(text, _)| ((*text).into(), hash(text))).collect();
    let position = |name: &str| {
        let decoy = verifier.decoy(&users, name);
        users.iter().position(|(_, hash)| hash == decoy).unwrap()
    };
    let names: Vec<_> = (0..200).map(|number| format!("user-{number}")).collect();
    let positions: HashSet<_> = names.iter().map(|name| position(name)).collect();
    assert_eq!(positions.len(), users.len());
    assert!(names.iter().all(|name| position(name) == position(name)));
}

#[test]
fn passwords_in_use_outlive_generations_and_others_are_forgotten() {
    let mut set = RightPasswords::default();
    let key = |number: usize| {
        let mut key = PasswordKey::default();
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    };
    (0..GENERATION * 3).for_each(|number| set.insert(key(number)));
    assert!(set.recent.len() + set.older.len() <= 2 * GENERATION);
    assert!(!set.recent.contains(&key(0)) && !set.older.contains(&key(0)));
}

#[test]
fn threads_end_with_the_verifier() {
    let verifier = PasswordVerifier::new(8);
    let state = Arc::clone(&verifier.0);
    let start = verifier.start(&hash(VECTORS[2].0), b"secret", client(1)).unwrap();
    let VerificationStart::Pending(verdict) = start else { panic!("nothing is known") };
    assert!(verdict.blocking_recv().unwrap());
    let weak = Arc::downgrade(&state);
    drop(state);
    drop(verifier);
    // The last thread drops the state when it ends.
    while weak.strong_count() > 0 {
        thread::yield_now();
    }
}
