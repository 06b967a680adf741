//! The endpoint: reads requests as hyper parses them, and answers each with the next answer of the script.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, spawn_local};

use super::quiescence::Quiescence;
use super::script::Answer;
use crate::reference::{self, Seen};

const DEFAULT_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const SWITCHING: &[u8] = b"HTTP/1.1 101";

/// The endpoint's part of a script.
pub(super) struct Endpoint {
    quiescence: Rc<Quiescence>,
    answers: RefCell<VecDeque<Answer>>,
    connections: RefCell<Vec<AbortHandle>>,
    received: RefCell<Vec<Seen>>,
}

impl Endpoint {
    /// Starts to accept connections.
    pub(super) fn serve(listener: TcpListener, quiescence: Rc<Quiescence>) -> Rc<Self> {
        let endpoint = Rc::new(Self {
            quiescence,
            answers: RefCell::default(),
            connections: RefCell::default(),
            received: RefCell::default(),
        });
        let serving = Rc::clone(&endpoint);
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = spawn_local(Rc::clone(&serving).serve_connection(stream));
                serving.connections.borrow_mut().push(connection.abort_handle());
            }
        });
        endpoint
    }

    /// Sets the answers of the next script.
    pub(super) fn begin(&self, answers: impl IntoIterator<Item = Answer>) {
        *self.answers.borrow_mut() = answers.into_iter().collect();
    }

    /// Closes all connections.
    pub(super) fn close_connections(&self) {
        self.connections.borrow_mut().drain(..).for_each(|connection| connection.abort());
    }

    /// Returns the requests that have arrived since the last call.
    pub(super) fn take_received(&self) -> Vec<Seen> {
        self.received.take()
    }

    async fn serve_connection(self: Rc<Self>, mut stream: TcpStream) {
        self.quiescence.note_event();
        // What is left when a script ends must not wait in the kernel.
        drop(stream.set_zero_linger());
        let (mut bytes, answered) = (Vec::new(), Cell::new(0));
        let mut count = 0;
        loop {
            let length = stream.read_buf(&mut bytes).await.unwrap_or(0);
            self.quiescence.note_event();
            if length == 0 {
                return;
            }
            let requests = reference::requests(&bytes);
            let complete = requests.iter().filter(|request| request.body.is_some()).count();
            let arrived = requests.len();
            self.received.borrow_mut().extend(requests.into_iter().skip(count));
            count = arrived;
            while let Some(answer) = self.next_answer(&answered, arrived, complete) {
                if stream.write_all(&answer.bytes).await.is_err() {
                    return;
                }
                if answer.closes {
                    drop(stream.shutdown().await);
                }
                if answer.closes || answer.bytes.starts_with(SWITCHING) {
                    return drain(&mut stream, &self.quiescence).await;
                }
            }
        }
    }

    /// Takes the answer to the next request that has arrived as far as the answer needs it.
    fn next_answer(
        &self,
        answered: &Cell<usize>,
        arrived: usize,
        complete: usize,
    ) -> Option<Answer> {
        let mut answers = self.answers.borrow_mut();
        let is_early = answers.front().is_some_and(|answer| answer.is_early);
        if answered.get() >= if is_early { arrived } else { complete } {
            return None;
        }
        answered.set(answered.get() + 1);
        let default = || Answer { bytes: DEFAULT_ANSWER.to_vec(), is_early: false, closes: false };
        Some(answers.pop_front().unwrap_or_else(default))
    }
}

/// Reads what is no request: what follows a switch of protocols, or our close.
async fn drain(stream: &mut TcpStream, quiescence: &Quiescence) {
    let mut bytes = [0; 4096];
    while let Ok(1..) = stream.read(&mut bytes).await {
        quiescence.note_event();
    }
}
