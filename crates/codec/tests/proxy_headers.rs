//! Tests of the PROXY protocol: each line of the table `tests/data/strict-proxy-headers.tsv`, also truncated at every
//! length; and a round trip.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod table;

use std::net::SocketAddr;

use codec::proxy_protocol::{
    ProxiedAddresses, ProxyHeader, ProxyHeaderError, parse, write_v1, write_v2,
};
use table::{rows, unescape};

#[test]
fn proxy_headers_are_parsed_per_table() {
    for row in rows::<4>("strict-proxy-headers.tsv") {
        let bytes = unescape(&row[2]);
        let more = [&bytes[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
        let taken = match row[0].as_str() {
            "bad" => {
                assert!(parse(&bytes).is_err(), "{row:?}");
                continue;
            }
            "wait" => {
                assert_eq!(parse(&bytes), Ok(None), "{row:?}");
                continue;
            }
            "local" => ProxyHeader::Local,
            client => proxied(client, &row[1]),
        };
        assert_eq!(parse(&more), Ok(Some((taken, bytes.len()))), "{row:?}");
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), Ok(None), "{length} bytes of {row:?}");
        }
    }
}

#[test]
fn non_proxy_header_is_rejected_at_its_first_byte() {
    for byte in 0..=u8::MAX {
        let expected =
            if b"P\r".contains(&byte) { Ok(None) } else { Err(ProxyHeaderError::Missing) };
        assert_eq!(parse(&[byte]), expected, "{byte}");
    }
}

#[test]
fn proxy_header_round_trips() {
    for write in [write_v1, write_v2] {
        for (client, destination, seen) in [
            ("192.0.2.1:1", "198.51.100.2:443", proxied("192.0.2.1:1", "198.51.100.2:443")),
            ("[2001::7]:65535", "[::1]:0", proxied("[2001::7]:65535", "[::1]:0")),
            ("[::ffff:192.0.2.1]:1", "[::ffff:9.9.9.9]:2", proxied("192.0.2.1:1", "9.9.9.9:2")),
            ("192.0.2.1:1", "[2001::8]:2", proxied("[::ffff:192.0.2.1]:1", "[2001::8]:2")),
            (LONGEST, LONGEST, proxied(LONGEST, LONGEST)),
        ] {
            let mut out = Vec::new();
            write(&proxied(client, destination), &mut out);
            assert_eq!(parse(&out), Ok(Some((seen, out.len()))), "{}", out.escape_ascii());
        }
        let mut out = Vec::new();
        write(&ProxyHeader::Local, &mut out);
        assert_eq!(parse(&out), Ok(Some((ProxyHeader::Local, out.len()))));
    }
}

const LONGEST: &str = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";

fn proxied(client: &str, destination: &str) -> ProxyHeader {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    ProxyHeader::Proxied(ProxiedAddresses {
        client: address(client),
        destination: address(destination),
    })
}
