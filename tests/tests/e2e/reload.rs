//! Configuration changes under load: no request fails, and an invalid change has no effect.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::fixture::{addresses, start_endpoints};
use tests::load::{ClientPattern, LoadGenerator};
use tests::random::SeededRandom;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, objects,
};
use tokio::time::sleep;

const CHANGES: u64 = 100;

/// Pause of a client between two requests.
const PAUSE: Duration = Duration::from_millis(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_during_a_hundred_reloads() -> Result {
    let behaviour = EndpointBehaviour::slow(Duration::from_millis(2));
    let servers = start_endpoints(4, &behaviour).await?;
    let mut fixture = HttpFixture::with(servers, &[], &["--workers", "2"]).await?;
    let get = LoadGenerator::start(fixture.sheave.address(), 12, ClientPattern::GET);
    let post = LoadGenerator::start(fixture.sheave.address(), 4, ClientPattern::POST);

    let mut random = SeededRandom::new(3);
    let mut terminating = VecDeque::new();
    for change in 0..CHANGES {
        terminating.push_back(replace_an_endpoint(&mut fixture, &behaviour, &mut random).await?);
        if terminating.len() > 3 {
            terminating.pop_front();
        }
        let host = format!("revision-{change}.test");
        fixture.configuration.write("revision.yaml", &marker_route(&host))?;
        wait_until_loaded(&fixture, &host).await?;
    }

    get.stop().await.assert_all_served();
    post.stop().await.assert_all_served();
    Ok(())
}

/// Performs a step of a rolling update: one endpoint joins, and another leaves but finishes its
/// running requests.
async fn replace_an_endpoint(
    fixture: &mut HttpFixture,
    behaviour: &EndpointBehaviour,
    random: &mut SeededRandom,
) -> Result<Endpoint> {
    fixture.endpoints.push(Endpoint::start(behaviour.clone()).await?);
    let leaving = random.below(fixture.endpoints.len() as u64 - 1) as usize;
    let leaving = fixture.endpoints.remove(leaving);
    fixture.configuration.set_endpoints(&addresses(&fixture.endpoints))?;
    fixture.sheave.wait_for_endpoints(&addresses(&fixture.endpoints)).await?;
    Ok(leaving)
}

/// Returns a route that shows that it is loaded: its host is answered 503, and all others are
/// served.
fn marker_route(host: &str) -> Vec<Value> {
    vec![objects::service("marker"), objects::host_route(host, "marker")]
}

async fn status_of(fixture: &HttpFixture, host: &str) -> Result<u16> {
    let mut client = fixture.client().await?;
    Ok(client.exchange("GET", "/", &[("Host", host)], b"").await?.status())
}

async fn wait_until_loaded(fixture: &HttpFixture, host: &str) -> Result {
    let status = async || status_of(fixture, host).await;
    eventually("the route is loaded", status, |status| *status == 503).await?;
    Ok(())
}

#[tokio::test]
async fn invalid_edit_is_reported_and_changes_nothing() -> Result {
    const REFUSED: &str = "the previous one stays in force";
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET);
    let mut lines = fixture.sheave.log_line_count();
    let bad = json!({ "maxInFlightPerEndpoint": 0, "queue": { "timeout": "soon" } });
    fixture.configuration.write("policy.yaml", &[objects::backend_policy("app", bad)])?;
    for part in ["spec.maxInFlightPerEndpoint", "spec.queue.timeout", "policy.yaml", "document=1"] {
        fixture.sheave.wait_for_log(lines, part).await?;
    }
    lines = fixture.sheave.wait_for_log(lines, REFUSED).await?;
    ensure!(
        fixture.sheave.admin_get("/api/v1/config").await?.text().contains("spec.queue.timeout")
    );

    // While there is an error, no change of the configuration is loaded.
    fixture.configuration.write("late.yaml", &marker_route("late.test"))?;
    lines = fixture.sheave.wait_for_log(lines, REFUSED).await?;
    ensure!(status_of(&fixture, "late.test").await? == 200, "the last good state was not kept");

    let good = json!({ "maxInFlightPerEndpoint": 7 });
    fixture.configuration.write("policy.yaml", &[objects::backend_policy("app", good)])?;
    fixture.sheave.wait_for_log(lines, "the configuration is valid again").await?;
    wait_until_loaded(&fixture, "late.test").await?;
    let caps = fixture.sheave.backends().await?.into_iter();
    let caps: Vec<_> = caps.map(|backend| backend.max_in_flight_per_endpoint).collect();
    ensure!(caps.contains(&Some(7)), "{caps:?}");
    load.stop().await.assert_all_served();
    Ok(())
}

