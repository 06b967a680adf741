//! Requests of golden files.

use gateway::matching::PlainRequest;

/// Parses `HOST PATH[?QUERY] [METHOD] [NAME:VALUE]...`.
pub(crate) fn parse_request(text: &str) -> Option<PlainRequest> {
    let mut words = text.split(' ').map(str::to_owned);
    let (host, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut request = PlainRequest { method: "GET".to_owned(), host, path, query, headers: vec![] };
    for word in words {
        match word.split_once(':') {
            Some((name, value)) => request.headers.push((name.to_owned(), value.to_owned())),
            None => request.method = word,
        }
    }
    Some(request)
}
