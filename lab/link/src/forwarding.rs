//! Reads packets from one device and writes them to the other when they are due.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};

use crate::emulated_link::{EmulatedLink, PacketOutcome};

/// Largest IP packet.
const PACKET_BYTES: usize = 1 << 16;
/// Packets read from one direction before the other one is served.
const BATCH: usize = 64;
/// Limit of packets in flight per direction, whatever its delay: 96 MiB of full packets.
const MAX_IN_FLIGHT: usize = 1 << 16;

/// One direction: the devices, the link between them, and the packets in flight.
pub(crate) struct LinkDirection<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    line: EmulatedLink,
    in_flight: VecDeque<DelayedPacket>,
}

struct DelayedPacket {
    due: Duration,
    bytes: Vec<u8>,
}

/// Forwards packets until a device is gone. Both devices have to be non-blocking.
pub(crate) fn forward_packets(mut ways: [LinkDirection<'_>; 2]) -> Result<()> {
    let began = Instant::now();
    let mut buffer = vec![0; PACKET_BYTES];
    loop {
        for way in &mut ways {
            way.receive(began.elapsed(), &mut buffer)?;
            way.deliver(began.elapsed())?;
        }
        let [there, back] = &ways;
        let next = [there, back].into_iter().filter_map(LinkDirection::next_due).min();
        let wait = next.map(|due| timespec(due.saturating_sub(began.elapsed())));
        let mut devices = [there, back].map(|way| PollFd::new(&way.from, PollFlags::IN));
        match poll(&mut devices, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for packets"),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}

impl<'a> LinkDirection<'a> {
    pub(crate) fn new(from: BorrowedFd<'a>, to: BorrowedFd<'a>, line: EmulatedLink) -> Self {
        Self { from, to, line, in_flight: VecDeque::new() }
    }

    /// Reads packets and schedules their delivery.
    fn receive(&mut self, now: Duration, buffer: &mut [u8]) -> Result<()> {
        for _ in 0..BATCH {
            let length = match read(self.from, &mut *buffer) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from a device"),
            };
            if self.in_flight.len() == MAX_IN_FLIGHT {
                continue;
            }
            if let PacketOutcome::Arrives(due) = self.line.send(now, length) {
                self.in_flight.push_back(DelayedPacket { due, bytes: buffer[..length].to_vec() });
            }
        }
        Ok(())
    }

    /// Writes the packets that are due.
    fn deliver(&mut self, now: Duration) -> Result<()> {
        while let Some(packet) = self.in_flight.pop_front_if(|packet| packet.due <= now) {
            match write(self.to, &packet.bytes) {
                // A device that is down or has no memory loses packets, as a network card would.
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::IO) => {}
                Err(error) => return Err(error).context("cannot write to a device"),
            }
        }
        Ok(())
    }

    fn next_due(&self) -> Option<Duration> {
        self.in_flight.front().map(|packet| packet.due)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Returns two devices, each with the end that a program holds.
    fn devices() -> [(UnixDatagram, UnixDatagram); 2] {
        [(); 2].map(|()| {
            let (device, end) = UnixDatagram::pair().unwrap();
            for socket in [&device, &end] {
                socket.set_nonblocking(true).unwrap();
            }
            (device, end)
        })
    }

    fn arrived(end: &UnixDatagram) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2000];
        let packets =
            std::iter::from_fn(|| end.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec()));
        packets.collect()
    }

    fn way<'a>(
        from: &'a UnixDatagram,
        to: &'a UnixDatagram,
        conditions: &str,
    ) -> LinkDirection<'a> {
        LinkDirection::new(
            from.as_fd(),
            to.as_fd(),
            EmulatedLink::new(conditions.parse().unwrap(), 1),
        )
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn packets_are_delivered_whole_in_order_and_on_time() {
        let [(near, sender), (far, receiver)] = devices();
        let mut way = way(&near, &far, "delay-us=5000");
        let mut buffer = vec![0; PACKET_BYTES];
        sender.send(b"first").unwrap();
        sender.send(&[7; 1500]).unwrap();
        way.receive(MILLISECOND, &mut buffer).unwrap();
        assert_eq!(way.next_due(), Some(6 * MILLISECOND));
        way.deliver(6 * MILLISECOND - Duration::from_nanos(1)).unwrap();
        assert!(arrived(&receiver).is_empty());
        way.deliver(6 * MILLISECOND).unwrap();
        assert_eq!(arrived(&receiver), [b"first".to_vec(), vec![7; 1500]]);
        assert_eq!(way.next_due(), None);
    }

    #[test]
    fn lost_packets_are_not_delivered() {
        let [(near, sender), (far, receiver)] = devices();
        let mut way = way(&near, &far, "loss=1");
        sender.send(b"lost").unwrap();
        way.receive(MILLISECOND, &mut vec![0; PACKET_BYTES]).unwrap();
        way.deliver(MILLISECOND).unwrap();
        assert!(arrived(&receiver).is_empty());
    }

    #[test]
    fn closed_device_is_an_error() {
        let [(near, sender), (far, receiver)] = devices();
        let ways = [way(&near, &far, ""), way(&far, &near, "")];
        sender.send(b"last").unwrap();
        drop(receiver);
        let error = forward_packets(ways).unwrap_err();
        assert_eq!(error.to_string(), "cannot write to a device");
    }
}
