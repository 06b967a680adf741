//! Properties of names: for any listeners, server names and hosts, a request reaches the routes of the SNI entry that
//! its connection's handshake was with, or none.

use std::sync::LazyLock;

use gateway::matching::{
    HostPattern, MatchConditions, OwnedHostName, PathPattern, PlainRequest, RouteMatch, RouteTable,
};
use gateway::snapshot::{
    ClientCertificates, ListenerTls, PrivateKey, SniRule, TlsCertificate, TlsTermination,
};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tls::ServerTlsConfigs;

use super::*;

/// Host patterns of listeners; `""` is every host.
const PATTERNS: [&str; 7] = [
    "",
    "example.com",
    "*.example.com",
    "secure.example.com",
    "*.secure.example.com",
    "a.secure.example.com",
    "example.org",
];

/// Names that clients request, before their spelling is varied.
const NAMES: [&str; 10] = [
    "",
    "example.com",
    "secure.example.com",
    "a.secure.example.com",
    "b.secure.example.com",
    "other.example.com",
    "example.org",
    "example.net",
    "127.0.0.1",
    "[2001:db8::1]",
];

/// The treatment of the connections for a pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ListenerKind {
    /// They carry requests, of clients that need a certificate of these authorities; if empty, of any client.
    Requests(&'static [usize]),
    /// They carry requests of clients that are asked for a certificate and may send none.
    Fallback,
    Decrypted,
    PassedThrough,
}

/// The listeners at an address: a kind for each pattern that has one.
type ListenerKinds = [Option<ListenerKind>; PATTERNS.len()];

/// A certificate authority.
struct TestAuthority {
    der: Box<[u8]>,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = (**params.self_signed(&key).unwrap().der()).into();
        Self { der, issuer: Issuer::new(params, key) }
    }

    fn certificate(&self, name: &str) -> Arc<TlsCertificate> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Arc::new(TlsCertificate {
            name: name.into(),
            chain: vec![(**signed.der()).into()],
            key: PrivateKey::Pkcs8(key.serialize_der().into()),
        })
    }
}

static AUTHORITIES: LazyLock<[TestAuthority; 2]> =
    LazyLock::new(|| [TestAuthority::new(), TestAuthority::new()]);
static CERTIFICATE: LazyLock<Arc<TlsCertificate>> =
    LazyLock::new(|| AUTHORITIES[0].certificate("example.com"));

fn pattern(place: usize) -> HostPattern {
    match PATTERNS[place] {
        "" => HostPattern::Any,
        text => HostPattern::parse(text).unwrap(),
    }
}

fn of_authorities(authorities: &[usize], required: bool) -> Option<ClientCertificates> {
    let roots: Vec<_> = authorities.iter().map(|it| AUTHORITIES[*it].der.clone()).collect();
    let clients = ClientCertificates { roots, required, revocation: None, max_intermediates: None };
    (!clients.roots.is_empty()).then_some(clients)
}

fn sni_rule(place: usize, kind: ListenerKind) -> SniRule {
    let clients = match kind {
        ListenerKind::Requests(authorities) => of_authorities(authorities, true),
        ListenerKind::Fallback => of_authorities(&[0], false),
        ListenerKind::Decrypted | ListenerKind::PassedThrough => None,
    };
    let terms = TlsTermination { certificates: vec![Arc::clone(&CERTIFICATE)], clients };
    SniRule {
        hosts: pattern(place),
        terminate: (kind != ListenerKind::PassedThrough).then(|| Arc::new(terms)),
        payload: match kind {
            ListenerKind::Requests(_) | ListenerKind::Fallback => TlsPayload::Requests,
            ListenerKind::Decrypted | ListenerKind::PassedThrough => TlsPayload::Connections(None),
        },
    }
}

/// Builds a listener as translation does: SNI entries for all TLS, routes for kinds that carry requests. The index of
/// a rule is the index of its listener's pattern.
fn listener(kinds: &ListenerKinds) -> ActiveListener {
    let served = || kinds.iter().enumerate().filter_map(|(place, kind)| Some((place, (*kind)?)));
    let mut all: Vec<_> = served().map(|(place, kind)| sni_rule(place, kind)).collect();
    all.sort_by_key(|site| std::cmp::Reverse(site.hosts.specificity()));
    let mut routes = RouteTable::default();
    let path = PathPattern::prefix("/").unwrap();
    let asked = Arc::new(RouteMatch { path, conditions: MatchConditions::default() });
    for (place, kind) in served() {
        if matches!(kind, ListenerKind::Requests(_) | ListenerKind::Fallback) {
            routes.add_rule(&pattern(place), &HostPattern::Any, &asked, &rule(place));
        }
    }
    let tls = ListenerTls { sni_rules: all };
    let address = "127.0.0.1:443".parse().unwrap();
    ActiveListener {
        name: "test".into(),
        bound: Arc::new(BoundListener::new(0, TransportProtocol::Tcp, address, address, 1)),
        public_port: 443,
        client: Arc::default(),
        head_treatment: HeadTreatment::Described,
        protocol: ListenerProtocol::Http(routes),
        sni_table: ServerTlsConfigs::default().sni_tables([Some(&tls)].into_iter()).remove(0),
        http3: None,
        interception: None,
        consumer_routes: BTreeMap::new(),
        sources: None,
    }
}

fn rule(index: usize) -> Arc<Rule> {
    Arc::new(Rule {
        index,
        name: format!("{index}").into(),
        targets: Vec::new(),
        filters: None,
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
        affinity: None,
    })
}

