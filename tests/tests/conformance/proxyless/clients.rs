//! A client of each gRPC library, with one protocol of commands and answers: `tests/conformance/proxyless/main.go`
//! describes it.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tests::Result;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::CallCounts;
use super::site::{BootstrapFile, CertificateFolder};
use crate::tools;

/// Deadline that clients set for each call.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);
/// Longer than a command of a client takes on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// A gRPC library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcLibrary {
    Go,
    Java,
    /// Its core is the one of C++.
    Python,
    Node,
    /// tonic-xds.
    Rust,
}

impl GrpcLibrary {
    /// True if the client can run here.
    pub(super) fn is_installed(self) -> Result<bool> {
        match self {
            Self::Go => Ok(true),
            Self::Java => tools::is_installed("java-classes/ProxylessClient.class"),
            Self::Python => tools::is_installed("python-current"),
            Self::Node => tools::is_installed("node"),
            Self::Rust => tools::is_installed("tonic-xds"),
        }
    }

    /// True if its bootstrap file can name a certificate for the xDS server. grpc-java ignores the files of the credentials
    /// `tls`, and grpc-js-xds does not know these credentials.
    pub(super) fn has_certificates(self) -> bool {
        match self {
            Self::Go | Self::Python => true,
            Self::Java | Self::Node | Self::Rust => false,
        }
    }

    /// True if it applies the timeouts of routes. tonic-xds knows deadlines of its callers alone.
    pub(super) fn has_timeouts(self) -> bool {
        self != Self::Rust
    }

    /// Returns how many of the calls may fail while a server is killed. All libraries but tonic-xds send no call over a
    /// connection that has ended.
    pub(super) fn most_failed(self) -> u64 {
        if self == Self::Rust { 20 } else { 0 }
    }

    /// Returns the command of its client, without the target.
    fn client(self) -> Result<Command> {
        let mut command = self.program("ProxylessClient", "client")?;
        if self == Self::Go {
            command.arg("call");
        }
        Ok(command)
    }

    /// Returns the command of a server that gets its listener from Sheave, and answers with this name.
    pub(super) fn server(self, name: &str) -> Result<Command> {
        let mut command = self.program("ProxylessServer", "server")?;
        command.args(["serve-xds", name]);
        // Without it grpc-js-xds rejects listeners that restrict clients, and does not serve.
        command.env("GRPC_XDS_EXPERIMENTAL_RBAC", "true");
        Ok(command)
    }

    /// Returns the command of a class in Java, and of the same in the other languages.
    fn program(self, class: &str, script: &str) -> Result<Command> {
        let script = |end| {
            let name = format!("{script}.{end}");
            vec![tools::conformance_folder().join("proxyless").join(name).into_os_string()]
        };
        let (program, first_arguments) = match self {
            Self::Go => ("proxyless", Vec::new()),
            Self::Java => {
                let classes = tools::path("java-classes")?;
                let packages = tools::path("java-packages")?;
                let path = format!("{}:{}/*", classes.display(), packages.display());
                let options = tools::JAVA_OPTIONS.iter().map(Into::into);
                let main = ["-cp".into(), path.into(), class.into()];
                ("java", options.chain(main).collect())
            }
            Self::Python => ("python-current", script("py")),
            Self::Node => ("node", script("cjs")),
            Self::Rust => ("tonic-xds", Vec::new()),
        };
        let mut command = tools::program(program)?;
        command.args(first_arguments);
        Ok(command)
    }
}

/// A client, killed when dropped.
pub(super) struct GrpcClient {
    pub(super) library: GrpcLibrary,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
    _bootstrap: BootstrapFile,
    _certificates: Option<CertificateFolder>,
}

impl GrpcClient {
    /// Starts a client with plaintext connections to servers.
    pub(super) fn start(
        library: GrpcLibrary,
        target: &str,
        bootstrap: BootstrapFile,
        certificates: Option<CertificateFolder>,
    ) -> Result<Self> {
        Self::run(library, library.client()?, target, bootstrap, certificates)
    }

    /// Starts a client that uses TLS to servers if Sheave says so.
    pub(super) fn start_with_credentials(
        library: GrpcLibrary,
        target: &str,
        bootstrap: BootstrapFile,
        certificates: CertificateFolder,
    ) -> Result<Self> {
        let mut command = library.client()?;
        command.env("XDS_CREDENTIALS", "1");
        Self::run(library, command, target, bootstrap, Some(certificates))
    }

    fn run(
        library: GrpcLibrary,
        mut command: Command,
        target: &str,
        bootstrap: BootstrapFile,
        certificates: Option<CertificateFolder>,
    ) -> Result<Self> {
        command.arg(target).env("GRPC_XDS_BOOTSTRAP", bootstrap.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take().context("a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        Ok(Self {
            library,
            commands,
            answers,
            _child: child,
            _bootstrap: bootstrap,
            _certificates: certificates,
        })
    }

    /// Sends a command that has no answer.
    pub(super) async fn command(&mut self, line: &str) -> Result {
        Ok(self.commands.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// Sends a command and returns its answer.
    pub(super) async fn ask(&mut self, line: &str) -> Result<String> {
        self.command(line).await?;
        let answer = timeout(BOUND, self.answers.next_line()).await;
        answer.with_context(|| line.to_owned())??.context("the client has ended")
    }

    /// Makes calls of a method with these fields.
    pub(super) async fn call(
        &mut self,
        method: &str,
        count: u32,
        fields: &str,
    ) -> Result<CallCounts> {
        parse_counts(&self.ask(&format!("{method} {count} {fields}")).await?)
    }

    /// Ends the calls in the background.
    pub(super) async fn stop(&mut self) -> Result<CallCounts> {
        parse_counts(&self.ask("stop").await?)
    }
}

pub(super) fn parse_counts(line: &str) -> Result<CallCounts> {
    let counts = line.split_whitespace().map(|word| {
        let (name, count) = word.split_once('=').context("NAME=CALLS")?;
        Ok((name.to_owned(), count.parse()?))
    });
    counts.collect()
}
