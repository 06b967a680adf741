//! Tests of the store: watch events and their effects.

use super::*;

fn object(name: &str, content: Value) -> DynamicObject {
    let mut object = DynamicObject::new(name, &WatchedKind::by_name("Service").unwrap().resource());
    object.metadata.namespace = Some("shop".to_owned());
    object.metadata.resource_version = Some("7".to_owned());
    object.data = content;
    object
}

fn service(name: &str, port: u16) -> DynamicObject {
    object(name, json!({"spec": {"ports": [{"port": port}]}}))
}

fn service_watch() -> WatchKey {
    WatchKey::of_kind(WatchedKind::index_of("Service").unwrap())
}

/// Applies a complete list, and returns the changes.
fn list(known: &mut Store, objects: impl IntoIterator<Item = DynamicObject>) -> PendingChanges {
    known.apply_event(&service_watch(), Event::Init);
    for object in objects {
        known.apply_event(&service_watch(), Event::InitApply(object));
    }
    known.apply_event(&service_watch(), Event::InitDone);
    std::mem::take(&mut known.changes)
}

fn names(known: &Store) -> Vec<String> {
    known.all("Service").map(|((_, name), _)| name.clone()).collect()
}

#[test]
fn store_is_complete_once_every_kind_is_listed() {
    let mut known = Store::for_tests();
    for index in 0..KINDS.len() {
        assert!(!known.has_synced());
        known.apply_event(&WatchKey::of_kind(index), Event::Init);
        known.apply_event(&WatchKey::of_kind(index), Event::InitDone);
    }
    assert!(known.has_synced());
}

#[test]
fn list_takes_effect_when_complete() {
    let mut known = Store::for_tests();
    list(&mut known, [service("a", 80), service("b", 80)]);
    known.apply_event(&service_watch(), Event::Init);
    known.apply_event(&service_watch(), Event::InitApply(service("a", 80)));
    assert_eq!(names(&known), ["a", "b"]);
    known.apply_event(&service_watch(), Event::InitDone);
    assert_eq!(names(&known), ["a"]);
    assert!(known.changes.objects);
}

#[test]
fn identical_list_is_no_change() {
    let mut known = Store::for_tests();
    assert!(list(&mut known, [service("a", 80)]).objects);
    assert_eq!(list(&mut known, [service("a", 80)]), PendingChanges::default());
    assert!(list(&mut known, [service("a", 81)]).objects);
}

#[test]
fn status_only_update_requests_no_translation() {
    let mut known = Store::for_tests();
    list(&mut known, [service("a", 80)]);
    let mut with_status = service("a", 80);
    with_status.data["status"] = json!({"loadBalancer": {}});
    known.apply_event(&service_watch(), Event::Apply(with_status));
    assert!(!known.changes.needs_translation() && known.changes.statuses);
    assert_eq!(
        known.find("Service", "shop", "a").unwrap().status,
        Some(json!({"loadBalancer": {}}))
    );
}

#[test]
fn changed_status_addresses_request_a_translation() {
    let mut known = Store::for_tests();
    let mut change = |kind: &str, status: Value| {
        let spec = json!({ "gatewayClassName": "ours", "listeners": [] });
        let spec = if kind == "Gateway" { spec } else { json!({}) };
        let changed = object("a", json!({ "spec": spec, "status": status }));
        known.apply_event(
            &WatchKey::of_kind(WatchedKind::index_of(kind).unwrap()),
            Event::Apply(changed),
        );
        std::mem::take(&mut known.changes)
    };
    let [all, status_alone] = [true, false].map(|objects| PendingChanges {
        objects,
        statuses: true,
        ..PendingChanges::default()
    });
    let address = json!([{ "type": "IPAddress", "value": "192.0.2.7" }]);
    assert_eq!(change("Gateway", json!({})), all);
    assert_eq!(change("Gateway", json!({ "conditions": [] })), status_alone);
    assert_eq!(change("Gateway", json!({ "addresses": address })), all);
    assert_eq!(change("Gateway", json!({ "addresses": address, "listeners": [] })), status_alone);
    assert_eq!(change("Gateway", json!({})), all);
    let address = json!({ "ingress": [{ "ip": "192.0.2.7" }] });
    assert_eq!(change("Ingress", json!({})), all);
    assert_eq!(change("Ingress", json!({ "loadBalancer": address })), all);
    assert_eq!(change("Ingress", json!({ "loadBalancer": {} })), all);
    assert_eq!(change("Service", json!({})), all);
    assert_eq!(change("Service", json!({ "loadBalancer": address })), all);
    assert_eq!(
        change("Service", json!({ "loadBalancer": address, "conditions": [] })),
        status_alone
    );
    let name = json!({ "ingress": [{ "hostname": "lb.test" }] });
    assert_eq!(change("Service", json!({ "loadBalancer": name })), all);
}

