//! Tests with real files and real inotify events.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use gateway::ApiObject;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// Time limit far above the duration of any test, so that a test without the expected change ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns an object with this name, to tell one text from another.
fn text(name: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: {name}}}\n\
         spec: {{controllerName: sheave.dev/gateway}}\n"
    )
}

fn name(object: &ApiObject) -> &str {
    let ApiObject::GatewayClass(class) = object else { panic!("unexpected {object:?}") };
    &class.metadata.name
}

fn names(contents: &SourceContents) -> Vec<&str> {
    contents.objects.iter().map(name).collect()
}

fn messages(contents: &SourceContents) -> Vec<&str> {
    contents.problems.iter().map(|problem| problem.message.as_str()).collect()
}

/// A directory and the files watched in it.
struct FilesFixture {
    folder: TempDir,
    files: FileSource,
}

impl FilesFixture {
    fn watching(before: impl FnOnce(&Path), paths: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        before(folder.path());
        let paths = paths.iter().map(|path| folder.path().join(path)).collect();
        Self { files: FileSource::new(paths).unwrap(), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits for the next change and loads the files.
    async fn next(&mut self) -> SourceContents {
        timeout(PATIENCE, self.files.changed()).await.expect("a change is seen").unwrap();
        self.files.load()
    }

    async fn expect(&mut self, expected: &[&str]) {
        let contents = self.next().await;
        assert_eq!(messages(&contents), [""; 0]);
        assert_eq!(names(&contents), expected);
    }
}

fn folder_of(names: &[&str]) -> impl FnOnce(&Path) {
    move |path| {
        for name in names {
            fs::write(path.join(format!("{name}.yaml")), text(name)).unwrap();
        }
    }
}

#[test]
fn folder_is_read_as_its_configuration_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.yaml", "a.yml", "c.json", "notes.txt", ".hidden.yaml"] {
        fs::write(folder.path().join(name), text(name.split('.').next().unwrap())).unwrap();
    }
    fs::create_dir(folder.path().join("within.yaml")).unwrap();
    let contents = read(&[folder.path().to_owned()]);
    assert_eq!(names(&contents), ["a", "b", "c"]);
    assert_eq!(messages(&contents), [""; 0]);
}

#[test]
fn file_that_is_named_twice_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    folder_of(&["a"])(folder.path());
    let contents = read(&[folder.path().to_owned(), folder.path().join("a.yaml")]);
    assert_eq!(names(&contents), ["a"]);
}

#[test]
fn each_unreadable_path_is_a_separate_problem() {
    let folder = tempfile::tempdir().unwrap();
    folder_of(&["good"])(folder.path());
    fs::write(folder.path().join("latin.yaml"), b"name: \xe9").unwrap();
    symlink("nowhere", folder.path().join("dangling.yaml")).unwrap();
    symlink("loop.yaml", folder.path().join("loop.yaml")).unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    let paths = ["", "missing", "empty"].map(|path| folder.path().join(path));
    let contents = read(&paths);
    assert_eq!(names(&contents), ["good"]);
    assert_eq!(
        messages(&contents),
        [
            "no such file or directory",
            "too many levels of symbolic links",
            "no such file or directory",
            "holds no configuration: no file *.yaml, *.yml or *.json",
            "not UTF-8 text",
        ]
    );
}

#[tokio::test]
async fn new_file_is_loaded_when_closed() {
    let mut fixture = FilesFixture::watching(folder_of(&["b"]), &[""]);
    fixture.files.load();
    let mut half = File::create(fixture.path("a.yaml")).unwrap();
    half.write_all(b"half: writ").unwrap();
    fs::write(fixture.path("c.yaml"), text("c")).unwrap();
    fixture.expect(&["b", "c"]).await;
    half.set_len(0).unwrap();
    fs::write(fixture.path("a.yaml"), text("a")).unwrap();
    drop(half);
    fixture.expect(&["a", "b", "c"]).await;
}

#[tokio::test]
async fn overwritten_file_keeps_its_objects_until_it_is_closed() {
    let mut fixture = FilesFixture::watching(folder_of(&["a"]), &[""]);
    fixture.files.load();
    let mut half = File::create(fixture.path("a.yaml")).unwrap();
    half.write_all(b"half: writ").unwrap();
    fs::write(fixture.path("b.yaml"), text("b")).unwrap();
    fixture.expect(&["a", "b"]).await;
}

#[tokio::test]
async fn editor_may_rename_the_old_file_away_first() {
    let mut fixture = FilesFixture::watching(folder_of(&["a", "b"]), &[""]);
    fixture.files.load();
    fs::rename(fixture.path("a.yaml"), fixture.path("a.yaml~")).unwrap();
    let mut new = File::create(fixture.path("a.yaml")).unwrap();
    fs::write(fixture.path("b.yaml"), text("b2")).unwrap();
    fixture.expect(&["a", "b2"]).await;
    new.write_all(text("a2").as_bytes()).unwrap();
    drop(new);
    fixture.expect(&["a2", "b2"]).await;
}