/// Returns the facts of a handshake for this name; `None` if it is rejected.
fn tls_info_for(listener: &ActiveListener, server_name: Option<&str>) -> Option<TlsInfo> {
    let server_name = server_name.map(|name| OwnedHostName::new(name.as_bytes()));
    let found =
        listener.sni_table.as_ref()?.find(server_name.as_ref().map(OwnedHostName::borrowed))?;
    let site = Some(Arc::clone(found));
    Some(TlsInfo { server_name, sni_entry: site, version: None, client: None })
}

/// Returns the index of the pattern whose routes serve the request.
fn served(
    listener: &ActiveListener,
    tls_info: Option<&TlsInfo>,
    host: &str,
) -> Result<usize, Failure> {
    let (method, host, path) = ("GET".to_owned(), host.to_owned(), "/".to_owned());
    let request = PlainRequest { method, host, path, ..PlainRequest::default() };
    listener.request_rule(tls_info, || None, &request).map(|rule| rule.index)
}

/// Returns the index of the pattern that a name belongs to, by the simplest definition.
fn place_of(kinds: &ListenerKinds, written: Option<&str>) -> Option<usize> {
    let Some(written) = written else { return kinds[0].map(|_| 0) };
    let lower = written.to_lowercase();
    let name = if written.len() > 254 { "" } else { lower.strip_suffix('.').unwrap_or(&lower) };
    let is_meant = |place: &usize| match PATTERNS[*place].split_once("*.") {
        None if PATTERNS[*place].is_empty() => true,
        None => PATTERNS[*place] == name,
        Some((_, below)) => name.strip_suffix(below).is_some_and(|front| front.ends_with('.')),
    };
    let meant = (0..PATTERNS.len()).filter(|place| kinds[*place].is_some()).filter(is_meant);
    meant.max_by_key(|place| pattern(*place).specificity())
}

fn kinds() -> impl Strategy<Value = ListenerKinds> {
    let kind = prop_oneof![
        3 => Just(ListenerKind::Requests(&[])),
        3 => Just(ListenerKind::Requests(&[0])),
        1 => Just(ListenerKind::Requests(&[1])),
        1 => Just(ListenerKind::Requests(&[0, 1])),
        1 => Just(ListenerKind::Fallback),
        1 => Just(ListenerKind::Decrypted),
        1 => Just(ListenerKind::PassedThrough),
    ];
    proptest::array::uniform7(prop::option::weighted(0.6, kind))
}

/// Generates a name in varied spelling: any case, trailing dots, or far too long.
fn spelled_name() -> impl Strategy<Value = String> {
    let dots = prop::sample::select(vec!["", "", ".", ".", "..", "..."]);
    let name = (prop::sample::select(NAMES.to_vec()), any::<u32>(), dots, 0..20_u8);
    name.prop_map(|(name, upper, dots, long)| {
        let in_case = |(place, char): (usize, char)| match upper >> (place % 32) & 1 {
            0 => char,
            _ => char.to_ascii_uppercase(),
        };
        let name: String = name.chars().enumerate().map(in_case).collect();
        let front = if long == 0 { "x".repeat(300) + "." } else { String::new() };
        format!("{front}{name}{dots}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn request_reaches_only_the_routes_of_its_negotiated_site(
        kinds in kinds(),
        server_name in prop::option::weighted(0.9, spelled_name()),
        other in spelled_name(),
        is_same in any::<bool>(),
    ) {
        let host = server_name.as_ref().filter(|_| is_same).unwrap_or(&other);
        let listener = listener(&kinds);
        let tls_info = tls_info_for(&listener, server_name.as_deref());
        let of_handshake = place_of(&kinds, server_name.as_deref());
        prop_assert_eq!(tls_info.is_some(), of_handshake.is_some());
        let (Some(tls_info), Some(of_handshake)) = (tls_info, of_handshake) else { return Ok(()) };
        let wanted = place_of(&kinds, Some(host));
        let carries = matches!(kinds[of_handshake], Some(ListenerKind::Requests(_) | ListenerKind::Fallback));
        let expected = match wanted {
            None => Err(Failure::NoRoute),
            Some(wanted) if wanted == of_handshake && carries => Ok(wanted),
            Some(_) => Err(Failure::Misdirected),
        };
        prop_assert_eq!(served(&listener, Some(&tls_info), host), expected);
        // A rebuilt table gives the same result.
        let again = self::listener(&kinds);
        prop_assert_eq!(served(&again, Some(&tls_info), host), expected);
        // A connection without TLS is older than the listener's TLS.
        let plain = if wanted.is_some() { Failure::Misdirected } else { Failure::NoRoute };
        prop_assert_eq!(served(&listener, None, host), Err(plain));
    }

    #[test]
    fn handshake_grants_no_access_to_a_site_with_stricter_client_certificates(
        before in kinds(),
        after in kinds(),
        server_name in prop::option::weighted(0.9, spelled_name()),
        other in spelled_name(),
        is_same in any::<bool>(),
    ) {
        let host = server_name.as_ref().filter(|_| is_same).unwrap_or(&other);
        let Some(tls_info) = tls_info_for(&listener(&before), server_name.as_deref()) else { return Ok(()) };
        let Ok(place) = served(&listener(&after), Some(&tls_info), host) else { return Ok(()) };
        prop_assert_eq!(Some(place), place_of(&after, server_name.as_deref()));
        let shown = place_of(&before, server_name.as_deref()).and_then(|place| before[place]);
        prop_assert!(shown != Some(ListenerKind::PassedThrough));
        if let Some(ListenerKind::Requests(asked @ [_, ..])) = after[place] {
            let Some(ListenerKind::Requests(shown @ [_, ..])) = shown else {
                return Err(TestCaseError::fail("no certificate was presented"));
            };
            prop_assert!(shown.iter().all(|authority| asked.contains(authority)));
        }
    }
}