#[test]
fn list_reports_changed_statuses() {
    let mut known = Store::for_tests();
    let mut with_status = service("a", 80);
    with_status.data["status"] = json!({"loadBalancer": {}});
    list(&mut known, [with_status.clone()]);
    assert_eq!(list(&mut known, [with_status]), PendingChanges::default());
    let statuses = PendingChanges { statuses: true, ..PendingChanges::default() };
    assert_eq!(list(&mut known, [service("a", 80)]), statuses);
}

#[test]
fn irrelevant_fields_and_annotations_are_no_change() {
    let mut known = Store::for_tests();
    let mut change = |kind: &str, annotation: &str, data: Value| {
        let mut changed = object("a", data);
        changed.metadata.annotations = Some([(annotation.to_owned(), "7".to_owned())].into());
        known.apply_event(
            &WatchKey::of_kind(WatchedKind::index_of(kind).unwrap()),
            Event::Apply(changed),
        );
        std::mem::take(&mut known.changes).objects
    };
    let ports = json!({"spec": {"ports": [{"port": 80}]}});
    assert!(change("Service", "example.com/leader", ports.clone()));
    assert!(!change("Service", "example.com/leads", ports));
    let backend =
        json!({"spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}});
    assert!(change("Ingress", "example.com/owner", backend.clone()));
    assert!(!change("Ingress", "example.com/owns", backend.clone()));
    assert!(change("Ingress", "nginx.ingress.kubernetes.io/ssl-redirect", backend.clone()));
    assert!(change("Ingress", "kubernetes.io/ingress.class", backend));
    let certificate = json!({"data": {"tls.crt": "UEVN", "tls.key": "UEVN"}});
    assert!(change("Secret", "cert-manager.io/alt-names", certificate));
    let with_more = json!({"data": {"tls.crt": "UEVN", "tls.key": "UEVN", "keystore.p12": "UEVN"}});
    assert!(!change("Secret", "cert-manager.io/common-name", with_more));
}

#[test]
fn invalid_object_is_left_out_and_reported() {
    let mut known = Store::for_tests();
    list(&mut known, [service("a", 80), object("bad", json!({"spec": {"ports": 80}}))]);
    let (objects, problems) = known.contents();
    let services = objects.iter().filter(|object| matches!(object, ApiObject::Service(_)));
    assert_eq!(services.count(), 1);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].object, "Service shop/bad");
}

#[test]
fn kind_absent_at_start_is_empty_and_later_absence_keeps_objects() {
    let mut known = Store::for_tests();
    known.mark_kind_absent(&service_watch());
    assert!(known.has_answer(&service_watch()));
    list(&mut known, [service("a", 80)]);
    known.mark_kind_absent(&service_watch());
    assert_eq!(names(&known), ["a"]);
    assert_eq!(known.changes, PendingChanges::default());
}

#[test]
fn endpoint_slice_change_takes_the_fast_path() {
    let mut known = Store::for_tests();
    let slices = WatchKey::of_kind(WatchedKind::index_of("EndpointSlice").unwrap());
    let mut slice = object("a-1", json!({"addressType": "IPv4", "endpoints": [], "ports": []}));
    slice.metadata.labels =
        Some([("kubernetes.io/service-name".to_owned(), "a".to_owned())].into());
    known.apply_event(&slices, Event::Apply(slice.clone()));
    assert_eq!(known.changes, PendingChanges { endpoints: true, ..PendingChanges::default() });
    known.changes = PendingChanges::default();
    known.apply_event(&slices, Event::Delete(slice));
    assert!(known.changes.endpoints && !known.changes.objects);
}

