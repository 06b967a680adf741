//! A node: `sheave announce`, beside a Sheave and an API server that are the test's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::configuration::TempDirectory;
use tests::sheave;

use super::network::{Machine, Network};
use super::router::wait;

/// Answers by path.
type Answers = Arc<Mutex<BTreeMap<String, String>>>;

/// A node with `sheave announce`, which is killed when dropped.
pub(crate) struct Node {
    machine: Machine,
    name: String,
    answers: Answers,
    process: Child,
    metrics: SocketAddr,
    directory: TempDirectory,
}

impl Node {
    pub(crate) fn start(network: &Network, number: usize) -> Result<Self> {
        let machine = network.nodes[number - 1].clone();
        let name = format!("n{number}");
        let answers = Answers::default();
        let shared = Arc::clone(&answers);
        let server = machine.run(move || serve(shared))??;
        let metrics = machine.run(|| -> Result<_> {
            // The port is free again at once: nothing else is in the namespace.
            Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
        })??;
        let directory = TempDirectory::new()?;
        let path = directory.path().to_owned();
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://{server}") } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{
                "name": "test",
                "context": { "cluster": "test", "user": "test", "namespace": "sheave" },
            }],
            "current-context": "test",
        });
        fs::write(path.join("kubeconfig"), kubeconfig.to_string())?;
        let mut command = Command::new(sheave::binary()?);
        command.args(["announce", "--admin", &server.to_string(), "--node", &name]);
        command.args(["--metrics", &metrics.to_string(), "--withdraw-delay", "3s"]);
        command.env("KUBECONFIG", path.join("kubeconfig"));
        command.stdin(Stdio::null()).stderr(File::create(path.join("log"))?);
        let process = machine.run(move || command.spawn())??;
        Ok(Self { machine, name, answers, process, metrics, directory })
    }

    /// Makes the Sheave of the node serve what is in this answer.
    pub(crate) fn serve(&self, answer: &Value) {
        self.answer("/api/v1/addresses", answer);
    }

    /// Makes the Sheave of the node not ready.
    pub(crate) fn stop_serving(&self) {
        self.answers.lock().expect("no panic").remove("/api/v1/addresses");
    }

    pub(crate) fn set_secret(&self, name: &str, password: &str) {
        let encoded = data_encoding::BASE64.encode(password.as_bytes());
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": name, "namespace": "sheave" },
            "data": { "password": encoded },
        });
        self.answer(&format!("/api/v1/namespaces/sheave/secrets/{name}"), &secret);
    }

    pub(crate) fn set_labels(&self, labels: &Value) {
        let name = &self.name;
        let metadata = json!({ "name": name, "labels": labels });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        self.answer(&format!("/api/v1/nodes/{name}"), &node);
    }

    fn answer(&self, path: &str, answer: &Value) {
        self.answers.lock().expect("no panic").insert(path.to_owned(), answer.to_string());
    }

    /// Accepts connections at an address, which the node must have.
    pub(crate) fn accept_at(&self, address: SocketAddr) -> Result<AcceptedConnections> {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let bound = || Ok(self.machine.run(move || TcpListener::bind(address))?.ok());
        let listener = wait("an address on the node", bound, Option::is_some)?;
        let listener = listener.context("it is bound")?;
        thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                counter.fetch_add(1, Ordering::Relaxed);
                open.push(stream);
            }
        });
        Ok(AcceptedConnections(count))
    }

    pub(crate) fn has_address(&self, address: &str) -> Result<bool> {
        Ok(self.machine.ip("address show dev lo")?.contains(&format!(" {address}/")))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = Pid::from_raw(i32::try_from(self.process.id())?).context("a process id")?;
        Ok(kill_process(id, signal)?)
    }

    pub(crate) fn wait_for_exit(&mut self) -> Result<ExitStatus> {
        let process = &mut self.process;
        wait("the end of sheave announce", || Ok(process.try_wait()?), Option::is_some)?
            .context("it has ended")
    }

    pub(crate) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.directory.path().join("log"))?)
    }

    pub(crate) fn wait_for_log(&self, text: &str) -> Result<()> {
        wait(text, || self.log(), |log| log.contains(text)).map(drop)
    }

    pub(crate) fn metrics(&self) -> Result<String> {
        let address = self.metrics;
        self.machine.run(move || -> Result<_> {
            let mut stream = TcpStream::connect(address)?;
            write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            ensure!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
            Ok(answer)
        })?
    }

    pub(crate) fn resident_bytes(&self) -> Result<usize> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.context("VmRSS")?.trim().trim_end_matches(" kB");
        Ok(kibibytes.parse::<usize>()? * 1024)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Connections that a node has accepted.
pub(crate) struct AcceptedConnections(Arc<AtomicUsize>);

impl AcceptedConnections {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Serves the answers; other paths do not exist.
fn serve(answers: Answers) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client may be killed at any time.
            drop(answer(stream, &answers));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, answers: &Answers) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().context("a request")??;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let target = request.split(' ').nth(1).context("a target")?;
    let path = target.split('?').next().unwrap_or_default();
    let found = answers.lock().expect("no panic").get(path).cloned();
    let missing = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "not found", "metadata": {},
    });
    let (status, body) = match found {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", missing.to_string()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())?;
    Ok(())
}