#[tokio::test]
async fn partially_written_file_is_never_loaded() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET);
    let path = fixture.configuration.path().join("main.yaml");
    let text = fs::read_to_string(&path)?;
    let lines = fixture.sheave.log_line_count();

    // Writes in place like some editors, but more slowly: each part alone is an error.
    let mut file = OpenOptions::new().write(true).truncate(true).open(&path)?;
    let marker = marker_route("changed.test");
    let changed = format!("{text}---\n{:#}\n---\n{:#}", marker[0], marker[1]);
    for part in changed.as_bytes().chunks(changed.len() / 20) {
        file.write_all(part)?;
        sleep(Duration::from_millis(10)).await; // The editor is slow.
    }
    drop(file);
    wait_until_loaded(&fixture, "changed.test").await?;

    let log = fixture.sheave.log();
    let errors = log.lines().skip(lines).any(|line| line.contains("ERROR"));
    ensure!(!errors, "a part of the file was read: {log}");
    load.stop().await.assert_all_served();
    Ok(())
}

#[tokio::test]
async fn removed_directory_is_watched_again_when_it_returns() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let path = fixture.configuration.path().to_owned();
    let aside = path.with_extension("aside");
    let lines = fixture.sheave.log_line_count();
    fs::rename(&path, &aside)?;
    fixture.sheave.wait_for_log(lines, &path.display().to_string()).await?;
    let mut client = fixture.client().await?;
    ensure!(client.get("/").await?.status() == 200, "the last good configuration is not kept");

    fs::rename(&aside, &path)?;
    fixture.configuration.write("back.yaml", &marker_route("back.test"))?;
    wait_until_loaded(&fixture, "back.test").await
}

/// A cluster mounts a ConfigMap like this: symbolic links lead through `..data`, which is replaced
/// atomically.
#[tokio::test]
async fn mounted_config_map_updates_are_loaded() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let path = fixture.configuration.path();
    for (version, host) in [("..1", "one.test"), ("..2", "two.test")] {
        fs::create_dir(path.join(version))?;
        let documents: Vec<String> = marker_route(host).iter().map(Value::to_string).collect();
        fs::write(path.join(version).join("mounted.yaml"), documents.join("\n---\n"))?;
        symlink(version, path.join("..data_tmp"))?;
        fs::rename(path.join("..data_tmp"), path.join("..data"))?;
        if version == "..1" {
            symlink("..data/mounted.yaml", path.join("mounted.yaml"))?;
        }
        wait_until_loaded(&fixture, host).await?;
    }
    Ok(())
}

#[tokio::test]
async fn sighup_reloads_the_configuration() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    fixture.configuration.write("more.yaml", &marker_route("more.test"))?;
    fixture.sheave.signal(Signal::HUP)?;
    wait_until_loaded(&fixture, "more.test").await?;
    let mut client = Http1TestClient::connect(fixture.sheave.address()).await?;
    ensure!(client.get("/").await?.status() == 200, "requests are still served");
    Ok(())
}

/// Returns the addresses of all listeners, with the ports that the kernel has chosen.
async fn listener_addresses(fixture: &HttpFixture) -> Result<Vec<SocketAddr>> {
    let views = fixture.sheave.admin_json("/api/v1/listeners").await?;
    let views = views["listeners"].as_array().context("listeners")?.iter();
    views.map(|view| Ok(view["address"].as_str().context("address")?.parse()?)).collect()
}

/// Returns a second Gateway, and a route for it alone.
fn second_gateway(port: u16) -> Vec<Value> {
    let mut gateway = objects::gateway().remove(1);
    gateway["metadata"]["name"] = json!("second");
    gateway["spec"]["addresses"][0]["value"] = json!("127.0.0.2");
    gateway["spec"]["listeners"][0]["port"] = json!(port);
    let mut route = objects::route("app");
    route["metadata"]["name"] = json!("second");
    route["spec"]["parentRefs"][0]["name"] = json!("second");
    vec![gateway, route]
}

