//! A long link for the lab: forwards IP packets between two TUN devices with a delay, a rate and losses.
//!
//! The devices are its standard input and output, opened by its parent process without offloads. So each read is one
//! packet as it would be on a wire, and loss is drawn for each of them. It ends with its parent.

// In reading order: the link, the devices, the command line.
mod emulated_link;
mod forwarding;
mod conditions;

use std::env;
use std::io;
use std::os::fd::AsFd as _;

use anyhow::Result;

use crate::conditions::LinkArguments;
use crate::emulated_link::EmulatedLink;
use crate::forwarding::{LinkDirection, forward_packets};

fn main() -> Result<()> {
    let LinkArguments { seed, there, back } = LinkArguments::parse(env::args().skip(1))?;
    let (near, far) = (io::stdin(), io::stdout());
    forward_packets([
        LinkDirection::new(near.as_fd(), far.as_fd(), EmulatedLink::new(there, seed)),
        LinkDirection::new(far.as_fd(), near.as_fd(), EmulatedLink::new(back, !seed)),
    ])
}
