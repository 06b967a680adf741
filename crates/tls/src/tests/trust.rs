//! Verification of endpoints.

use gateway::snapshot::EndpointProtocol;

use super::*;

#[test]
fn endpoint_certificate_is_verified_by_authority_and_name() {
    let (ours, others) = (TestAuthority::new(), TestAuthority::new());
    let endpoint = ours.certificate(&["a.example.com", "*.b.example.com", "spiffe://cluster/a"]);
    let dns = |name: &str| SubjectName::Dns(name.into());
    let uri = |name: &str| SubjectName::Uri(name.into());
    let sites = sites(&mut ServerTlsConfigs::default(), vec![site("", &[&endpoint])]);
    let attempt = |authority: &TestAuthority, name: &str, names: &[SubjectName]| {
        let mut client = client_session(&authority.trust(name, names, None));
        let mut server = TlsSession::server(config(&sites, "any")).unwrap();
        run_handshake(&mut client, &mut server).0.map_err(|error| EndpointTlsError::from(&error))
    };
    let refused = Err(EndpointTlsError::Certificate);
    assert_eq!(attempt(&ours, "a.example.com", &[]), Ok(()));
    assert_eq!(attempt(&ours, "c.example.com", &[]), refused);
    assert_eq!(attempt(&others, "a.example.com", &[]), refused);
    assert_eq!(attempt(&ours, "c.example.com", &[uri("spiffe://cluster/a")]), Ok(()));
    assert_eq!(attempt(&ours, "a.example.com", &[uri("spiffe://cluster/b")]), refused);
    assert_eq!(attempt(&ours, "c", &[dns("x"), dns("c.b.example.com")]), Ok(()));
    assert_eq!(attempt(&ours, "c", &[dns("*.b.example.com")]), Ok(()));
    assert_eq!(attempt(&ours, "c", &[dns("*.example.com")]), refused);
    assert_eq!(attempt(&others, "c", &[uri("spiffe://cluster/a")]), refused);
}

#[test]
fn tls_with_an_invalid_server_name_is_impossible() {
    let authority = TestAuthority::new();
    let trust = authority.trust("not a name", &[], None);
    assert!(matches!(ConnectionSecurity::of_requests(Some(&trust)), ConnectionSecurity::Unusable));
    assert!(matches!(ConnectionSecurity::of_connections(None), ConnectionSecurity::Plain));
}

#[test]
fn client_tls_config_is_rebuilt_only_when_the_policy_changes() {
    let authority = TestAuthority::new();
    let trusts = EndpointTlsFactory::default();
    let mut settings = BackendSettings::default();
    assert!(trusts.context_for(&settings, None).is_none());
    let asked = EndpointTls {
        server_name: "a.example.com".into(),
        subject_names: Vec::new(),
        roots: TrustAnchors::Given(vec![authority.der]),
        client: None,
    };
    settings.tls = Some(Arc::new(asked.clone()));
    let first = trusts.context_for(&settings, None).unwrap();
    settings.tls = Some(Arc::new(asked));
    let second = trusts.context_for(&settings, Some(&first)).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    settings.protocol = EndpointProtocol::Http2;
    assert!(!Arc::ptr_eq(&first, &trusts.context_for(&settings, Some(&first)).unwrap()));
}
