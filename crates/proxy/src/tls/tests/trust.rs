//! Whom endpoints have to be.

use gateway::snapshot::EndpointProtocol;

use super::*;

#[test]
fn endpoint_certificate_is_verified_by_authority_and_name() {
    let (ours, others) = (Authority::new(), Authority::new());
    let endpoint = ours.certificate(&["a.example.com", "*.b.example.com", "spiffe://cluster/a"]);
    let dns = |name: &str| SubjectName::Dns(name.into());
    let uri = |name: &str| SubjectName::Uri(name.into());
    let sites = sites(&mut Servers::new(), vec![site("", &[&endpoint])]);
    let attempt = |authority: &Authority, name: &str, names: &[SubjectName]| {
        let mut client = client_session(&authority.trust(name, names, None));
        let mut server = Session::server(config(&sites, "any")).unwrap();
        shake(&mut client, &mut server).0.map_err(|error| Untrusted::from(&error))
    };
    let refused = Err(Untrusted::Certificate);
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
    let authority = Authority::new();
    let trust = authority.trust("not a name", &[], None);
    assert!(matches!(Security::of_requests(Some(&trust)), Security::Impossible));
    assert!(matches!(Security::of_connections(None), Security::Plain));
}

#[test]
fn client_tls_config_is_rebuilt_only_when_the_policy_changes() {
    let authority = Authority::new();
    let trusts = Trusts::new();
    let mut settings = BackendSettings::default();
    assert!(trusts.of(&settings, None).is_none());
    let asked = EndpointTls {
        server_name: "a.example.com".into(),
        subject_names: Vec::new(),
        roots: TrustAnchors::Given(vec![authority.der]),
        client: None,
    };
    settings.tls = Some(Arc::new(asked.clone()));
    let first = trusts.of(&settings, None).unwrap();
    settings.tls = Some(Arc::new(asked));
    let second = trusts.of(&settings, Some(&first)).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    settings.protocol = EndpointProtocol::Http2;
    assert!(!Arc::ptr_eq(&first, &trusts.of(&settings, Some(&first)).unwrap()));
}
