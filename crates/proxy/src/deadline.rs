//! One timer per connection, re-armed only when it must fire earlier than it would.
//!
//! A request moves its deadline many times and rarely reaches it. So the timer stays armed for an old, earlier time.
//! When it fires, it compares the clock with the current deadline and re-arms itself if the deadline is later.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use balance::Time;
use tokio::time::Sleep;

use crate::clock;

pub(crate) struct Deadline {
    at: Time,
    armed: Time,
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    pub(crate) fn new(at: Time) -> Self {
        Self { at, armed: at, timer: Box::pin(tokio::time::sleep_until(clock::instant(at))) }
    }

    /// Sets the deadline to `at`.
    pub(crate) fn set(&mut self, at: Time) {
        self.at = at;
    }

    /// Ready once the deadline has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.at < self.armed {
            self.arm();
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if clock::now() >= self.at {
                return Poll::Ready(());
            }
            self.arm();
        }
    }

    fn arm(&mut self) {
        self.armed = self.at;
        self.timer.as_mut().reset(clock::instant(self.at));
    }
}
