//! Tests of events against an API server in memory, on tokio's paused clock.

use tokio::sync::watch::{Sender, channel};

use super::*;
use crate::api_server::ApiServer;

const EVENTS: &str = "/apis/events.k8s.io/v1/events";

fn finding(name: &str, reporter: EventReporter) -> ObjectEvent {
    let object = EventObject {
        api_version: "v1",
        kind: "Service",
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: Some("u1".to_owned()),
    };
    ObjectEvent {
        object,
        is_warning: true,
        reason: "PortNotTaken",
        action: "Balance",
        message: "UDP port 53 is not taken".to_owned(),
        reporter,
    }
}

/// Starts a writer; leadership is what the sender says.
fn start(server: &ApiServer) -> (EventRecorder, Sender<Option<Instant>>) {
    let recorder = EventRecorder::default();
    let (leadership, leads) = channel(None);
    let identity =
        ReporterIdentity { controller: "sheave.dev/gateway".to_owned(), instance: "a".to_owned() };
    let client = server.cluster().client;
    tokio::spawn(EventWriter::new(client, recorder.clone(), identity, leads).run());
    (recorder, leadership)
}

/// Returns the counts of the events of an object, as they are after `passed`.
async fn counts(server: &ApiServer, event: &ObjectEvent, passed: Duration) -> Option<u64> {
    sleep(passed).await;
    let object = server.object(EVENTS, event_namespace(&event.object), &event_name(event))?;
    assert_eq!(object["regarding"]["name"], event.object.name.as_str());
    assert_eq!(object["note"], event.message.as_str());
    Some(object["series"]["count"].as_u64().unwrap_or(1))
}

const SOON: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn event_is_written_once_and_again_while_it_holds() {
    let server = ApiServer::default();
    let (recorder, _leadership) = start(&server);
    let event = finding("web", EventReporter::Process);
    for _ in 0..5 {
        recorder.set_standing("services", vec![event.clone(), event.clone()]);
        assert_eq!(counts(&server, &event, SOON).await, Some(1));
    }
    assert_eq!(counts(&server, &event, REPEAT_INTERVAL).await, Some(2));
    // The API server forgets events.
    server.remove(EVENTS, "shop", &event_name(&event));
    assert_eq!(counts(&server, &event, REPEAT_INTERVAL).await, Some(1));
    recorder.set_standing("services", Vec::new());
    assert_eq!(counts(&server, &event, 3 * REPEAT_INTERVAL).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn leader_alone_reports_what_all_replicas_know() {
    let server = ApiServer::default();
    let (recorder, leadership) = start(&server);
    let (shared, own) = (finding("a", EventReporter::Leader), finding("b", EventReporter::Process));
    recorder.set_standing("services", vec![shared.clone(), own.clone()]);
    assert_eq!(counts(&server, &own, SOON).await, Some(1));
    assert_eq!(counts(&server, &shared, SOON).await, None);
    leadership.send_replace(Some(Instant::now() + REPEAT_INTERVAL));
    assert_eq!(counts(&server, &shared, SOON).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn event_of_another_process_is_counted() {
    let server = ApiServer::default();
    let event = finding("web", EventReporter::Process);
    for count in 1..=2 {
        let (recorder, _leadership) = start(&server);
        recorder.record(event.clone());
        assert_eq!(counts(&server, &event, SOON).await, Some(count));
    }
}

#[tokio::test(start_paused = true)]
async fn api_server_without_an_answer_delays_events_and_nothing_else() {
    let server = ApiServer::default();
    let event = finding("web", EventReporter::Process);
    server.ignore(&event_name(&event));
    server.ignore("");
    let (recorder, _leadership) = start(&server);
    for number in 0..2 * MAX_EVENTS {
        recorder.record(finding(&format!("s{number}"), EventReporter::Process));
    }
    assert!(recorder.dropped() >= MAX_EVENTS as u64 - 1);
    recorder.set_standing("services", vec![event.clone()]);
    assert_eq!(counts(&server, &event, 10 * WRITE_TIMEOUT).await, None);
    server.heed_all();
    assert_eq!(counts(&server, &event, 2 * LONGEST_PAUSE).await, Some(1));
}

#[test]
fn events_are_within_the_limits_of_the_api_server() {
    let event = ObjectEvent {
        object: EventObject::node(&"n-".repeat(126)),
        message: "é".repeat(1_000),
        ..finding("web", EventReporter::Process)
    };
    let name = event_name(&event);
    assert!(name.len() <= 253 && !name.contains("-."), "{name}");
    let identity = ReporterIdentity { controller: String::new(), instance: "i".repeat(300) };
    let object = manifest(&name, &identity, &event);
    assert_eq!(object["metadata"]["namespace"], "default");
    assert_eq!(object["note"].as_str().unwrap().len(), MAX_NOTE_BYTES);
    assert_eq!(object["reportingInstance"].as_str().unwrap().len(), MAX_INSTANCE_BYTES);
    assert!(object["eventTime"].as_str().unwrap().ends_with('Z'));
}
