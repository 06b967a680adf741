//! Client authentication, selection of certificates, and session resumption.

use rcgen::KeyPair;
use rustls::HandshakeKind;

use super::*;

fn shown(client: &TlsSession) -> &[u8] {
    &client.common_state().peer_certificates().unwrap()[0]
}

#[test]
fn server_name_selects_the_certificate() {
    let authority = TestAuthority::new();
    let exact = authority.certificate(&["a.example.com"]);
    let wildcard = authority.certificate(&["*.example.com"]);
    let default = authority.certificate(&["b.example.org"]);
    let sites = sites(
        &mut ServerTlsConfigs::default(),
        vec![
            site("a.example.com", &[&exact]),
            site("*.example.com", &[&wildcard]),
            site("", &[&default]),
        ],
    );
    for (name, certificate) in
        [("a.example.com", &exact), ("b.example.com", &wildcard), ("b.example.org", &default)]
    {
        let (client, _) =
            connected_sessions(&authority.trust(name, &[], None), config(&sites, name));
        assert_eq!(shown(&client), &*certificate.chain[0], "{name}");
        assert_eq!(client.common_state().alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    assert!(sites.find(None).is_some());
}

#[test]
fn first_matching_certificate_of_several_is_presented() {
    let authority = TestAuthority::new();
    let first = authority.certificate(&["a.example.com"]);
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let second = authority.certificate_of(rsa, &["b.example.com"]);
    let sites = sites(&mut ServerTlsConfigs::default(), vec![site("", &[&first, &second])]);
    for (name, certificate) in [("a.example.com", &first), ("b.example.com", &second)] {
        let (client, _) =
            connected_sessions(&authority.trust(name, &[], None), config(&sites, name));
        assert_eq!(shown(&client), &*certificate.chain[0], "{name}");
    }
}

#[test]
fn invalid_site_does_not_affect_others() {
    let authority = TestAuthority::new();
    let good = authority.certificate(&["a.example.com"]);
    let mixed =
        TlsCertificate { key: good.key.clone(), ..(*authority.certificate(&["b"])).clone() };
    let sites = sites(
        &mut ServerTlsConfigs::default(),
        vec![site("a.example.com", &[&good]), site("b.example.com", &[&Arc::new(mixed)])],
    );
    connected_sessions(
        &authority.trust("a.example.com", &[], None),
        config(&sites, "a.example.com"),
    );
    let bad = site_of(&sites, "b.example.com").unwrap();
    assert!(matches!(bad.mode, ServerTlsMode::Refuse));
    assert!(site_of(&sites, "c.example.com").is_none() && sites.find(None).is_none());
}

#[test]
fn client_certificates_are_verified_as_required() {
    let (ours, others) = (TestAuthority::new(), TestAuthority::new());
    let server = ours.certificate(&["a.example.com"]);
    let (known, stranger) = (ours.certificate(&["client"]), others.certificate(&["client"]));
    let attempt = |client: Option<&Arc<TlsCertificate>>, required: bool| {
        let site = site_for("", &[&server], Some(ours.clients(required)));
        let sites = sites(&mut ServerTlsConfigs::default(), vec![site]);
        let mut session = TlsSession::server(config(&sites, "a.example.com")).unwrap();
        let trust = ours.trust("a.example.com", &[], client);
        run_handshake(&mut client_session(&trust), &mut session)
            .1
            .map_err(|error| ClientTlsError::from(&error))
    };
    assert_eq!(attempt(Some(&known), true), Ok(()));
    assert_eq!(attempt(None, true), Err(ClientTlsError::ClientCertificate));
    assert_eq!(attempt(Some(&stranger), true), Err(ClientTlsError::ClientCertificate));
    for client in [Some(&known), None, Some(&stranger)] {
        assert_eq!(attempt(client, false), Ok(()));
    }
}

#[test]
fn session_resumes_after_certificate_rotation() {
    let authority = TestAuthority::new();
    let mut servers = ServerTlsConfigs::default();
    let trust = authority.trust("a.example.com", &[], None);
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
        let certificate = authority.certificate(&["a.example.com"]);
        let sites = sites(&mut servers, vec![site("", &[&certificate])]);
        let (client, _) = connected_sessions(&trust, config(&sites, "a.example.com"));
        assert_eq!(client.common_state().handshake_kind(), Some(kind));
    }
}

#[test]
fn unchanged_server_config_is_reused() {
    let authority = TestAuthority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let mut servers = ServerTlsConfigs::default();
    let mut put = || {
        let again = Arc::new(TlsCertificate::clone(&certificate));
        config(&sites(&mut servers, vec![site("", &[&again])]), "a.example.com")
    };
    assert!(Arc::ptr_eq(&put(), &put()));
}

#[test]
fn session_ticket_does_not_replace_a_client_certificate() {
    let authority = TestAuthority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let open = site("a.example.com", &[&certificate]);
    let closed = site_for("a.example.com", &[&certificate], Some(authority.clients(true)));
    let mut servers = ServerTlsConfigs::default();
    let [open, closed] = [open, closed].map(|site| ListenerTls { sni_rules: vec![site] });
    let listeners = servers.sni_tables([Some(&open), Some(&closed)].into_iter());
    let [open, closed] = [0, 1].map(|at: usize| listeners[at].clone().unwrap());
    let trust = authority.trust("a.example.com", &[], None);
    connected_sessions(&trust, config(&open, "a.example.com"));
    let mut session = TlsSession::server(config(&closed, "a.example.com")).unwrap();
    assert!(run_handshake(&mut client_session(&trust), &mut session).1.is_err());
}
