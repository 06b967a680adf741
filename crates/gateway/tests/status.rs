//! Status updates: writes nothing twice, and keeps the entries of other controllers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use gateway::managed_services::PublishedAddress;
use gateway::objects::ParentRef;
use gateway::snapshot::TransportProtocol;
use gateway::status::{
    ConditionReason, ConditionType, GatewayClassStatus, GatewayStatus, ListenerStatus,
    ObjectIdentity, ParentStatus, ResourceStatus, SlotSharing, StatusCondition, StatusDetail,
    StatusUpdate, TargetStatus, report_port_unavailable, report_slot_assignment, report_version,
    status_removal, status_update,
};
use gateway::{TranslationSettings, translate};
use serde_json::{Value, json};

/// Our name in statuses.
const CONTROLLER: &str = "sheave.dev/gateway";
const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-02-02T00:00:00Z";

fn status(kind: &'static str, observed_generation: i64, detail: StatusDetail) -> ResourceStatus {
    let object = ObjectIdentity { kind, namespace: "shop".into(), name: "web".into() };
    ResourceStatus { object, observed_generation, detail }
}

fn accepted() -> StatusCondition {
    StatusCondition::yes(ConditionType::Accepted, ConditionReason::Accepted)
}

fn refused(message: &str) -> StatusCondition {
    StatusCondition::no(
        ConditionType::Accepted,
        ConditionReason::NotAllowedByListeners,
        message.to_owned(),
    )
}

fn parent(name: &str, condition: StatusCondition) -> ParentStatus {
    let parent = ParentRef { name: name.to_owned(), ..Default::default() };
    ParentStatus { parent, conditions: vec![condition] }
}

fn route(parents: Vec<ParentStatus>) -> ResourceStatus {
    status("HTTPRoute", 2, StatusDetail::Route(parents))
}

fn gateway(conditions: Vec<StatusCondition>, listeners: &[&str]) -> ResourceStatus {
    let listener = |name: &&str| ListenerStatus {
        name: (*name).to_owned(),
        supported_kinds: vec!["HTTPRoute"],
        attached_routes: 1,
        sockets: vec![(([10, 0, 0, 1], 80).into(), TransportProtocol::Tcp)],
        conditions: vec![
            accepted(),
            StatusCondition::yes(ConditionType::Programmed, ConditionReason::Programmed),
        ],
    };
    let addresses = vec![PublishedAddress::Ip(IpAddr::from([10, 0, 0, 1]))];
    let listeners = listeners.iter().map(listener).collect();
    let detail = GatewayStatus { addresses, conditions, listeners, attached_listener_sets: 0 };
    status("Gateway", 2, StatusDetail::Gateway(detail))
}

/// Returns the status in the cluster after an update.
fn after(written: Option<StatusUpdate>, current: &Value) -> Value {
    match written {
        None => current.clone(),
        Some(StatusUpdate::Replace(status)) => status,
        Some(StatusUpdate::Apply(status)) => status,
    }
}

fn foreign(name: &str) -> Value {
    json!({
        "parentRef": { "name": name },
        "controllerName": "example.com/other",
        "conditions": [],
    })
}

#[test]
fn unchanged_status_is_not_written() {
    let policy = TargetStatus {
        kind: "Service",
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        section_name: Some("http".to_owned()),
        slots: None,
        conditions: vec![accepted()],
    };
    let class = status(
        "GatewayClass",
        1,
        StatusDetail::GatewayClass(GatewayClassStatus::new(vec![accepted()])),
    );
    let set = StatusDetail::ListenerSet(vec![accepted()], Vec::new());
    let statuses = [
        class,
        gateway(vec![accepted()], &["a", "b"]),
        gateway(vec![accepted()], &[]),
        status("ListenerSet", 1, set),
        route(vec![parent("edge", accepted()), parent("other", refused("no"))]),
        status("BackendPolicy", 7, StatusDetail::Policy(vec![policy])),
    ];
    for status in statuses {
        let first = status_update(&status, CONTROLLER, None, THEN);
        assert!(first.is_some(), "{status:?}");
        let current = after(first, &Value::Null);
        assert_eq!(status_update(&status, CONTROLLER, Some(&current), NOW), None, "{current}");
    }
}

