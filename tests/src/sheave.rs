//! The binary as a child process.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::configuration::{ConfigDirectory, TempDirectory};
use crate::waiting::{eventually, within};

/// A running `sheave serve`; it is killed when dropped.
pub struct SheaveProcess {
    pub admin: SocketAddr,
    /// Address of the external scaler, if it was started with `--scaler`.
    pub scaler: Option<SocketAddr>,
    /// Address of the probes, if it was started with `--probes`.
    pub probes: Option<SocketAddr>,
    /// Address of the xDS server, if it was started with `--xds`.
    pub xds: Option<SocketAddr>,
    /// Name and address of each listener.
    pub listeners: Vec<(String, SocketAddr)>,
    child: Child,
    log: LogLines,
    access_log: LogLines,
}

/// Output lines so far.
type LogLines = Arc<Mutex<Vec<String>>>;

impl SheaveProcess {
    /// Starts `sheave serve` with this configuration, and waits until it is ready.
    pub async fn serve(configuration: &ConfigDirectory) -> Result<Self> {
        Self::serve_with(configuration, &[]).await
    }

    /// Like [`SheaveProcess::serve`], with additional arguments.
    pub async fn serve_with(configuration: &ConfigDirectory, arguments: &[&str]) -> Result<Self> {
        let config = [OsStr::new("--config"), configuration.path().as_os_str()];
        Self::start(config.into_iter().chain(arguments.iter().map(OsStr::new))).await
    }

    /// Like [`SheaveProcess::serve`], with a standard error that is not read. [`SheaveProcess::log`] stays empty.
    pub async fn serve_without_log(
        configuration: &ConfigDirectory,
        standard_error: Stdio,
    ) -> Result<Self> {
        let config = [OsStr::new("--config"), configuration.path().as_os_str()];
        Self::launch(Command::new(binary()?), config, standard_error).await
    }

    /// Starts `sheave serve` with these arguments alone, and waits until it is ready.
    pub async fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Self> {
        Self::launch(Command::new(binary()?), arguments, Stdio::piped()).await
    }

    /// Like [`SheaveProcess::start`], with a limit of file descriptors.
    pub async fn start_with_max_descriptors<A: AsRef<OsStr>>(
        most: u32,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        let mut shell = Command::new("sh");
        let script = "ulimit -n \"$1\" && shift && exec \"$@\"";
        shell.args(["-c", script, "sh", &most.to_string()]).arg(binary()?);
        Self::launch(shell, arguments, Stdio::piped()).await
    }

    /// Starts the binary by this command, to which the arguments are added.
    async fn launch<A: AsRef<OsStr>>(
        mut command: Command,
        arguments: impl IntoIterator<Item = A>,
        standard_error: Stdio,
    ) -> Result<Self> {
        let scratch = TempDirectory::new()?;
        let ready = scratch.path().join("ready.json");
        command.arg("serve").args(arguments).args(["--admin", "127.0.0.1:0"]);
        command.arg("--ready-file").arg(&ready);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(standard_error);
        let mut child = command.kill_on_drop(true).spawn().context("sheave does not start")?;
        let (log, logging) = match child.stderr.take() {
            Some(stderr) => collect_lines(stderr),
            None => collect_lines(tokio::io::empty()),
        };
        let (access_log, _) = collect_lines(child.stdout.take().context("stdout is a pipe")?);

        let appeared = eventually(
            "the ready file",
            async || match child.try_wait()? {
                Some(status) => bail!("sheave ended ({status}) before it was ready"),
                None => Ok(ready.exists()),
            },
            |exists| *exists,
        );
        if let Err(error) = appeared.await {
            child.start_kill()?;
            logging.await?;
            return Err(error.context(text(&log)));
        }

        let ready: Value = serde_json::from_str(&fs::read_to_string(ready)?)?;
        let admin = address(&ready["admin"])?;
        let optional =
            |name: &str| Some(&ready[name]).filter(|it| !it.is_null()).map(address).transpose();
        let (scaler, probes, xds) = (optional("scaler")?, optional("probes")?, optional("xds")?);
        let listeners = ready["listeners"].as_array().context("listeners")?;
        let listeners = listeners.iter().map(listener).collect::<Result<_>>()?;
        Ok(Self { admin, scaler, probes, xds, listeners, child, log, access_log })
    }

