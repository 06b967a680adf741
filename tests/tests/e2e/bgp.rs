//! `sheave announce` with BIRD as the router, each node in a network namespace of its own: routes come and go with what
//! the Sheave of a node serves.

/// Machines on one link.
mod network;
/// A node: `sheave announce`, beside a Sheave and an API server that are the test's.
mod node;
/// A router that runs BIRD.
mod router;
/// A router that breaks the protocol.
mod broken_router;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::Result;

use network::Network;
use node::Node;
use router::{HOLD_TIME, Router, RouterOptions};
use tokio::time::Instant;

pub(crate) const V4: &str = "192.0.2.1";
pub(crate) const V6: &str = "2001:db8::1";

/// A port that the node's Sheave would serve.
const PORT: u16 = 8080;

/// Returns the answer of a Sheave that serves these addresses.
fn served(addresses: &[&str], peer: &Value) -> Value {
    let route = |address: &&str| json!({ "address": address, "communities": ["65010:7"] });
    let routes: Vec<_> = addresses.iter().map(route).collect();
    json!({ "addresses": [], "routes": routes, "routers": [{ "name": "tor", "spec": peer }] })
}

/// Returns the spec of a BgpPeer for the router of the tests.
fn peer() -> Value {
    json!({ "address": "10.9.0.254", "peerASN": 65001, "localASN": 65010, "holdTime": HOLD_TIME })
}

fn announcing(network: &Network, number: usize) -> Result<Node> {
    let node = Node::start(network, number)?;
    node.serve(&served(&[V4, V6], &peer()));
    Ok(node)
}

#[test]
fn addresses_of_two_nodes_are_one_route_with_two_next_hops() -> Result<()> {
    let Some(network) = Network::of(2)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions::default())?;
    let nodes = [announcing(&network, 1)?, announcing(&network, 2)?];
    router.wait_for_next_hops(V4, &["10.9.0.1", "10.9.0.2"])?;
    router.wait_for_next_hops(V6, &["fd00:9::1", "fd00:9::2"])?;
    ensure!(router.show(&format!("show route for {V4}/32 all"))?.contains("(65010,7)"));
    for address in [V4, V6] {
        let address = SocketAddr::new(address.parse()?, PORT);
        let connections = nodes.iter().map(|node| node.accept_at(address));
        let connections = connections.collect::<Result<Vec<_>>>()?;
        // The kernel of the router hashes ports, so that both nodes get some of the connections.
        let clients: Vec<_> = (0..64).map(|_| router.connect(address)).collect::<Result<_>>()?;
        router.wait(
            "connections at both nodes",
            || {
                let counts = connections.iter().map(|it| it.count());
                Ok(counts.collect::<Vec<_>>())
            },
            |counts| counts.iter().all(|count| *count > 0) && counts.iter().sum::<usize>() == 64,
        )?;
        drop(clients);
    }
    Ok(())
}

#[test]
fn node_that_drains_withdraws_its_routes_and_then_says_why_it_goes() -> Result<()> {
    let Some(network) = Network::of(2)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions::default())?;
    let (mut first, second) = (announcing(&network, 1)?, announcing(&network, 2)?);
    router.wait_for_next_hops(V4, &["10.9.0.1", "10.9.0.2"])?;
    let listening = first.accept_at(SocketAddr::new(V4.parse()?, PORT))?;
    first.signal(Signal::TERM)?;
    router.wait_for_next_hops(V4, &["10.9.0.2"])?;
    // The session is still up, and the address still there, for packets that are on their way.
    ensure!(router.session(1)?.contains("Established"), "{}", router.session(1)?);
    ensure!(first.has_address(V4)?, "the address stays for a while");
    drop(listening);
    ensure!(first.wait_for_exit()?.success(), "{}", first.log()?);
    let state = router.session(1)?;
    ensure!(state.contains("Administrative shutdown"), "{state}");
    ensure!(router.log()?.contains("sheave announce ends"), "{}", router.log()?);
    ensure!(!first.has_address(V4)?, "the address has been removed");
    drop(second);
    Ok(())
}

#[test]
fn dead_and_stopped_nodes_lose_their_routes() -> Result<()> {
    let Some(network) = Network::of(3)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions::default())?;
    let nodes = [announcing(&network, 1)?, announcing(&network, 2)?, announcing(&network, 3)?];
    router.wait_for_next_hops(V4, &["10.9.0.1", "10.9.0.2", "10.9.0.3"])?;
    let killed = Instant::now();
    nodes[0].signal(Signal::KILL)?;
    router.wait_for_next_hops(V4, &["10.9.0.2", "10.9.0.3"])?;
    println!("killed: {:?} until the route has gone", killed.elapsed());
    // The kernel of a stopped process keeps its connection open: the hold time ends the session.
    let stopped = Instant::now();
    nodes[1].signal(Signal::STOP)?;
    router.wait_for_next_hops(V4, &["10.9.0.3"])?;
    let after = stopped.elapsed();
    println!("stopped: {after:?} until the route has gone");
    ensure!(after > Duration::from_secs(HOLD_TIME.into()) / 3, "{after:?}");
    Ok(())
}

