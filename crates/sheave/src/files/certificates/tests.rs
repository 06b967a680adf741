//! Tests of certificates that are renewed while they are watched.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// Time limit far above the duration of any test, so that a test without the expected change ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// Directory as the kubelet mounts a Secret: links to `..data/NAME`, where `..data` is replaced as a whole.
struct SecretMount {
    folder: TempDir,
    files: CertificateFiles,
}

impl SecretMount {
    fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(&folder, version);
        symlink(version, folder.path().join("..data")).unwrap();
        for name in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{name}"), folder.path().join(name)).unwrap();
        }
        let path = |name: &str| folder.path().join(name);
        let pair = CertificateKeyPair { certificate: path("tls.crt"), key: path("tls.key") };
        Self { files: CertificateFiles::new(vec![pair]).unwrap(), folder }
    }

    fn renew(&self, version: &str) {
        write(&self.folder, version);
        let path = |name: &str| self.folder.path().join(name);
        symlink(version, path("..new")).unwrap();
        fs::rename(path("..new"), path("..data")).unwrap();
    }

    async fn next(&mut self) -> SourceContents {
        timeout(PATIENCE, self.files.changed()).await.expect("a change is seen").unwrap();
        self.files.load()
    }
}

fn write(folder: &TempDir, version: &str) {
    let version_folder = folder.path().join(version);
    fs::create_dir(&version_folder).unwrap();
    for name in ["tls.crt", "tls.key"] {
        fs::write(version_folder.join(name), format!("{version} {name}")).unwrap();
    }
}

fn held(contents: &SourceContents) -> Vec<String> {
    assert_eq!(contents.problems, []);
    let [ApiObject::Secret(secret)] = &contents.objects[..] else {
        panic!("{:?}", contents.objects)
    };
    let value = |name| String::from_utf8(secret.spec.value(name).unwrap().to_vec()).unwrap();
    vec![value("tls.crt"), value("tls.key")]
}

#[tokio::test]
async fn both_files_of_a_renewed_certificate_are_read_together() {
    let mut mount = SecretMount::new("..1");
    assert_eq!(held(&mount.files.load()), ["..1 tls.crt", "..1 tls.key"]);
    for version in ["..2", "..3"] {
        mount.renew(version);
        let expected = [format!("{version} tls.crt"), format!("{version} tls.key")];
        assert_eq!(held(&mount.next().await), expected);
    }
}

#[tokio::test]
async fn missing_certificate_file_is_a_problem_until_it_returns() {
    let mut mount = SecretMount::new("..1");
    mount.files.load();
    fs::remove_file(mount.folder.path().join("tls.key")).unwrap();
    let contents = mount.next().await;
    assert!(contents.objects.is_empty());
    let [problem] = &contents.problems[..] else { panic!("{:?}", contents.problems) };
    assert!(problem.to_string().ends_with("tls.key: no such file or directory"), "{problem}");
    symlink("..data/tls.key", mount.folder.path().join("tls.key")).unwrap();
    assert_eq!(held(&mount.next().await), ["..1 tls.crt", "..1 tls.key"]);
}
