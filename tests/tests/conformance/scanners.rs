//! testssl.sh and sslyze on an HTTPS listener with default settings: protocols, ciphers, the certificate chain, and the
//! known vulnerabilities of TLS.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::{EndpointBehaviour, HttpFixture, Result};

use crate::tools;

/// Sections of testssl.sh: protocols, categories of ciphers, forward secrecy, ciphers in order of preference, the
/// certificate and other defaults, vulnerabilities.
const TESTSSL_SECTIONS: &[&str] = &["-p", "-s", "-f", "-P", "-S", "-U"];

/// Findings that are not about the listener: the test's authority revokes nothing; testssl.sh does without the ciphers
/// that its own OpenSSL lacks; and its `openssl s_client` closes the connection at once, on a busy machine before the
/// session ticket has arrived. Our own tests resume sessions.
const TESTSSL_IGNORED: &[&str] = &["cert_revocation", "engine_problem", "sessionresumption_ticket"];

/// Scans of sslyze, and the result that each must have.
const SSLYZE_RESULTS: &[(&str, &str, Value)] = &[
    ("ssl_2_0_cipher_suites", "is_tls_version_supported", Value::Bool(false)),
    ("ssl_3_0_cipher_suites", "is_tls_version_supported", Value::Bool(false)),
    ("tls_1_0_cipher_suites", "is_tls_version_supported", Value::Bool(false)),
    ("tls_1_1_cipher_suites", "is_tls_version_supported", Value::Bool(false)),
    ("tls_1_2_cipher_suites", "is_tls_version_supported", Value::Bool(true)),
    ("tls_1_3_cipher_suites", "is_tls_version_supported", Value::Bool(true)),
    ("tls_1_3_early_data", "supports_early_data", Value::Bool(false)),
    ("tls_compression", "supports_compression", Value::Bool(false)),
    ("tls_fallback_scsv", "supports_fallback_scsv", Value::Bool(true)),
    ("tls_extended_master_secret", "supports_ems_extension", Value::Bool(true)),
    ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection", Value::Bool(false)),
    ("heartbleed", "is_vulnerable_to_heartbleed", Value::Bool(false)),
    ("session_renegotiation", "supports_secure_renegotiation", Value::Bool(true)),
    ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos", Value::Bool(false)),
];

/// A listener whose certificate is issued as public authorities do it: by an intermediate, for 90 days.
struct ScannedListener {
    fixture: HttpFixture,
    folder: TempDirectory,
}

