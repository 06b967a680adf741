//! Jobs from outside: lines in, lines out, with the program's own endpoints as the target.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

struct Loadgen {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    endpoints: Vec<String>,
}

impl Loadgen {
    fn start(arguments: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loadgen"))
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let ready = line(&mut output);
        let endpoints = serde_json::from_value(ready["endpoints"].clone()).unwrap();
        Self { child, input, output, endpoints }
    }

    fn run(&mut self, endpoint: usize, job: Value, request: Value) -> Value {
        let target = self.endpoints[endpoint].clone();
        self.run_at(&target, job, request)
    }

    /// Runs a job. It sleeps between events: tests run side by side.
    fn run_at(&mut self, target: &str, mut job: Value, request: Value) -> Value {
        let get = json!({"method": "GET", "host": "h", "path": "/b/100", "answer_bytes": 100});
        job["request"] = get;
        for (name, value) in request.as_object().unwrap() {
            job["request"][name] = value.clone();
        }
        job["target"] = json!(target);
        job["spin"] = json!(false);
        writeln!(self.input, "{job}").unwrap();
        line(&mut self.output)
    }
}

impl Drop for Loadgen {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn exactly(requests: u64) -> Value {
    json!({"do": "load", "connections": 4, "requests": requests})
}

fn paced() -> Value {
    json!({
        "do": "pace", "rate": 400.0, "seed": 1, "connections": 64,
        "warmup_seconds": 0.0, "seconds": 0.25,
    })
}

#[test]
fn closed_loop_sends_exactly_what_was_asked_for() {
    let report = Loadgen::start("--endpoints 2").run(1, exactly(50), json!({}));
    assert_eq!((&report["requests"], &report["errors"]), (&json!(50), &json!(0)));
    assert_eq!(report["served"], json!([0, 50]));
}

#[test]
fn request_of_its_own_connection_ends_when_the_proxy_closes() {
    const REQUESTS: u64 = 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let proxy = std::thread::spawn(move || {
        for _ in 0..REQUESTS {
            let (mut client, _) = listener.accept().unwrap();
            let head = BufReader::new(client.try_clone().unwrap()).lines();
            let head: Vec<String> =
                head.map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
            assert!(head.contains(&"Connection: close".to_owned()), "{head:?}");
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            client.write_all(answer.as_bytes()).unwrap();
        }
    });
    let request = json!({"close": true, "answer_bytes": 2});
    let report = Loadgen::start("").run_at(&target, exactly(REQUESTS), request);
    assert_eq!((&report["requests"], &report["errors"]), (&json!(REQUESTS), &json!(0)));
    proxy.join().unwrap();
}

#[test]
fn answer_of_another_length_is_an_error() {
    let request = json!({"answer_bytes": 101});
    let report = Loadgen::start("--endpoints 1").run(0, paced(), request);
    assert_eq!(
        (&report["requests"], &report["first_error"]),
        (&json!(0), &json!("a body of 100 bytes"))
    );
}

#[test]
fn open_loop_counts_latency_and_service() {
    let mut loadgen = Loadgen::start("--endpoints 1 --delay-us 5000");
    let report = loadgen.run(0, paced(), json!({}));
    assert!(report["requests"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["errors"], 0, "{report}");
    assert!(report["latency_p50_us"].as_f64().unwrap() >= 5000.0, "{report}");
}

#[test]
fn requests_wait_at_an_endpoint_that_serves_one_at_a_time() {
    // Arrivals at twice the rate that can be served: the clocks of those that wait run.
    let mut loadgen = Loadgen::start("--endpoints 1 --delay-us 5000 --at-once 1");
    let report = loadgen.run(0, paced(), json!({}));
    assert_eq!(report["errors"], 0, "{report}");
    assert!(report["latency_max_us"].as_f64().unwrap() >= 50_000.0, "{report}");
}

#[test]
fn defects_set_in_when_the_counting_begins() {
    let mut loadgen = Loadgen::start("--endpoints 2 --defect 0=errors");
    let report = loadgen.run(0, paced(), json!({}));
    assert_eq!(report["first_error"], "status 500");
    assert_eq!(report["requests"], 0);
    assert_eq!(loadgen.run(1, paced(), json!({}))["errors"], 0);
}