/// Returns a second Gateway with listeners `first` and `other` on these ports, and a route for both.
fn two_listeners(ports: [u16; 2]) -> Vec<Value> {
    let mut objects = second_gateway(ports[0]);
    let listeners = &mut objects[0]["spec"]["listeners"];
    listeners[0]["name"] = json!("first");
    let mut other = listeners[0].clone();
    (other["name"], other["port"]) = (json!("other"), json!(ports[1]));
    listeners.as_array_mut().expect("a list").push(other);
    objects
}

/// Returns the name and the port of each listener.
async fn listener_names(fixture: &HttpFixture) -> Result<Vec<(String, u16)>> {
    let views = fixture.sheave.admin_json("/api/v1/listeners").await?;
    let views = views["listeners"].as_array().context("listeners")?.iter();
    views
        .map(|view| {
            let name = view["name"].as_str().context("name")?.to_owned();
            let address: SocketAddr = view["address"].as_str().context("address")?.parse()?;
            Ok((name, address.port()))
        })
        .collect()
}

/// Returns a port that is free on every address: the kernel has just assigned it.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}

/// Opens the second Gateway and returns its listen address.
async fn open_second(fixture: &HttpFixture) -> Result<SocketAddr> {
    fixture.configuration.write("second.yaml", &second_gateway(0))?;
    let observe = async || listener_addresses(fixture).await;
    let both = eventually("two listeners", observe, |all| all.len() == 2).await?;
    both.into_iter().find(|it| it.ip().to_string() == "127.0.0.2").context("second")
}

async fn close_second(fixture: &HttpFixture, address: SocketAddr) -> Result {
    fixture.configuration.remove("second.yaml")?;
    let refused = async || Ok(Http1TestClient::connect(address).await.is_err());
    eventually("the listener is closed", refused, |refused| *refused).await?;
    Ok(())
}

#[tokio::test]
async fn listeners_are_added_and_removed() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut kept = fixture.client().await?;
    ensure!(kept.get("/").await?.status() == 200);
    let second = open_second(&fixture).await?;
    let mut client = Http1TestClient::connect(second).await?;
    ensure!(client.get("/").await?.status() == 200);

    close_second(&fixture, second).await?;
    client.expect_end().await?;
    ensure!(kept.get("/").await?.status() == 200, "the other listener is disturbed");
    Ok(())
}

/// Without `Connection: close` the next request could be on its way when the connection is closed.
#[tokio::test]
async fn running_request_on_a_removed_listener_gets_connection_close() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::gated()).await?;
    let second = open_second(&fixture).await?;
    let mut client = Http1TestClient::connect(second).await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture.endpoint().wait_for_counts("the request", |counts| counts.in_flight == 1).await?;

    close_second(&fixture, second).await?;
    fixture.endpoint().open_gate(1);
    let response = client.response("GET").await?;
    ensure!(response.status() == 200 && response.closes(), "{response:?}");
    client.expect_end().await?;
    Ok(())
}

/// All or nothing: a configuration with an address in use changes nothing, and is tried again.
#[tokio::test]
async fn address_in_use_changes_nothing_until_it_is_free() -> Result {
    let taken = TcpListener::bind("127.0.0.2:0")?;
    let address = taken.local_addr()?;
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let lines = fixture.sheave.log_line_count();
    fixture.configuration.write("marker.yaml", &marker_route("taken.test"))?;
    wait_until_loaded(&fixture, "taken.test").await?;
    fixture.configuration.write("second.yaml", &second_gateway(address.port()))?;
    fixture.configuration.remove("marker.yaml")?;
    let lines = fixture.sheave.wait_for_log(lines, &format!("cannot listen on {address}")).await?;
    fixture.sheave.wait_for_log(lines, "the previous one stays in force").await?;
    ensure!(status_of(&fixture, "taken.test").await? == 503, "a part of it is in force");

    drop(taken);
    fixture.sheave.signal(Signal::HUP)?;
    let served = async || match Http1TestClient::connect(address).await {
        Ok(mut client) => Ok(client.get("/").await.is_ok_and(|response| response.status() == 200)),
        Err(_) => Ok(false),
    };
    eventually("the listener opens once the address is free", served, |served| *served).await?;
    ensure!(status_of(&fixture, "taken.test").await? == 200, "the rest is not in force");
    Ok(())
}

