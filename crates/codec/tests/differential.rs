//! Differential test: hyper's server accepts every request that we accept, and parses it identically.

mod mutate;
mod reference;
mod table;

use mutate::Message;
use proptest::prelude::*;

#[test]
fn accepted_table_requests_agree_with_hyper() {
    for [_, _, _, bytes, _] in table::rows::<5>("strict-requests.tsv") {
        reference::agrees(&table::unescape(&bytes));
    }
}

/// Sends the bodies of the table of chunked bodies as request bodies.
#[test]
fn chunked_table_bodies_agree_with_hyper() {
    for [_, _, _, _, bytes, _] in table::rows::<6>("strict-chunked.tsv") {
        reference::agrees(&with_head(&table::unescape(&bytes)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn mutated_requests_agree_with_hyper(Message(bytes) in mutate::mutated::<5>("strict-requests.tsv", 3)) {
        reference::agrees(&bytes);
    }

    #[test]
    fn mutated_bodies_agree_with_hyper(Message(body) in mutate::mutated::<6>("strict-chunked.tsv", 4)) {
        reference::agrees(&with_head(&body));
    }
}

fn with_head(body: &[u8]) -> Vec<u8> {
    [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", body].concat()
}
