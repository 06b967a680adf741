//! Properties of the parser of ClientHellos, which chooses the certificate before TLS begins.

use tls::ClientHelloParse;

/// A prefix gives the same result as all bytes, or none yet; and a hello in one record is the same without it, as QUIC
/// carries it.
pub fn prefix(bytes: &[u8], len: usize) {
    let whole = ClientHelloParse::parse(bytes);
    let early = ClientHelloParse::parse(&bytes[..len]);
    match (&early, &whole) {
        (ClientHelloParse::Incomplete, _) => {}
        // What follows the hello is judged by TLS itself.
        (ClientHelloParse::Complete(_), ClientHelloParse::Invalid(..)) => {}
        _ => assert_eq!(early, whole, "{len} bytes of {}", bytes.len()),
    }
    if let (Some([22, 3, 1, high, low]), ClientHelloParse::Complete(_)) =
        (bytes.first_chunk(), &whole)
        && usize::from(u16::from_be_bytes([*high, *low])) == bytes.len() - 5
    {
        assert_eq!(ClientHelloParse::parse_message(&bytes[5..]), whole);
    }
    let _any = ClientHelloParse::parse_message(bytes);
}
