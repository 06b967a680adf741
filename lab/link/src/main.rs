//! A long line for the lab: carries IP packets between two TUN devices, late, at a rate, and not all of them.
//!
//! The devices are its standard input and output, opened by whoever starts it, without offloads: each read is one packet
//! as it would be on a wire, so loss is drawn for each of them. It ends with its starter.

// What a line does to packets; then the devices; then what both are told.
mod line;
mod carry;
mod conditions;

use std::env;
use std::io;
use std::os::fd::AsFd as _;

use anyhow::Result;

use crate::carry::{Way, carry};
use crate::conditions::Arguments;
use crate::line::Line;

fn main() -> Result<()> {
    let Arguments { seed, there, back } = Arguments::parse(env::args().skip(1))?;
    let (near, far) = (io::stdin(), io::stdout());
    carry([
        Way::new(near.as_fd(), far.as_fd(), Line::new(there, seed)),
        Way::new(far.as_fd(), near.as_fd(), Line::new(back, !seed)),
    ])
}