#[tokio::test]
async fn renamed_and_linked_and_removed_files_are_seen() {
    let mut fixture = FilesFixture::watching(folder_of(&["a"]), &[""]);
    fixture.files.load();
    fs::write(fixture.path("b.new"), text("b")).unwrap();
    fs::rename(fixture.path("b.new"), fixture.path("b.yaml")).unwrap();
    fixture.expect(&["a", "b"]).await;
    fs::hard_link(fixture.path("b.yaml"), fixture.path("c.yaml")).unwrap();
    fixture.expect(&["a", "b", "b"]).await;
    fs::remove_file(fixture.path("b.yaml")).unwrap();
    fixture.expect(&["a", "b"]).await;
}

#[tokio::test]
async fn mounted_config_map_is_swapped_as_a_whole() {
    let version = |path: &Path, version: &str, names: &[&str]| {
        let folder = path.join(version);
        fs::create_dir(&folder).unwrap();
        for (file, name) in ["a.yaml", "b.yaml"].iter().zip(names) {
            fs::write(folder.join(file), text(name)).unwrap();
        }
        symlink(version, path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    let mount = |path: &Path| {
        version(path, "..1", &["a1", "b1"]);
        symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
        symlink("..data/b.yaml", path.join("b.yaml")).unwrap();
    };
    let mut fixture = FilesFixture::watching(mount, &[""]);
    assert_eq!(names(&fixture.files.load()), ["a1", "b1"]);
    version(fixture.folder.path(), "..2", &["a2", "b2"]);
    fixture.expect(&["a2", "b2"]).await;
    version(fixture.folder.path(), "..3", &["a3", "b3"]);
    fixture.expect(&["a3", "b3"]).await;
}

#[tokio::test]
async fn symlink_target_is_watched() {
    let linked = |path: &Path| {
        fs::create_dir(path.join("elsewhere")).unwrap();
        fs::write(path.join("elsewhere/real.yaml"), text("before")).unwrap();
        symlink("elsewhere/real.yaml", path.join("link.yaml")).unwrap();
    };
    let mut fixture = FilesFixture::watching(linked, &["link.yaml"]);
    fixture.files.load();
    fs::write(fixture.path("elsewhere/real.yaml"), text("after")).unwrap();
    fixture.expect(&["after"]).await;
}

#[tokio::test]
async fn file_that_vanishes_is_a_problem_until_it_returns() {
    let mut fixture = FilesFixture::watching(folder_of(&["a", "other"]), &["a.yaml"]);
    fixture.files.load();
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(messages(&fixture.next().await), ["no such file or directory"]);
    fs::write(fixture.path("other.yaml"), text("unrelated")).unwrap();
    fs::write(fixture.path("a.yaml"), text("again")).unwrap();
    fixture.expect(&["again"]).await;
}

#[tokio::test]
async fn folder_that_vanishes_is_a_problem_until_it_returns() {
    let nested = |path: &Path| {
        fs::create_dir_all(path.join("x/y")).unwrap();
        fs::write(path.join("x/y/a.yaml"), text("a")).unwrap();
    };
    let mut fixture = FilesFixture::watching(nested, &["x/y"]);
    fixture.files.load();
    fs::rename(fixture.path("x"), fixture.path("z")).unwrap();
    assert_eq!(messages(&fixture.next().await), ["no such file or directory"]);
    fs::rename(fixture.path("z"), fixture.path("x")).unwrap();
    fixture.expect(&["a"]).await;
    fs::write(fixture.path("x/y/b.yaml"), text("b")).unwrap();
    fixture.expect(&["a", "b"]).await;
}

#[tokio::test]
async fn expired_files_are_read_again_without_an_event() {
    let mut fixture = FilesFixture::watching(folder_of(&["a"]), &[""]);
    fixture.files.load();
    fixture.files.expire();
    fixture.expect(&["a"]).await;
}

#[tokio::test]
async fn emptied_file_keeps_its_objects_until_it_is_written() {
    let mut fixture = FilesFixture::watching(folder_of(&["a", "b"]), &[""]);
    fixture.files.load();
    fs::write(fixture.path("a.yaml"), "").unwrap();
    fixture.expect(&["a", "b"]).await;
    fs::write(fixture.path("a.yaml"), text("a2")).unwrap();
    fixture.expect(&["a2", "b"]).await;
    assert_eq!(fixture.files.cache.confirm_at(), None);
}

#[tokio::test]
async fn emptied_file_loses_its_objects_when_a_second_read_confirms_it() {
    let mut fixture = FilesFixture::watching(folder_of(&["a"]), &[""]);
    fixture.files.load();
    fs::write(fixture.path("a.yaml"), "# nothing\n").unwrap();
    fixture.expect(&["a"]).await;
    fixture.expect(&[]).await;
    fs::write(fixture.path("a.yaml"), "# still nothing\n").unwrap();
    fixture.expect(&[]).await;
}

#[tokio::test]
async fn empty_file_at_start_is_empty_at_once() {
    let empty = |path: &Path| fs::write(path.join("a.yaml"), "").unwrap();
    let mut fixture = FilesFixture::watching(empty, &[""]);
    assert_eq!(names(&fixture.files.load()), [""; 0]);
    assert_eq!(fixture.files.cache.confirm_at(), None);
}
