//! The share of one client connection in the slots of a backend, for requests whose body has not arrived.
//!
//! Such a request holds its slot for as long as the client likes. A multiplexed connection carries many requests, so
//! the number of slots and queue places that they have together is bounded. A request gives its place in the share back
//! when its body is complete: clients that send complete requests keep their whole concurrency.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::backend::Backend;

/// Incomplete requests of one multiplexed client connection that have or wait for a slot.
#[derive(Default)]
pub(crate) struct ConnectionShare {
    /// The number of them for each backend; a backend without any has no entry.
    held: RefCell<Vec<(Arc<Backend>, u32)>>,
    /// Requests that wait for a place in the share.
    waiters: RefCell<Vec<Waker>>,
    /// Bytes of request bodies that have arrived on all streams, as far as their pace is measured.
    received: Cell<u64>,
}

/// A place in the share of a connection; given back when dropped.
pub(crate) struct SharePlace {
    share: Rc<ConnectionShare>,
    backend: Arc<Backend>,
}

impl ConnectionShare {
    /// Takes a place at this backend if fewer than `most` are taken. Else the task of `cx` is woken when one is free.
    pub(crate) fn take(
        self: &Rc<Self>,
        backend: &Arc<Backend>,
        most: impl FnOnce() -> u32,
        cx: &Context<'_>,
    ) -> Option<SharePlace> {
        let mut held = self.held.borrow_mut();
        match held.iter_mut().find(|(of, _)| Arc::ptr_eq(of, backend)) {
            // The first is always allowed.
            None => held.push((Arc::clone(backend), 1)),
            Some((_, count)) if *count < most() => *count += 1,
            Some(_) => {
                let mut waiters = self.waiters.borrow_mut();
                if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiters.push(cx.waker().clone());
                }
                return None;
            }
        }
        drop(held);
        Some(SharePlace { share: Rc::clone(self), backend: Arc::clone(backend) })
    }

    /// Counts bytes of a request body, and returns how many have arrived on all streams.
    pub(crate) fn count_received(&self, bytes: u64) -> u64 {
        self.received.set(self.received.get().wrapping_add(bytes));
        self.received.get()
    }
}

impl Drop for SharePlace {
    fn drop(&mut self) {
        let mut held = self.share.held.borrow_mut();
        if let Some(index) = held.iter().position(|(of, _)| Arc::ptr_eq(of, &self.backend)) {
            held[index].1 -= 1;
            if held[index].1 == 0 {
                held.swap_remove(index);
            }
        }
        drop(held);
        let waiters = std::mem::take(&mut *self.share.waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }
}
