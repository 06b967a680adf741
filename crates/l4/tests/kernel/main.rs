//! The data path with real interfaces: a client, two nodes and their pods, in network namespaces. Needs root, and is
//! skipped without.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

/// The network.
mod network;
/// The process that loads the programs.
mod loader;

use l4::{AttachMethod, DataPath, DataPathConfig, L4Error, L4Table};

use loader::{DeliveryCase, LoaderProcess, desired};
use network::{CLIENT, EchoClient, NODES, TestNetwork, converse};

/// Returns what the pod is to say: its name, and the address that it sees.
fn expected(mode: DeliveryCase, version: usize) -> String {
    let name = ["a", "b"][mode.pod_node()];
    let client = if mode == DeliveryCase::FullNat { NODES[0][version] } else { CLIENT[version] };
    format!("{name} {client}")
}

fn check_all(conversations: &mut [(EchoClient, usize)], mode: DeliveryCase) {
    for (conversation, version) in conversations {
        assert_eq!(conversation.ask().unwrap(), expected(mode, *version), "{mode:?}");
        conversation.exchange_megabyte();
        conversation.exchange_fragments();
    }
}

fn serve_through_a_restart(mode: DeliveryCase, method: Option<AttachMethod>) {
    let Some(network) = TestNetwork::new() else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = || {
        let nodes = network.nodes.iter().zip(&folders).enumerate();
        nodes.map(|(number, (node, folder))| {
            LoaderProcess::start(node, number, mode, method, folder.path())
        })
    };
    let loaders: Vec<_> = start().collect();
    let mut old = converse(&network);
    check_all(&mut old, mode);

    loaders.into_iter().for_each(LoaderProcess::kill);
    check_all(&mut old, mode);
    check_all(&mut converse(&network), mode);

    let loaders: Vec<_> = start().collect();
    check_all(&mut old, mode);
    check_all(&mut converse(&network), mode);
    loaders.into_iter().for_each(LoaderProcess::kill);
}

#[test]
fn pod_on_the_node_of_the_address() {
    serve_through_a_restart(DeliveryCase::Local, None);
}

#[test]
fn pod_on_another_node_of_the_segment() {
    serve_through_a_restart(DeliveryCase::Layer2, None);
}

#[test]
fn pod_on_another_node_through_vxlan() {
    serve_through_a_restart(DeliveryCase::Vxlan, None);
}

#[test]
fn pod_on_another_node_with_full_nat() {
    serve_through_a_restart(DeliveryCase::FullNat, None);
}

#[test]
fn kernel_without_tcx() {
    serve_through_a_restart(DeliveryCase::Layer2, Some(AttachMethod::Clsact));
}

#[test]
fn restarted_process_finds_the_maps_as_they_were() {
    let Some(network) = TestNetwork::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    network.nodes[0].run(move || {
        let data_path = loader::load(0, DeliveryCase::Layer2, None, path.clone());
        let contents = data_path.contents().unwrap();
        drop(data_path);
        let again = DataPath::open(&DataPathConfig::new(path.clone())).unwrap();
        assert_eq!(again.contents().unwrap(), contents);
        let mut table = L4Table::new(contents);
        assert_eq!(table.update(&desired(0, DeliveryCase::Layer2)).unwrap(), []);
        again.remove().unwrap();
        let empty = DataPath::open(&DataPathConfig::new(path)).unwrap();
        assert_eq!(empty.contents().unwrap(), L4Table::default().contents().clone());
    });
}

#[test]
fn process_without_rights_and_missing_interfaces_are_told() {
    let Some(network) = TestNetwork::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    network.nodes[0].run(move || {
        let mut data_path = DataPath::open(&DataPathConfig::new(path.clone())).unwrap();
        let error = data_path.attach("gone0", l4::ProgramHook::LbIn).unwrap_err();
        assert!(matches!(&error, L4Error::NoInterface { name } if name == "gone0"), "{error}");
        data_path.detach("gone0", l4::ProgramHook::LbIn).unwrap();
        drop(data_path);
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = DataPath::open(&DataPathConfig::new(path)).err().unwrap();
        assert!(matches!(error, L4Error::BpfDenied) && error.is_permanent(), "{error:?}");
    });
}

#[test]
fn pod_that_goes_takes_its_link_along() {
    let Some(network) = TestNetwork::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let pins = {
        let path = path.clone();
        move || std::fs::read_dir(path.join("v3")).unwrap().flatten().filter(is_link).count()
    };
    network.nodes[0].run(move || {
        let mut data_path = loader::load(0, DeliveryCase::Local, None, path);
        if data_path.attach("up0", l4::ProgramHook::LbIn).unwrap() == AttachMethod::Clsact {
            eprintln!("skipped: this kernel has no tcx, and filters go with their interfaces");
            return;
        }
        assert_eq!(pins(), 4);
        let deleted =
            std::process::Command::new("ip").args(["link", "del", "pod0"]).status().unwrap();
        assert!(deleted.success());
        data_path.forget_gone_interfaces().unwrap();
        assert_eq!(pins(), 3);
        data_path.detach("vx0", l4::ProgramHook::LbIn).unwrap();
        assert_eq!(pins(), 2);
    });
}

fn is_link(entry: &std::fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("link_")
}