#[test]
fn route_status_has_the_gateway_api_shape() {
    let section = ParentRef {
        name: "edge".to_owned(),
        namespace: Some("infra".to_owned()),
        section_name: Some("http".to_owned()),
        port: Some(80),
        ..Default::default()
    };
    let status =
        route(vec![ParentStatus { parent: section, conditions: vec![refused("not here")] }]);
    let expected = json!({ "parents": [{
        "parentRef": {
            "group": "gateway.networking.k8s.io",
            "kind": "Gateway",
            "namespace": "infra",
            "name": "edge",
            "sectionName": "http",
            "port": 80,
        },
        "controllerName": "sheave.dev/gateway",
        "conditions": [{
            "type": "Accepted",
            "status": "False",
            "reason": "NotAllowedByListeners",
            "message": "not here",
            "observedGeneration": 2,
            "lastTransitionTime": NOW,
        }],
    }] });
    assert_eq!(
        status_update(&status, CONTROLLER, None, NOW),
        Some(StatusUpdate::Replace(expected))
    );
}

#[test]
fn last_transition_time_changes_only_with_the_condition_status() {
    let first = after(
        status_update(&route(vec![parent("edge", accepted())]), CONTROLLER, None, THEN),
        &Value::Null,
    );
    let newer =
        ResourceStatus { observed_generation: 3, ..route(vec![parent("edge", accepted())]) };
    let second = after(status_update(&newer, CONTROLLER, Some(&first), NOW), &first);
    let condition = &second["parents"][0]["conditions"][0];
    assert_eq!(condition["observedGeneration"], 3);
    assert_eq!(condition["lastTransitionTime"], THEN);
    let third = route(vec![parent("edge", refused("no"))]);
    let third = after(status_update(&third, CONTROLLER, Some(&second), NOW), &second);
    assert_eq!(third["parents"][0]["conditions"][0]["lastTransitionTime"], NOW);
}

#[test]
fn parent_statuses_of_other_controllers_keep_their_position() {
    let (edge, other) = (parent("edge", accepted()), parent("other", accepted()));
    let ours = |parents| {
        after(status_update(&route(parents), CONTROLLER, None, THEN), &Value::Null)["parents"]
            .clone()
    };
    let (stale, kept) = (ours(vec![parent("gone", accepted())]), ours(vec![other.clone()]));
    let current = json!({ "parents": [foreign("a"), stale[0], kept[0], foreign("b")] });
    let status =
        after(status_update(&route(vec![edge, other]), CONTROLLER, Some(&current), NOW), &current);
    let names: Vec<_> =
        status["parents"].as_array().unwrap().iter().map(|it| &it["parentRef"]["name"]).collect();
    assert_eq!(names, ["a", "other", "b", "edge"]);
    assert_eq!(status["parents"][0], foreign("a"));
    assert_eq!(status["parents"][1], kept[0]);
}

#[test]
fn parent_reference_matches_with_defaults_filled_in() {
    let status = route(vec![parent("edge", accepted())]);
    let mut current = after(status_update(&status, CONTROLLER, None, THEN), &Value::Null);
    let reference = current["parents"][0]["parentRef"].as_object_mut().unwrap();
    reference.insert("namespace".to_owned(), json!("shop"));
    reference.remove("kind");
    let status = after(status_update(&status, CONTROLLER, Some(&current), NOW), &current);
    assert_eq!(status["parents"].as_array().unwrap().len(), 1);
    assert_eq!(status["parents"][0]["conditions"][0]["lastTransitionTime"], THEN);
}

#[test]
fn status_lists_and_messages_stay_within_kubernetes_limits() {
    let others: Vec<_> = (0..30).map(|n| foreign(&format!("other-{n}"))).collect();
    let current = json!({ "parents": others });
    let ours = (0..5).map(|n| parent(&format!("edge-{n}"), accepted())).collect();
    let status = after(status_update(&route(ours), CONTROLLER, Some(&current), NOW), &current);
    let parents = status["parents"].as_array().unwrap();
    assert_eq!(parents.len(), 32);
    assert_eq!(parents[..30], others);

    let long = refused(&"ä".repeat(40_000));
    let status = after(
        status_update(&route(vec![parent("edge", long)]), CONTROLLER, None, NOW),
        &Value::Null,
    );
    let message = status["parents"][0]["conditions"][0]["message"].as_str().unwrap();
    assert_eq!(message.chars().count(), 32_768);

    let theirs = |n: usize| json!({ "type": format!("example.com/T{n}"), "status": "True" });
    let current = json!({ "conditions": (0..8).map(theirs).collect::<Vec<_>>() });
    let Some(StatusUpdate::Apply(ours)) =
        status_update(&gateway(vec![accepted()], &[]), CONTROLLER, Some(&current), NOW)
    else {
        panic!("nothing is written")
    };
    assert_eq!(ours["conditions"], json!([]), "there is no room beside those of others");
}