#[test]
fn list_of_one_namespace_leaves_the_others_alone() {
    let kind = service_watch().kind;
    let watch = |namespace: &str| {
        let scope = WatchScope::Namespace(namespace.to_owned());
        WatchKey { kind, scope }
    };
    let watches = ["bank", "shop"].map(watch);
    let mut known = Store::new(&watches, "sheave");
    let mut list = |watch: &WatchKey, objects: Vec<DynamicObject>| {
        known.apply_event(watch, Event::Init);
        objects.into_iter().for_each(|it| known.apply_event(watch, Event::InitApply(it)));
        known.apply_event(watch, Event::InitDone);
        let changed = std::mem::take(&mut known.changes).objects;
        (names(&known).join(" "), known.has_synced(), changed)
    };
    let [bank, shop] = &watches;
    let mut of_bank = service("vault", 80);
    of_bank.metadata.namespace = Some("bank".to_owned());
    assert_eq!(list(shop, vec![service("web", 80)]), ("web".to_owned(), false, true));
    assert_eq!(list(bank, vec![of_bank]), ("vault web".to_owned(), true, true));
    assert_eq!(list(shop, vec![service("web", 80)]), ("vault web".to_owned(), true, false));
    assert_eq!(list(shop, vec![]), ("vault".to_owned(), true, true));
}

#[test]
fn watch_of_one_object_reports_rejection_until_it_has_an_answer() {
    let kind = service_watch().kind;
    let watch = WatchKey { kind, scope: WatchScope::Object(("shop".to_owned(), "a".to_owned())) };
    let mut known = Store::new(&[], "sheave");
    assert!(known.has_answer(&watch));
    known.add_watch(watch.clone());
    assert!(known.has_synced() && !known.has_answer(&watch));

    known.mark_rejected(&watch, "no".to_owned());
    assert!(std::mem::take(&mut known.changes).objects && known.has_answer(&watch));
    known.mark_rejected(&watch, "no".to_owned());
    assert_eq!(known.changes, PendingChanges::default());
    assert_eq!(known.rejections(), [(watch.clone(), "no".to_owned())]);

    known.apply_event(&watch, Event::Init);
    known.apply_event(&watch, Event::InitApply(service("a", 80)));
    known.apply_event(&watch, Event::InitDone);
    assert_eq!((names(&known).join(" "), known.rejections()), ("a".to_owned(), vec![]));
    // What is known stays.
    known.mark_rejected(&watch, "no".to_owned());
    assert_eq!((names(&known).join(" "), known.rejections()), ("a".to_owned(), vec![]));

    known.remove_watch(&watch);
    known.apply_event(&watch, Event::Apply(service("a", 80)));
    assert_eq!(names(&known), Vec::<String>::new());
}

#[test]
fn pods_are_found_at_addresses_of_slices_of_their_own_namespace() {
    let mut known = Store::for_tests();
    let watch = WatchKey::of_kind(WatchedKind::index_of("EndpointSlice").unwrap());
    let endpoint = |address: &str, namespace: &str, name: &str| {
        let target = json!({"kind": "Pod", "namespace": namespace, "name": name, "uid": "u1"});
        json!({"addresses": [address], "conditions": {}, "targetRef": target})
    };
    let mut terminating = endpoint("10.0.0.2", "shop", "b");
    terminating["conditions"]["terminating"] = json!(true);
    let endpoints = json!([
        endpoint("10.0.0.1", "shop", "a"),
        terminating,
        endpoint("10.0.0.3", "bank", "vault"),
        endpoint("10.0.0.4", "shop", "d"),
        {"addresses": ["10.0.0.5"], "conditions": {}},
    ]);
    let content = json!({"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": endpoints});
    let mut slice = object("web-1", content);
    let label = ("kubernetes.io/service-name".to_owned(), "web".to_owned());
    slice.metadata.labels = Some([label].into());
    known.apply_event(&watch, Event::Apply(slice));
    let asked = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5"];
    let found = known.pods_at(&asked.iter().map(|it| it.parse().unwrap()).collect());
    let names: Vec<_> = found.values().map(|pod| (&*pod.namespace, &*pod.name)).collect();
    assert_eq!(names, [("shop", "a")]);
}
