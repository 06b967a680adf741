//! Bodies arrive unchanged in any framing, piece size and pace.

use std::future::poll_fn;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Returns both ends of a connection over loopback: a plain one for the test, and a peer's.
pub(super) async fn pair() -> (TcpStream, PeerStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), PeerStream::Tcp(far.unwrap().0))
}

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 % 251) as u8).collect()
}

/// Returns the body as its sender writes it, in chunks of at most `chunk` bytes if it is chunked.
fn framed(body: &[u8], framing: BodyFraming, chunk: usize) -> Vec<u8> {
    if framing != BodyFraming::Chunked {
        return body.to_vec();
    }
    let mut out = Vec::new();
    for part in body.chunks(chunk) {
        write::chunk_header(part.len(), &mut out);
        out.extend_from_slice(part);
        write::chunk_end(&mut out);
    }
    write::last_chunk(&FieldSection::new(), &mut out);
    out
}

/// Returns the body that a receiver decodes.
pub(super) fn received(wire: &[u8], framing: BodyFraming) -> Vec<u8> {
    if framing != BodyFraming::Chunked {
        return wire.to_vec();
    }
    let (mut reader, mut rest, mut body) = (ChunkedDecoder::new(), wire, Vec::new());
    loop {
        match reader.next(rest).unwrap() {
            ChunkedEvent::Data { skip, len } => {
                body.extend_from_slice(&rest[skip..skip + len]);
                rest = &rest[skip + len..];
            }
            ChunkedEvent::NeedMore { .. } => panic!("the body has no end"),
            ChunkedEvent::End { skip } => {
                assert_eq!(rest.len(), skip, "nothing comes after the end");
                return body;
            }
        }
    }
}

/// Parameters of one transfer.
#[derive(Clone, Debug)]
struct TransferCase {
    length: usize,
    from: BodyFraming,
    to: BodyFraming,
    chunk: usize,
    pieces: Vec<usize>,
    keep: bool,
}

/// Pumps the body, and a second time from the start if all of it was kept; returns the received
/// bodies and the copy for mirrors.
async fn run_transfer(transfer: &TransferCase) -> Result<Vec<Vec<u8>>, BodyError> {
    let (mut sender, mut source) = pair().await;
    let (receiver, mut sink) = pair().await;
    let wire = framed(&body(transfer.length), transfer.from, transfer.chunk);
    let pieces = transfer.pieces.clone();
    let send = async move {
        let (mut rest, mut sizes) = (wire.as_slice(), pieces.iter().cycle());
        while !rest.is_empty() {
            let count = rest.len().min(*sizes.next().unwrap());
            sender.write_all(&rest[..count]).await.unwrap();
            tokio::task::yield_now().await;
            rest = &rest[count..];
        }
        if transfer.from == BodyFraming::UntilClose {
            drop(sender);
            return None;
        }
        Some(sender)
    };
    let scratch = ScratchMemory::default();
    let budget = ReplayBudget::of_requests();
    let pump = async {
        let mut pump = BodyPump::new();
        pump.start(transfer.from, transfer.to);
        let (mirror_sender, copy) = oneshot::channel();
        if transfer.keep {
            pump.keep_for_replay(&budget, Some(mirror_sender));
        }
        let mut buffer = None;
        let mut source = BodySource { stream: &mut source, buffer: &mut buffer };
        poll_fn(|cx| pump.poll(cx, &mut source, &mut sink, &scratch)).await?;
        assert_eq!(pump.body_bytes, transfer.length as u64);
        let mut copied = None;
        let mut sinks = vec![receiver];
        drop(sink);
        if transfer.keep && pump.rewind() {
            copied = copy.await.ok();
            let (receiver, mut again) = pair().await;
            poll_fn(|cx| pump.poll(cx, &mut source, &mut again, &scratch)).await?;
            sinks.push(receiver);
        }
        Ok((sinks, copied))
    };
    // The receiver reads after everything has been sent: these bodies fit into the socket buffers.
    let (_sender, sinks) = tokio::join!(send, pump);
    let (sinks, copied) = sinks?;
    let mut arrived = Vec::new();
    for mut sink in sinks {
        let mut all = Vec::new();
        sink.read_to_end(&mut all).await.unwrap();
        arrived.push(received(&all, transfer.to));
    }
    // A mirror gets the bytes that can be sent again.
    assert_eq!(copied.is_some(), arrived.len() > 1);
    arrived.extend(copied.map(|copied| received(&copied, transfer.to)));
    Ok(arrived)
}

fn transfer_cases() -> impl Strategy<Value = TransferCase> {
    // Combinations that occur: a request keeps its framing, a response may have to change it.
    let framings = prop_oneof![
        Just(("length", "length")),
        Just(("chunked", "chunked")),
        Just(("chunked", "until close")),
        Just(("until close", "chunked")),
        Just(("until close", "until close")),
    ];
    let length = prop_oneof![0..3usize, 1..70_000usize, 250_000..400_000usize];
    let pieces = prop::collection::vec(prop_oneof![1..20usize, 100..200_000usize], 1..6);
    (length, framings, 1..50_000usize, pieces, any::<bool>()).prop_map(
        |(length, (from, to), chunk, pieces, keep)| {
            let framing = |name| match name {
                "length" => BodyFraming::Length(length as u64),
                "chunked" => BodyFraming::Chunked,
                _ => BodyFraming::UntilClose,
            };
            // Pieces of a few bytes would make a long body take a long time.
            let pieces =
                if length > 3000 { pieces.iter().map(|size| size * 50).collect() } else { pieces };
            let chunk = if length > 3000 { chunk.max(500) } else { chunk };
            TransferCase { length, from: framing(from), to: framing(to), chunk, pieces, keep }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn body_arrives_unchanged_in_any_framing(transfer in transfer_cases()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let arrived = runtime.block_on(run_transfer(&transfer)).unwrap();
        for body_again in arrived {
            prop_assert!(body_again == body(transfer.length), "other bytes arrived");
        }
    }
}

#[test]
fn body_over_the_limit_is_rejected() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let (mut sender, mut source) = pair().await;
        let (_receiver, mut sink) = pair().await;
        sender.write_all(b"5\r\nhello\r\n").await.unwrap();
        let mut pump = BodyPump::new();
        pump.start(BodyFraming::Chunked, BodyFraming::Chunked);
        pump.set_max_body_bytes(4);
        let mut source = BodySource { stream: &mut source, buffer: &mut None };
        let scratch = ScratchMemory::default();
        poll_fn(|cx| pump.poll(cx, &mut source, &mut sink, &scratch)).await
    });
    assert_eq!(result, Err(BodyError::TooLarge));
}

#[test]
fn truncated_body_is_detected() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (framing, wire) in
        [(BodyFraming::Length(6), "hello"), (BodyFraming::Chunked, "5\r\nhello\r\n")]
    {
        let result = runtime.block_on(async {
            let (mut sender, mut source) = pair().await;
            let (_receiver, mut sink) = pair().await;
            sender.write_all(wire.as_bytes()).await.unwrap();
            drop(sender);
            let mut pump = BodyPump::new();
            pump.start(framing, framing);
            let mut source = BodySource { stream: &mut source, buffer: &mut None };
            let scratch = ScratchMemory::default();
            poll_fn(|cx| pump.poll(cx, &mut source, &mut sink, &scratch)).await
        });
        assert_eq!(result, Err(BodyError::SourceEnded));
    }
}