    /// Returns the address of the only listener.
    pub fn address(&self) -> SocketAddr {
        assert_eq!(self.listeners.len(), 1, "there is one listener");
        self.listeners[0].1
    }

    pub fn process_id(&self) -> Result<Pid> {
        let id = self.child.id().context("sheave has ended")?;
        Pid::from_raw(i32::try_from(id)?).context("a process id")
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.process_id()?, signal)?)
    }

    /// Waits until the process exits.
    pub async fn wait_for_exit(&mut self) -> Result<ExitStatus> {
        Ok(within("the end of sheave", self.child.wait()).await??)
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        text(&self.log)
    }

    /// Waits for a log line that contains this text, after the first `from` lines; returns the
    /// number of lines up to it.
    pub async fn wait_for_log(&self, from: usize, part: &str) -> Result<usize> {
        let find = async || {
            let lines = self.log.lock().expect("no holder of the lock panics");
            let place = lines.iter().skip(from).position(|line| line.contains(part));
            Ok(place.map(|place| from + place + 1))
        };
        let found = eventually(part, find, Option::is_some).await;
        let found = found.with_context(|| format!("its log:\n{}", self.log()))?;
        found.context("found")
    }

    /// Returns the number of log lines so far.
    pub fn log_line_count(&self) -> usize {
        self.log.lock().expect("no holder of the lock panics").len()
    }

    /// Waits until the access log has this many lines.
    pub async fn wait_for_access_log(&self, lines: usize) -> Result<Vec<Value>> {
        let read =
            async || Ok(self.access_log.lock().expect("no holder of the lock panics").clone());
        let read = eventually("lines of the access log", read, |read| read.len() >= lines).await?;
        read.iter().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Returns the resident memory in bytes.
    pub fn memory_bytes(&self) -> Result<u64> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.process_id()?.as_raw_pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kibibytes: u64 = line.trim_end_matches("kB").trim().parse()?;
        Ok(kibibytes * 1024)
    }

    /// Returns the time of CPUs that it has used.
    pub fn cpu_time(&self) -> Result<Duration> {
        // In user mode, then in the kernel.
        let statistics = self.statistics()?;
        let fields = statistics.split(' ').skip(11).take(2);
        let ticks = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
    }

    /// Returns the statistics of the process after its name, its state first (proc_pid_stat(5)).
    pub fn statistics(&self) -> Result<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process_id()?.as_raw_pid()))?;
        Ok(stat.rsplit(") ").next().context("fields")?.to_owned())
    }
}

/// Runs `sheave` with these arguments until it exits.
pub async fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    Ok(within("the end of sheave", command.output()).await??)
}

/// Returns the path of the binary: `SHEAVE_BIN`, or built now, in the profile and target directory
/// of the test itself.
pub fn binary() -> Result<&'static Path> {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = BINARY.get() {
        return Ok(path);
    }
    let path = match env::var_os("SHEAVE_BIN") {
        Some(path) => path.into(),
        None => build()?,
    };
    Ok(BINARY.get_or_init(|| path))
}

fn build() -> Result<PathBuf> {
    let test = env::current_exe()?;
    let profile = test.ancestors().nth(2).context("target/PROFILE/deps/TEST")?;
    let target = profile.parent().context("target")?;
    let name = match profile.file_name().and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some(name) => name,
        None => bail!("the profile's folder has no name"),
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.args(["build", "--quiet", "--package", "sheave", "--profile", name, "--target-dir"]);
    let built = command.arg(target).status().context("cargo does not start")?;
    ensure!(built.success(), "sheave does not build");
    Ok(profile.join("sheave"))
}

/// Collects the child's output, and prints it with the test's own output, which shows when a test
/// fails.
fn collect_lines(output: impl AsyncRead + Unpin + Send + 'static) -> (LogLines, JoinHandle<()>) {
    let log = LogLines::default();
    let kept = log.clone();
    let following = tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            eprintln!("{line}");
            kept.lock().expect("no holder of the lock panics").push(line);
        }
    });
    (log, following)
}

fn text(log: &Mutex<Vec<String>>) -> String {
    log.lock().expect("no holder of the lock panics").join("\n")
}

fn listener(view: &Value) -> Result<(String, SocketAddr)> {
    let name = view["name"].as_str().context("a listener's name")?;
    Ok((name.to_owned(), address(&view["address"])?))
}

fn address(value: &Value) -> Result<SocketAddr> {
    Ok(value.as_str().context("an address")?.parse()?)
}