#[tokio::test]
async fn move_to_a_port_in_use_keeps_the_listener_where_it_is() -> Result {
    let taken = TcpListener::bind("127.0.0.2:0")?;
    let taken_port = taken.local_addr()?.port();
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let second = SocketAddr::from(([127, 0, 0, 2], free_port()?));
    fixture.configuration.write("second.yaml", &second_gateway(second.port()))?;
    let listening = async || Ok(listener_addresses(&fixture).await?.contains(&second));
    eventually("it listens", listening, |listening| *listening).await?;
    let load = LoadGenerator::start(second, 2, ClientPattern::GET.with_pause(PAUSE));
    let lines = fixture.sheave.log_line_count();
    fixture.configuration.write("second.yaml", &second_gateway(taken_port))?;
    let in_use = format!("cannot listen on 127.0.0.2:{taken_port}");
    fixture.sheave.wait_for_log(lines, &in_use).await?;
    fixture.configuration.write("second.yaml", &second_gateway(second.port()))?;
    fixture.sheave.wait_for_log(lines, "the configuration is valid again").await?;
    load.stop().await.assert_all_served();
    Ok(())
}

/// The names of the listeners move, and the sockets stay.
#[tokio::test]
async fn ports_of_two_listeners_are_swapped_without_a_lost_request() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut ports = [free_port()?, free_port()?];
    let lines = fixture.sheave.log_line_count();
    fixture.configuration.write("second.yaml", &two_listeners(ports))?;
    let observe = async || Ok(listener_names(&fixture).await?.len());
    eventually("three listeners", observe, |count| *count == 3).await?;
    let loads = ports.map(|port| {
        let address = SocketAddr::from(([127, 0, 0, 2], port));
        LoadGenerator::start(address, 2, ClientPattern::GET.with_pause(PAUSE))
    });
    for _ in 0..4 {
        ports.reverse();
        fixture.configuration.write("second.yaml", &two_listeners(ports))?;
        let observe = async || listener_names(&fixture).await;
        let first = ("default/second/first".to_owned(), ports[0]);
        eventually("the ports are swapped", observe, |all| all.contains(&first)).await?;
    }
    for load in loads {
        load.stop().await.assert_all_served();
    }
    let log = fixture.sheave.log();
    ensure!(!log.lines().skip(lines).any(|line| line.contains("cannot listen")), "{log}");
    Ok(())
}

/// An address that covers another one can only be bound when that one is closed.
#[tokio::test]
async fn listener_moves_from_one_address_to_all_of_them() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let port = free_port()?;
    fixture.configuration.write("second.yaml", &second_gateway(port))?;
    let on_loopback = SocketAddr::from(([127, 0, 0, 3], port));
    let mut objects = second_gateway(port);
    objects[0]["spec"]["addresses"][0]["value"] = json!("0.0.0.0");
    fixture.configuration.write("second.yaml", &objects)?;
    let served = async || match Http1TestClient::connect(on_loopback).await {
        Ok(mut client) => Ok(client.get("/").await.is_ok_and(|response| response.status() == 200)),
        Err(_) => Ok(false),
    };
    eventually("it listens on all addresses", served, |served| *served).await?;
    Ok(())
}

/// Some editors empty a file before they write it.
#[tokio::test]
async fn emptied_file_is_no_outage() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let load =
        LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET.with_pause(PAUSE));
    let path = fixture.configuration.path().join("main.yaml");
    let text = fs::read_to_string(&path)?;
    let lines = fixture.sheave.log_line_count();
    fs::write(&path, "")?;
    fixture.sheave.wait_for_log(lines, "the file has lost all its objects").await?;
    let marker = marker_route("written.test");
    fs::write(&path, format!("{text}---\n{:#}\n---\n{:#}", marker[0], marker[1]))?;
    wait_until_loaded(&fixture, "written.test").await?;
    load.stop().await.assert_all_served();

    fs::write(&path, "")?;
    let closed = async || Ok(Http1TestClient::connect(fixture.sheave.address()).await.is_err());
    eventually("a second read confirms it", closed, |closed| *closed).await?;
    fixture.sheave.wait_for_log(lines, "the file still has no objects").await?;
    Ok(())
}