#[test]
fn foreign_conditions_and_listeners_are_not_applied() {
    let status = gateway(vec![accepted()], &["a"]);
    let mut current = after(status_update(&status, CONTROLLER, None, THEN), &Value::Null);
    let foreign = json!({ "type": "example.com/Seen", "status": "True" });
    current["conditions"].as_array_mut().unwrap().push(foreign.clone());
    current["listeners"][0]["conditions"].as_array_mut().unwrap().push(foreign);
    assert_eq!(status_update(&status, CONTROLLER, Some(&current), NOW), None);
    let changed = gateway(vec![refused("no")], &["a"]);
    let Some(StatusUpdate::Apply(ours)) = status_update(&changed, CONTROLLER, Some(&current), NOW)
    else {
        panic!("nothing is written")
    };
    assert!(!ours.to_string().contains("example.com"), "{ours}");
    assert_eq!(ours["listeners"][0]["conditions"][0]["lastTransitionTime"], THEN);
}

#[test]
fn removed_conditions_and_listeners_are_written_once() {
    let insecure = StatusCondition::yes(
        ConditionType::InsecureFrontendValidationMode,
        ConditionReason::ConfigurationChanged,
    );
    let before = gateway(vec![accepted(), insecure], &["a", "b"]);
    let current = after(status_update(&before, CONTROLLER, None, THEN), &Value::Null);
    for status in [
        gateway(vec![accepted()], &["a", "b"]),
        gateway(vec![accepted(), before_last(&before)], &["a"]),
    ] {
        let Some(StatusUpdate::Apply(ours)) =
            status_update(&status, CONTROLLER, Some(&current), NOW)
        else {
            panic!("nothing is written")
        };
        assert_eq!(status_update(&status, CONTROLLER, Some(&ours), NOW), None);
    }
}

fn before_last(status: &ResourceStatus) -> StatusCondition {
    let StatusDetail::Gateway(detail) = &status.detail else { panic!("no Gateway") };
    detail.conditions.last().unwrap().clone()
}

