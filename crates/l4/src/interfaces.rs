//! Interfaces of this network namespace by name and number.

use std::collections::BTreeSet;

use nix::net::if_::{if_nameindex, if_nametoindex};

use crate::L4Error;

pub(crate) fn interface_index(name: &str) -> Result<u32, L4Error> {
    if_nametoindex(name).map_err(|_absent| L4Error::NoInterface { name: name.to_owned() })
}

pub(crate) fn interface_names() -> Vec<String> {
    let interfaces = if_nameindex();
    let names = interfaces.iter().flat_map(|all| all.iter());
    names.map(|it| it.name().to_string_lossy().into_owned()).collect()
}

pub(crate) fn interface_indices() -> BTreeSet<u32> {
    let interfaces = if_nameindex();
    interfaces.iter().flat_map(|all| all.iter()).map(|it| it.index()).collect()
}