#[test]
fn route_follows_what_the_sheave_of_the_node_serves() -> Result<()> {
    let Some(network) = Network::of(1)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions::default())?;
    let node = announcing(&network, 1)?;
    router.wait_for_next_hops(V4, &["10.9.0.1"])?;
    node.serve(&served(&[V6], &peer()));
    router.wait_for_next_hops(V4, &[])?;
    router.wait_for_next_hops(V6, &["fd00:9::1"])?;
    node.stop_serving();
    router.wait_for_next_hops(V6, &[])?;
    ensure!(router.session(1)?.contains("Established"), "a Sheave that restarts ends no session");
    node.serve(&served(&[V4], &peer()));
    router.wait_for_next_hops(V4, &["10.9.0.1"])?;
    let lines =
        ["sheave_bgp_session_up{peer=\"tor\"} 1", "sheave_bgp_routes_announced{peer=\"tor\"} 1"];
    router.wait(
        "metrics of the session",
        || node.metrics(),
        |metrics| lines.iter().all(|line| metrics.contains(line)),
    )?;
    Ok(())
}

#[test]
fn wrong_as_and_wrong_password_are_errors_that_say_so() -> Result<()> {
    let Some(network) = Network::of(1)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions { password: Some("s3cret") })?;
    let node = Node::start(&network, 1)?;
    node.set_secret("tor", "s3cret");
    let mut wrong_as = peer();
    wrong_as["peerASN"] = json!(65002);
    wrong_as["passwordSecret"] = json!("tor");
    node.serve(&served(&[V4], &wrong_as));
    node.wait_for_log("the router is in AS 65001, and peerASN is 65002")?;
    let mut wrong_local = wrong_as.clone();
    wrong_local["peerASN"] = json!(65001);
    wrong_local["localASN"] = json!(65011);
    node.serve(&served(&[V4], &wrong_local));
    node.wait_for_log("Bad Peer AS (localASN is 65011)")?;
    node.serve(&served(&[V4], &peer()));
    node.wait_for_log("the router does not answer")?;
    let mut missing = peer();
    missing["passwordSecret"] = json!("absent");
    node.serve(&served(&[V4], &missing));
    node.wait_for_log("there is no Secret sheave/absent")?;
    let mut right = peer();
    right["passwordSecret"] = json!("tor");
    node.serve(&served(&[V4], &right));
    router.wait_for_next_hops(V4, &["10.9.0.1"])?;
    ensure!(!node.log()?.contains("s3cret"), "{}", node.log()?);
    Ok(())
}

#[test]
fn only_nodes_that_the_selector_selects_open_a_session() -> Result<()> {
    let Some(network) = Network::of(2)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions::default())?;
    let nodes = [Node::start(&network, 1)?, Node::start(&network, 2)?];
    let mut selective = peer();
    selective["nodeSelector"] = json!({ "matchLabels": { "rack": "b" } });
    for (node, rack) in nodes.iter().zip(["a", "b"]) {
        node.set_labels(&json!({ "rack": rack }));
        node.serve(&served(&[V4], &selective));
    }
    router.wait_for_next_hops(V4, &["10.9.0.2"])?;
    Ok(())
}

#[test]
fn router_one_hop_away_passes_the_check_of_the_hop_limit() -> Result<()> {
    let Some(network) = Network::of(1)? else { return Ok(()) };
    let router = Router::start(&network, RouterOptions::default())?;
    let node = Node::start(&network, 1)?;
    let mut checked = peer();
    checked["ttlSecurity"] = json!(true);
    // BIRD drops packets that have passed a router, and sends with the highest hop limit.
    router.check_hop_limits()?;
    node.serve(&served(&[V4], &checked));
    router.wait_for_next_hops(V4, &["10.9.0.1"])?;
    Ok(())
}

#[test]
fn router_that_breaks_the_protocol_costs_little() -> Result<()> {
    let Some(network) = Network::of(1)? else { return Ok(()) };
    let router = broken_router::listen(&network)?;
    let node = announcing(&network, 1)?;
    router.answer_with_garbage()?;
    node.wait_for_log("the router sent what is not BGP")?;
    let sent = router.flood_with_routes()?;
    let resident = node.resident_bytes()?;
    println!("{resident} bytes of memory after {sent} bytes of routes");
    ensure!(resident < 64 << 20, "{resident}");
    Ok(())
}