#[test]
fn initial_gateway_conditions_are_replaced() {
    let waiting = json!({ "conditions": [{
        "type": "Accepted", "status": "Unknown", "reason": "Pending",
        "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }] });
    let status = gateway(vec![accepted()], &[]);
    let status = after(status_update(&status, CONTROLLER, Some(&waiting), NOW), &waiting);
    assert_eq!(status["conditions"][0]["lastTransitionTime"], NOW);
    assert_eq!(status["addresses"], json!([{ "type": "IPAddress", "value": "10.0.0.1" }]));
    assert_eq!(status["attachedListenerSets"], json!(0),);
}

#[test]
fn own_parent_status_is_withdrawn_from_an_unmanaged_route() {
    let status = route(vec![parent("edge", accepted())]);
    let current = json!({ "parents": [foreign("a")] });
    assert_eq!(status_removal(&current, CONTROLLER), None);
    assert_eq!(status_removal(&Value::Null, CONTROLLER), None);
    let with_ours = after(status_update(&status, CONTROLLER, Some(&current), NOW), &current);
    assert_eq!(status_removal(&with_ours, CONTROLLER), Some(StatusUpdate::Replace(current)));
}

#[test]
fn bind_failure_sets_programmed_false_on_the_affected_listeners() {
    let mut statuses = [gateway(vec![accepted()], &["a", "b"])];
    let before = statuses.clone();
    report_port_unavailable(
        &mut statuses,
        (([10, 0, 0, 1], 80).into(), TransportProtocol::Udp),
        "in use",
    );
    assert_eq!(statuses, before);
    report_port_unavailable(
        &mut statuses,
        (([10, 0, 0, 1], 80).into(), TransportProtocol::Tcp),
        "in use",
    );
    let status = after(status_update(&statuses[0], CONTROLLER, None, NOW), &Value::Null);
    for listener in status["listeners"].as_array().unwrap() {
        let condition = &listener["conditions"][1];
        assert_eq!(condition["type"], "Programmed");
        assert_eq!(condition["reason"], "PortUnavailable");
        assert_eq!(
            (&condition["status"], &condition["message"]),
            (&json!("False"), &json!("in use"))
        );
    }
    assert_eq!(status["conditions"][0]["status"], "True");
}

#[test]
fn cap_division_condition_is_set_on_affected_policy_targets() {
    let (objects, _) = gateway::parse(include_str!("../testdata/backend-policies.in.yaml"), "in");
    let mut statuses = translate(&objects, &TranslationSettings::default()).statuses;
    let sharing = |replicas| SlotSharing { replicas, is_leased: false };
    report_slot_assignment(&mut statuses, sharing(2));
    report_slot_assignment(&mut statuses, sharing(3));
    let assigned = |name: &str| -> Vec<_> {
        let status = statuses.iter().find(|it| &*it.object.name == name).unwrap();
        let StatusDetail::Policy(targets) = &status.detail else { panic!("{name} is no policy") };
        let all = targets.iter().map(|target| target.conditions.iter());
        let assigned =
            all.map(|it| it.filter(|it| it.kind == ConditionType::CapAssigned).collect());
        assigned
            .map(|it: Vec<_>| it.iter().map(|it| it.message.clone()).collect::<String>())
            .collect()
    };
    let begins = |told: &[String], begin: &str| told.len() == 1 && told[0].starts_with(begin);
    let all = "in flight per endpoint, divided among 3 replicas: 1";
    assert!(begins(
        &assigned("everything"),
        &format!("4 requests {all} each, and 1 more for 1 of")
    ));
    assert!(begins(&assigned("capped"), &format!("1 request {all} for 1 of them")));
    assert_eq!(assigned("learned"), [""]);
}

#[test]
fn gateway_class_reports_the_supported_crd_version() {
    let cases = [
        (Some("v1.6.3"), "True", "SupportedVersion"),
        (Some("v1.7.0-rc.1"), "True", "SupportedVersion"),
        (Some("v1.5.1"), "False", "UnsupportedVersion"),
        (Some("v2.0.0"), "False", "UnsupportedVersion"),
        (Some("main"), "False", "UnsupportedVersion"),
        (None, "False", "UnsupportedVersion"),
    ];
    for (version, holds, reason) in cases {
        let class = status(
            "GatewayClass",
            1,
            StatusDetail::GatewayClass(GatewayClassStatus::new(vec![accepted()])),
        );
        let mut statuses = [class, gateway(vec![accepted()], &[])];
        report_version(&mut statuses, version);
        report_version(&mut statuses, version);
        let written = after(status_update(&statuses[0], CONTROLLER, None, NOW), &Value::Null);
        assert_eq!(written["conditions"].as_array().unwrap().len(), 2, "{written}");
        let condition = &written["conditions"][1];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!(holds), &json!(reason)));
    }
}

#[test]
fn features_missing_from_the_installed_crds_are_not_reported() {
    for (version, has) in [("v1.6.3", false), ("v1.7.0", true)] {
        let detail = StatusDetail::GatewayClass(GatewayClassStatus::new(vec![accepted()]));
        let mut statuses = [status("GatewayClass", 1, detail)];
        report_version(&mut statuses, Some(version));
        let written = after(status_update(&statuses[0], CONTROLLER, None, NOW), &Value::Null);
        let features = written["supportedFeatures"].as_array().unwrap();
        assert_eq!(features.contains(&json!({"name": "HTTPRouteRetryCodes"})), has, "{version}");
        assert!(features.contains(&json!({"name": "HTTPRoute"})));
    }
}

#[test]
fn supported_features_are_sorted() {
    let class = status(
        "GatewayClass",
        1,
        StatusDetail::GatewayClass(GatewayClassStatus::new(vec![accepted()])),
    );
    let written = after(status_update(&class, CONTROLLER, None, NOW), &Value::Null);
    let features = written["supportedFeatures"].as_array().unwrap();
    let names: Vec<_> = features.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted() && names.contains(&"HTTPRoute"), "{names:?}");
    assert!(names.len() <= 64, "Kubernetes takes no more");
}