impl ScannedListener {
    async fn start() -> Result<Self> {
        let root = CertificateAuthority::new();
        let intermediate = root.certify_intermediate();
        let mut identity = intermediate.issue_for_90_days(&["localhost", "127.0.0.1"]);
        identity.certificate_pem.push_str(&intermediate.pem);
        let fixture = HttpFixture::with_tls(EndpointBehaviour::ok(), &identity, &[]).await?;
        let folder = TempDirectory::new()?;
        fs::write(folder.path().join("root.pem"), &root.pem)?;
        Ok(Self { fixture, folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn authority(&self) -> PathBuf {
        self.file("root.pem")
    }

    /// Returns the JSON that a scanner has written.
    fn report(&self, name: &str) -> Result<Value> {
        let text = fs::read(self.file(name)).context("the scanner has written no report")?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[tokio::test]
#[ignore = "needs testssl.sh: make conformance"]
async fn testssl_finds_no_weakness() -> Result {
    if !tools::is_installed("testssl")? {
        return Ok(());
    }
    let listener = ScannedListener::start().await?;
    let mut command = tools::program("testssl")?;
    command.args(["--quiet", "--color", "0", "--warnings", "off", "--nodns", "none"]);
    command.args(TESTSSL_SECTIONS).arg("--add-ca").arg(listener.authority());
    command.arg("--jsonfile").arg(listener.file("report.json"));
    command.arg(format!("https://{}", listener.fixture.sheave.address()));
    // The exit code counts what is found, whatever it is.
    let output = tools::output_of(command).await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let findings =
        TestsslFindings::read(&listener.report("report.json").context(text.into_owned())?)?;
    findings.check_severities()?;
    findings.check_expected(&fs::read_to_string(tools::conformance_folder().join("testssl.tsv"))?)
}

/// Severity and text of each finding, by its name.
struct TestsslFindings(HashMap<String, (String, String)>);

impl TestsslFindings {
    fn read(report: &Value) -> Result<Self> {
        let all = report.as_array().context("a list of findings")?;
        let text = |finding: &Value, key: &str| -> Result<String> {
            let value = finding[key].as_str().with_context(|| format!("{key}: {finding}"))?;
            Ok(value.trim().to_owned())
        };
        let read = |finding| {
            let said = (text(finding, "severity")?, text(finding, "finding")?);
            Ok((text(finding, "id")?, said))
        };
        Ok(Self(all.iter().map(read).collect::<Result<_>>()?))
    }

    /// Checks that nothing is found that testssl.sh calls a weakness, however small.
    fn check_severities(&self) -> Result {
        for (id, (severity, finding)) in &self.0 {
            let is_fine = matches!(severity.as_str(), "OK" | "INFO");
            ensure!(
                is_fine || TESTSSL_IGNORED.contains(&id.as_str()),
                "{id}: {severity}: {finding}"
            );
        }
        Ok(())
    }

    /// Checks the findings in a table of their names and the beginnings of their texts.
    fn check_expected(&self, table: &str) -> Result {
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let (id, expected) = line.split_once('\t').context(line.to_owned())?;
            let (_, finding) = self.0.get(id).with_context(|| format!("{id} is not reported"))?;
            ensure!(finding.starts_with(expected), "{id}: {finding}, not {expected}");
        }
        Ok(())
    }
}

/// sslyze also checks the listener against Mozilla's recommendation "intermediate": ciphers, curves, signatures and the
/// life of the certificate.
#[tokio::test]
#[ignore = "needs sslyze: make conformance"]
async fn sslyze_finds_no_weakness() -> Result {
    if !tools::is_installed("sslyze")? {
        return Ok(());
    }
    let listener = ScannedListener::start().await?;
    let mut command = tools::program("sslyze")?;
    command.args(["--mozilla_config=intermediate", "--early_data"]);
    command.arg(format!("--certinfo_ca_file={}", listener.authority().display()));
    command.arg(format!("--json_out={}", listener.file("report.json").display()));
    command.arg(listener.fixture.sheave.address().to_string());
    let output = tools::output_of(command).await?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "not as Mozilla recommends: {text}");
    let report = listener.report("report.json")?;
    let scans = &report["server_scan_results"][0]["scan_result"];
    for (scan, key, expected) in SSLYZE_RESULTS {
        ensure!(scans[scan]["result"][key] == *expected, "{scan}: {}", scans[scan]);
    }
    let robot = &scans["robot"]["result"]["robot_result"];
    ensure!(robot == "NOT_VULNERABLE_RSA_NOT_SUPPORTED", "{robot}");
    check_chain(&scans["certificate_info"]["result"]["certificate_deployments"])
}

/// Checks the only chain that the listener serves: in order, without the root, and valid by our authority.
fn check_chain(deployments: &Value) -> Result {
    ensure!(deployments.as_array().is_some_and(|all| all.len() == 1), "{deployments}");
    let chain = &deployments[0];
    ensure!(chain["received_chain_has_valid_order"] == json!(true), "{chain}");
    ensure!(chain["received_chain_contains_anchor_certificate"] == json!(false), "{chain}");
    let results = chain["path_validation_results"].as_array().context("validations")?;
    let own = results.iter().find(|result| result["trust_store"]["name"] == "Supplied CA file");
    let own = own.context("the validation by our authority")?;
    ensure!(own["was_validation_successful"] == json!(true), "{own}");
    Ok(())
}
