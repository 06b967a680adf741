//! Client of the tests of Sheave's xDS server, with tonic-xds.
//!
//! ```sh
//! tonic-xds-client TARGET
//! ```
//!
//! Its commands and answers are those of `call` in ../proxyless/main.go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use http::uri::PathAndQuery;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use tonic_xds::{BootstrapConfig, XdsChannelBuilder, XdsChannelConfig, XdsChannelGrpc, XdsUri};

/// Longer than any call takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls in the background at a time.
const STREAMS: usize = 4;

/// Calls by the name of the server that has answered, and those that have failed.
type CallCounts = BTreeMap<String, u64>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    LocalSet::new().run_until(run()).await
}

async fn run() -> Result<()> {
    let target = env::args().nth(1).context("usage: tonic-xds-client TARGET")?;
    let config = XdsChannelConfig::new(XdsUri::parse(&target)?).with_bootstrap(bootstrap()?);
    let channel = XdsChannelBuilder::new(config).build_grpc_channel()?;
    // The first calls of other libraries wait for the routes; those of this one fail.
    let begun = Instant::now();
    while let Err(status) = call(&channel, "/shop.Cart/Get", &[]).await {
        ensure!(begun.elapsed() < PATIENCE, "no routes: {status:?}");
        // It cannot be told when the routes are there.
        sleep(Duration::from_millis(1)).await;
    }
    let mut client = Client { channel, is_stopped: Arc::default(), streams: Vec::new() };
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(answer) = client.run(&line).await? {
            println!("{answer}");
        }
    }
    Ok(())
}

/// Returns the settings in the file that GRPC_XDS_BOOTSTRAP names. Its server is a target of gRPC, `NAME:PORT`; this library
/// connects to the URI of a server.
fn bootstrap() -> Result<BootstrapConfig> {
    let path = env::var("GRPC_XDS_BOOTSTRAP").context("GRPC_XDS_BOOTSTRAP")?;
    let text = fs::read_to_string(path)?;
    Ok(BootstrapConfig::from_json(
        &text.replace("\"server_uri\": \"", "\"server_uri\": \"http://"),
    )?)
}

/// A channel that balances its calls by xDS, and the calls in its background.
struct Client {
    channel: XdsChannelGrpc,
    is_stopped: Arc<AtomicBool>,
    streams: Vec<JoinHandle<CallCounts>>,
}

impl Client {
    /// Runs a command; returns its answer, if it has one.
    async fn run(&mut self, line: &str) -> Result<Option<String>> {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["wait", name] => Ok(Some(self.wait(name).await?)),
            ["stream", method] => {
                self.start(method);
                Ok(None)
            }
            ["stop"] => Ok(Some(self.stop().await?)),
            [method, count, ref fields @ ..] => {
                let fields: Vec<_> =
                    fields.iter().filter_map(|field| field.split_once('=')).collect();
                let mut counts = CallCounts::from([("failed".to_owned(), 0)]);
                for _ in 0..count.parse()? {
                    record(&mut counts, method, call(&self.channel, method, &fields).await);
                }
                Ok(Some(described(&counts)))
            }
            _ => bail!("no command: {line}"),
        }
    }

    /// Calls until the server has answered; returns the microseconds that it took.
    async fn wait(&self, name: &str) -> Result<String> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match call(&self.channel, "/shop.Cart/Get", &[]).await {
                Ok(answer) if answer == name => {
                    return Ok(begun.elapsed().as_micros().to_string());
                }
                Ok(_) => {}
                Err(status) => eprintln!("wait: {status:?}"),
            }
        }
        bail!("{name} has not answered")
    }

    fn start(&mut self, method: &str) {
        self.is_stopped = Arc::default();
        let stream = |_| {
            let (channel, method) = (self.channel.clone(), method.to_owned());
            let is_stopped = Arc::clone(&self.is_stopped);
            spawn_local(async move {
                let mut counts = CallCounts::from([("failed".to_owned(), 0)]);
                while !is_stopped.load(Ordering::Relaxed) {
                    record(&mut counts, &method, call(&channel, &method, &[]).await);
                }
                counts
            })
        };
        self.streams = (0..STREAMS).map(stream).collect();
    }

    async fn stop(&mut self) -> Result<String> {
        self.is_stopped.store(true, Ordering::Relaxed);
        let mut sums = CallCounts::new();
        for stream in self.streams.drain(..) {
            for (name, count) in stream.await? {
                *sums.entry(name).or_default() += count;
            }
        }
        Ok(described(&sums))
    }
}

/// Makes one call; returns the name of the server. The request is an `Empty` and the answer a `StringValue`.
async fn call(
    channel: &XdsChannelGrpc,
    method: &str,
    fields: &[(&str, &str)],
) -> Result<String, Status> {
    let mut client = Grpc::new(channel.clone());
    let mut request = Request::new(());
    for (name, value) in fields {
        let key = MetadataKey::from_bytes(name.as_bytes()).expect("a name of a field");
        let value = MetadataValue::try_from(*value).expect("a value of a field");
        request.metadata_mut().insert(key, value);
    }
    let path = PathAndQuery::try_from(method).expect("a path");
    let answer = async {
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        client.unary(request, path, ProstCodec::<(), String>::default()).await
    };
    let answer = timeout(PATIENCE, answer).await;
    Ok(answer.map_err(|_| Status::deadline_exceeded("the client's own"))??.into_inner())
}

fn record(counts: &mut CallCounts, method: &str, answer: Result<String, Status>) {
    let names = match answer {
        Ok(name) => vec![name],
        Err(status) => {
            eprintln!("{method}: {status:?}");
            vec!["failed".to_owned(), format!("status-{}", status.code() as i32)]
        }
    };
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
}

fn described(counts: &CallCounts) -> String {
    let parts: Vec<_> = counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
    parts.join(" ")
}
