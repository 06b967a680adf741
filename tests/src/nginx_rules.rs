//! A table of snippets of ingress-nginx, requests, and the answers of nginx to them.

/// A snippet, and its requests.
pub struct SnippetCase {
    pub snippet: &'static str,
    pub requests: Vec<SnippetRequest>,
}

/// A request, and the answer to it.
pub struct SnippetRequest {
    pub method: &'static str,
    pub target: &'static str,
    /// The host; `None`: that of the case.
    pub host: Option<&'static str>,
    pub fields: Vec<(&'static str, &'static str)>,
    /// The status, and the path that the endpoint gets or the value of `Location`, with `HOST` for the host.
    answer: &'static str,
}

impl SnippetRequest {
    /// Returns the answer to a request for a host.
    pub fn answer(&self, host: &str) -> String {
        self.answer.replace("HOST", host)
    }

    fn parse(line: &'static str) -> Self {
        let (request, answer) = line.split_once(" -> ").expect("a request has an answer");
        let mut words = request.split(' ');
        let mut word = || words.next().expect("a request has a method and a target");
        let (method, target) = (word(), word());
        let fields = words.map(|word| word.split_once(':').expect("a field has a value"));
        let (hosts, fields): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| *name == "HOST");
        let host = hosts.first().map(|(_, host)| *host);
        Self { method, target, host, fields, answer }
    }
}

/// Returns the cases of the table, each with the host of its number.
pub fn snippet_cases() -> Vec<SnippetCase> {
    let mut cases: Vec<SnippetCase> = Vec::new();
    for line in include_str!("nginx_rules.txt").lines() {
        match (line.strip_prefix("  "), cases.last_mut()) {
            _ if line.is_empty() || line.starts_with('#') => {}
            (Some(request), Some(case)) => case.requests.push(SnippetRequest::parse(request)),
            (Some(_), None) | (None, _) => {
                cases.push(SnippetCase { snippet: line, requests: Vec::new() });
            }
        }
    }
    cases
}
