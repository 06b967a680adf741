//! Certificates in files: errors are reported, and a renewed certificate is loaded without a
//! signal.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::json;
use tests::configuration::TempDirectory;
use tests::sheave::run;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually};

const EXPIRY: &str = "sheave_certificate_expiry_timestamp_seconds";

/// Returns the PEM of a self-signed certificate that is valid until this year, and of its key.
fn make_certificate(until: i32) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(["shop.example".to_owned()])?;
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Returns the seconds from 1970 to the beginning of a year.
fn beginning_of(year: i32) -> f64 {
    date_time_ymd(year, 1, 1).unix_timestamp() as f64
}

/// A directory with a certificate, mounted like a Secret by the kubelet: the symbolic links lead
/// through a directory that is replaced as a whole.
struct CertificateMount(TempDirectory);

impl CertificateMount {
    fn new(certificate: &str, key: &str) -> Result<Self> {
        let mount = Self(TempDirectory::new()?);
        mount.renew("first", certificate, key)?;
        for name in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(name), mount.path(name))?;
        }
        Ok(mount)
    }

    fn renew(&self, version: &str, certificate: &str, key: &str) -> Result {
        fs::create_dir(self.path(version))?;
        fs::write(self.path(version).join("tls.crt"), certificate)?;
        fs::write(self.path(version).join("tls.key"), key)?;
        symlink(version, self.path("..new"))?;
        Ok(fs::rename(self.path("..new"), self.path("..data"))?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the flags of `serve` that use this certificate.
    fn flags(&self) -> Result<Vec<String>> {
        let path = |name| self.path(name).to_str().map(str::to_owned).context("a path in UTF-8");
        let (certificate, key) = (path("tls.crt")?, path("tls.key")?);
        let flags = ["--listen", "https://127.0.0.1:0", "--to", "127.0.0.1:1", "--cert"];
        let flags = flags.map(str::to_owned).into_iter();
        Ok(flags.chain([certificate, "--key".to_owned(), key]).collect())
    }
}

async fn wait_for_expiry_year(sheave: &SheaveProcess, year: i32) -> Result {
    let observe = async || sheave.metric_samples(EXPIRY).await;
    let expected = |seen: &Vec<(String, f64)>| matches!(&seen[..], [(_, expiry)] if *expiry == beginning_of(year));
    eventually("the certificate in use", observe, expected).await?;
    Ok(())
}

#[tokio::test]
async fn renewed_certificate_is_loaded_and_a_broken_one_is_rejected() -> Result {
    let (certificate, key) = make_certificate(2098)?;
    let mount = CertificateMount::new(&certificate, &key)?;
    let sheave = SheaveProcess::start(mount.flags()?).await?;
    wait_for_expiry_year(&sheave, 2098).await?;

    let (renewed, renewed_key) = make_certificate(2099)?;
    mount.renew("second", &renewed, &renewed_key)?;
    wait_for_expiry_year(&sheave, 2099).await?;

    // The key of the previous certificate.
    let (third, _) = make_certificate(2097)?;
    mount.renew("third", &third, &renewed_key)?;
    sheave.wait_for_log(0, "data.tls.key").await?;
    ensure!(sheave.log().contains("is not the key of the certificate"), "{}", sheave.log());
    wait_for_expiry_year(&sheave, 2099).await?;
    ensure!(!sheave.log().contains("PRIVATE KEY"), "{}", sheave.log());

    let (fourth, fourth_key) = make_certificate(2096)?;
    mount.renew("fourth", &fourth, &fourth_key)?;
    wait_for_expiry_year(&sheave, 2096).await
}

#[tokio::test]
async fn invalid_certificate_at_start_gives_one_line_naming_the_files() -> Result {
    let ((certificate, _), (_, key)) = (make_certificate(2098)?, make_certificate(2098)?);
    let mount = CertificateMount::new(&certificate, &key)?;
    let flags = mount.flags()?;
    let flags: Vec<&str> = ["serve"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let output = run(&flags).await?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    for part in ["/tls.crt and ", "/tls.key: ", "is not the key of the certificate in tls.crt"] {
        ensure!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    fs::remove_file(mount.path("tls.key"))?;
    let text = run(&flags).await?.stderr;
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(text.contains("tls.key: no such file or directory"), "{text}");
    Ok(())
}

#[tokio::test]
async fn https_without_a_certificate_uses_a_self_signed_one() -> Result {
    let flags = ["--listen", "https://127.0.0.1:0", "--to", "127.0.0.1:1"];
    let sheave = SheaveProcess::start(flags).await?;
    ensure!(sheave.log().contains("self-signed"), "{}", sheave.log());
    ensure!(sheave.metric_samples(EXPIRY).await?.len() == 1);
    Ok(())
}

/// Runs `sheave check` with a Secret that a listener uses.
async fn check(certificate: &str, key: &str) -> Result<(Option<i32>, String)> {
    let configuration = ConfigDirectory::for_endpoints(&[])?;
    let values = json!({ "tls.crt": certificate, "tls.key": key });
    let metadata = json!({ "name": "shop" });
    let secret =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values });
    let listener = json!({
        "name": "https", "port": 0, "protocol": "HTTPS",
        "tls": { "certificateRefs": [{ "name": "shop" }] },
    });
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": "encrypted" },
        "spec": { "gatewayClassName": "sheave", "listeners": [listener] },
    });
    configuration.write("tls.yaml", &[secret, gateway])?;
    let path = configuration.path().to_str().context("a path in UTF-8")?;
    let output = run(&["check", path]).await?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[tokio::test]
async fn check_reports_certificate_errors() -> Result {
    let (certificate, key) = make_certificate(2098)?;
    let (code, text) = check(&certificate, &key).await?;
    ensure!(code == Some(0), "{text}");

    let (expired, expired_key) = make_certificate(2002)?;
    let (code, text) = check(&expired, &expired_key).await?;
    let line = "tls.yaml: document 1: Secret default/shop: data.tls.crt: the certificate expired";
    ensure!(code == Some(1) && text.contains(line), "{text}");

    let (code, text) = check(&certificate, &expired_key).await?;
    let line = "document 1: Secret default/shop: data.tls.key: is not the key of the certificate";
    ensure!(code == Some(1) && text.contains(line), "{text}");

    let (code, text) = check("no PEM at all", &key).await?;
    let line = "document 1: Secret default/shop: data.tls.crt: contains no PEM of a certificate";
    ensure!(code == Some(1) && text.contains(line), "{text}");
    Ok(())
}
