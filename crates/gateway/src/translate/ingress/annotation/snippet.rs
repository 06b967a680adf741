//! Directives of nginx in snippets, as equivalent settings.
//!
//! A directive that is not known might restrict requests, so that a snippet is understood as a whole or not at all.

/// The syntax.
mod parse;
/// Directives of nginx's rewrite module.
mod rules;

use super::super::dialect::AnnotationDialect;
use super::backend::BackendAnnotation;
use super::client::ClientAnnotation;
use super::redirect::RedirectAnnotation;
use super::rewrite::{IngressRewrite, RewriteAnnotation};
use super::traffic::TrafficAnnotation;
use super::{AnnotationReader, client, traffic};
use crate::objects::{
    DirectResponse, FieldName, HeaderModifier, HttpHeader, RequestRule, RewriteContinuation,
};
use parse::{SnippetDirective, parse};

/// Largest number of header fields that a snippet changes in one way.
const MAX_FIELDS: usize = 16;
/// Largest text of a response, in bytes.
const MAX_TEXT_BYTES: usize = 4096;
/// Statuses of a `return` whose text is a URL.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
/// The status with which nginx closes the connection.
const NO_RESPONSE: u16 = 444;
/// `default_type` of ingress-nginx.
const CONTENT_TYPE: &str = "text/html";
/// All addresses.
const EVERY_ADDRESS: &str = "0.0.0.0/0,::/0";

/// Changes to header fields of requests and responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct SnippetHeaders {
    pub(in super::super) request: HeaderModifier,
    pub(in super::super) response: HeaderModifier,
}

/// Adds the settings of a snippet.
///
/// # Errors
/// If any directive is not supported; the message names its line.
pub(super) fn add(reader: &mut AnnotationReader, snippet: &str) -> Result<(), String> {
    let directives = parse(snippet)?;
    let mut access = AccessDirectives::default();
    let has_rules = rules::are_needed(&directives);
    let is_rule = |it: &SnippetDirective| rules::is_rule(it) || has_rules && it.name == "return";
    for directive in directives.iter().filter(|it| !is_rule(it)) {
        directive.add(reader, &mut access).map_err(|message| {
            format!("line {}: `{}` {message}", directive.line, directive.name)
        })?;
    }
    let types = directives.iter().filter(|it| it.name == "default_type");
    let content_type = types.flat_map(|it| &it.arguments).next_back();
    if let (Some(response), Some(last)) = (&mut reader.direct_response, content_type) {
        response.content_type.clone_from(last);
    }
    if has_rules {
        reader.request_rules = rules::rules(&directives, content_type.map(String::as_str))?;
    }
    access.add_to(reader)
}

/// Returns why rules have another meaning together with an annotation that rewrites paths, if they have: nginx rewrites a
/// path by both, one after the other.
pub(super) fn contradiction(rules: &[RequestRule], rewrite: &IngressRewrite) -> Option<String> {
    let goes_on = |rule: &RequestRule| {
        rule.rewrite.as_ref().is_some_and(|it| it.then == RewriteContinuation::NextRule)
    };
    let is_contradiction = rewrite.target.is_some() && rules.iter().any(goes_on);
    let message = "configuration-snippet has a `rewrite` without a flag, which is not supported with rewrite-target";
    is_contradiction.then(|| message.to_owned())
}

/// Returns the status of a `return`, and its text or URL.
fn return_arguments(arguments: &[String]) -> Result<(u16, Option<&str>), String> {
    let (code, text) = match arguments {
        [url] if url.contains("://") => ("302", Some(url)),
        [code] => (code.as_str(), None),
        [code, text] => (code.as_str(), Some(text)),
        _ => return Err("must have a status, and perhaps a text or URL".to_owned()),
    };
    let status = code.parse().ok().filter(|it| (200..600).contains(it) && *it != NO_RESPONSE);
    let status: u16 =
        status.ok_or_else(|| format!("must have a status from 200 to 599, has {code}"))?;
    match text {
        Some(text) if text.len() > MAX_TEXT_BYTES => {
            Err(format!("has a text of more than {MAX_TEXT_BYTES} bytes"))
        }
        text => Ok((status, text.map(String::as_str))),
    }
}

impl SnippetDirective {
    fn add(
        &self,
        reader: &mut AnnotationReader,
        access: &mut AccessDirectives,
    ) -> Result<(), String> {
        let nginx = AnnotationDialect::IngressNginx;
        let (request, response) =
            (&mut reader.snippet_headers.request, &mut reader.snippet_headers.response);
        match &*self.name {
            "add_header" => {
                let [name, value] = self.field_arguments()?;
                add_field(&mut response.add, name, value)
            }
            "more_set_headers" => self.fields(|name, value| change_field(response, name, value)),
            "more_clear_headers" | "proxy_hide_header" => {
                self.fields(|name, _| change_field(response, name, ""))
            }
            "more_set_input_headers" => {
                self.fields(|name, value| change_field(request, name, value))
            }
            "more_clear_input_headers" => self.fields(|name, _| change_field(request, name, "")),
            "proxy_set_header" => {
                let [name, value] = self.pair()?;
                if is_set_anyway(&name.to_ascii_lowercase(), value) {
                    return Ok(());
                }
                if name.eq_ignore_ascii_case("host") {
                    return reader.rewrite.add(nginx, RewriteAnnotation::Host, value);
                }
                change_field(request, name, value)
            }
            "allow" => access.allow(self.only()?),
            "deny" => access.deny(self.only()?),
            "return" => self.add_return(reader),
            "default_type" => check_value(self.only()?),
            "client_max_body_size" => {
                traffic::add(&mut reader.traffic, TrafficAnnotation::BodySize, self.only()?)
            }
            "proxy_connect_timeout" => {
                reader.backend.add(nginx, BackendAnnotation::ConnectTimeout, self.only()?)
            }
            "proxy_read_timeout" | "proxy_send_timeout" => {
                reader.backend.add(nginx, BackendAnnotation::IdleTimeout, self.only()?)
            }
            name if has_no_effect(name, &self.arguments) => Ok(()),
            _ => Err("is not supported".to_owned()),
        }
    }

    /// Adds a response of the gateway itself. nginx executes the first `return` alone.
    fn add_return(&self, reader: &mut AnnotationReader) -> Result<(), String> {
        if reader.direct_response.is_some() || reader.redirects.all.is_some() {
            return Ok(());
        }
        let (status, text) = return_arguments(&self.arguments)?;
        match text {
            Some(url) if REDIRECTS.contains(&status) => {
                reader.redirects.add(RedirectAnnotation::Temporal, url)?;
                return reader.redirects.add(RedirectAnnotation::Code, &status.to_string());
            }
            None if REDIRECTS.contains(&status) => return Err("must have a URL".to_owned()),
            Some(_) | None => {}
        }
        let body = text.filter(|it| !it.is_empty()).map(str::to_owned);
        let content_type = CONTENT_TYPE.to_owned();
        reader.direct_response =
            Some(DirectResponse { status, body, body_ref: None, content_type });
        Ok(())
    }

    fn only(&self) -> Result<&str, String> {
        match &*self.arguments {
            [only] => Ok(only),
            other => Err(format!("must have one argument, has {}", other.len())),
        }
    }

    fn pair(&self) -> Result<[&str; 2], String> {
        match &*self.arguments {
            [first, second] => Ok([first, second]),
            other => Err(format!("must have two arguments, has {}", other.len())),
        }
    }

    /// Returns the name and value of `add_header`. Sheave adds fields to responses of every status.
    fn field_arguments(&self) -> Result<[&str; 2], String> {
        match &*self.arguments {
            [name, value] => Ok([name, value]),
            [name, value, always] if always == "always" => Ok([name, value]),
            _ => Err("must have a name and a value".to_owned()),
        }
    }

    /// Calls `change` with each field of a directive of the headers-more module: `Name: value`, or a name alone.
    fn fields(
        &self,
        mut change: impl FnMut(&str, &str) -> Result<(), String>,
    ) -> Result<(), String> {
        if self.arguments.is_empty() {
            return Err("must have a field".to_owned());
        }
        for argument in &self.arguments {
            if argument.starts_with('-') {
                return Err(format!("has the option {argument}, which is not supported"));
            }
            let (name, value) = argument.split_once(':').unwrap_or((argument, ""));
            change(name.trim(), value.trim())?;
        }
        Ok(())
    }
}

/// Addresses of clients, in the order in which nginx checks them: the first that matches decides.
#[derive(Default)]
struct AccessDirectives {
    denied: Vec<String>,
    allowed: Vec<String>,
    /// True if an entry is for all addresses; later ones have no effect.
    is_complete: bool,
    denies_others: bool,
}

impl AccessDirectives {
    fn allow(&mut self, network: &str) -> Result<(), String> {
        match network {
            _ if self.is_complete => {}
            "all" => self.is_complete = true,
            network => self.allowed.push(network.to_owned()),
        }
        Ok(())
    }

    fn deny(&mut self, network: &str) -> Result<(), String> {
        match network {
            _ if self.is_complete => {}
            "all" => (self.is_complete, self.denies_others) = (true, true),
            // A SecurityPolicy denies first.
            _ if !self.allowed.is_empty() => {
                return Err("must be before each `allow`, or be `deny all`".to_owned());
            }
            network => self.denied.push(network.to_owned()),
        }
        Ok(())
    }

    fn add_to(self, reader: &mut AnnotationReader) -> Result<(), String> {
        let access = &mut reader.client_addresses;
        if !self.denied.is_empty() {
            client::add(access, ClientAnnotation::Denied, &self.denied.join(","))?;
        }
        match (self.denies_others, &*self.allowed) {
            // Without `deny all`, all others are allowed too.
            (false, _) => Ok(()),
            (true, []) => client::add(access, ClientAnnotation::Denied, EVERY_ADDRESS),
            (true, allowed) => client::add(access, ClientAnnotation::Allowed, &allowed.join(",")),
        }
    }
}

/// Sets a field, in place of a directive that sets it.
pub(super) fn set_field(edits: &mut HeaderModifier, name: &str, value: &str) -> Result<(), String> {
    edits.set.retain(|field| !field.name.eq_ignore_ascii_case(name));
    add_field(&mut edits.set, name, value)
}

/// Sets a field, or removes it if the value is empty.
fn change_field(edits: &mut HeaderModifier, name: &str, value: &str) -> Result<(), String> {
    if !value.is_empty() {
        return add_field(&mut edits.set, name, value);
    }
    if name.contains('*') {
        return Err(format!("has a wildcard, {name}, which is not supported"));
    }
    edits.remove.push(field_name(name)?);
    check_count(edits.remove.len())
}

fn add_field(fields: &mut Vec<HttpHeader>, name: &str, value: &str) -> Result<(), String> {
    field_name(name)?;
    if value.contains('$') {
        return Err(format!("gives {name} a value with a variable, which is not supported"));
    }
    if !is_value(value) {
        return Err(format!("gives {name} an invalid value"));
    }
    // A later directive of nginx replaces an earlier one, or both are sent. It is a mistake in any case.
    if fields.iter().any(|field| field.name.eq_ignore_ascii_case(name)) {
        return Err(format!("gives {name} a second value"));
    }
    fields.push(HttpHeader { name: name.to_owned(), value: value.to_owned() });
    check_count(fields.len())
}

fn is_value(value: &str) -> bool {
    (1..=4096).contains(&value.len()) && value.chars().all(|it| !it.is_control())
}

/// Checks a type of content.
fn check_value(value: &str) -> Result<(), String> {
    let is_allowed = is_value(value) && value.len() <= 256 && !value.contains('$');
    is_allowed.then_some(()).ok_or_else(|| "must be a type of content".to_owned())
}

fn field_name(name: &str) -> Result<FieldName, String> {
    FieldName::parse(name).map_err(|fault| format!("must have the name of a field: {name} {fault}"))
}

fn check_count(count: usize) -> Result<(), String> {
    let is_allowed = count <= MAX_FIELDS;
    is_allowed.then_some(()).ok_or_else(|| format!("changes more than {MAX_FIELDS} fields"))
}

/// True if requests to endpoints have this field with this value in any case. `name` is in lower case.
fn is_set_anyway(name: &str, value: &str) -> bool {
    let host = ["$host", "$http_host", "$best_http_host"];
    match name {
        "host" | "x-forwarded-host" => host.contains(&value),
        "x-real-ip" => ["$remote_addr", "$the_real_ip"].contains(&value),
        "x-forwarded-for" => {
            ["$proxy_add_x_forwarded_for", "$remote_addr", "$the_real_ip"].contains(&value)
        }
        "x-forwarded-proto" => ["$scheme", "$pass_access_scheme"].contains(&value),
        "x-forwarded-port" => ["$server_port", "$pass_server_port", "$pass_port"].contains(&value),
        "x-request-id" => ["$request_id", "$req_id"].contains(&value),
        "upgrade" => value == "$http_upgrade",
        "connection" => {
            let values = ["", "upgrade", "$connection_upgrade", "$http_connection", "keep-alive"];
            values.contains(&&*value.to_ascii_lowercase())
        }
        // The client's own value, which is forwarded.
        name if name.starts_with("x-forwarded-") => false,
        name => value.strip_prefix("$http_").is_some_and(|it| it == name.replace('-', "_")),
    }
}

/// True for a directive about a mechanism that Sheave does not have, or about behaviour that it always has.
fn has_no_effect(name: &str, arguments: &[String]) -> bool {
    let value = arguments.first().map(String::as_str);
    match name {
        "client_body_buffer_size"
        | "proxy_buffer_size"
        | "proxy_buffering"
        | "proxy_buffers"
        | "proxy_busy_buffers_size"
        | "proxy_max_temp_file_size"
        | "proxy_request_buffering"
        | "proxy_temp_file_write_size"
        | "sendfile"
        | "tcp_nodelay"
        | "tcp_nopush" => true,
        "chunked_transfer_encoding" | "proxy_pass_request_headers" | "proxy_ssl_server_name" => {
            value == Some("on")
        }
        "gzip" | "proxy_cache" | "proxy_redirect" => value == Some("off"),
        "proxy_http_version" => value == Some("1.1"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(snippet: &str) -> Result<AnnotationReader, String> {
        let mut reader = AnnotationReader::default();
        add(&mut reader, snippet).map(|()| reader)
    }

    fn texts(fields: &[HttpHeader]) -> Vec<String> {
        fields.iter().map(|it| format!("{}: {}", it.name, it.value)).collect()
    }

    #[test]
    fn header_fields_are_changed() {
        let reader = read(
            "more_set_headers \"X-Frame-Options: DENY\" 'Server:';
             more_clear_headers X-Powered-By;
             proxy_hide_header X-Internal;
             add_header X-Robots-Tag \"noindex, nofollow\" always;
             proxy_set_header X-Tenant blue;
             proxy_set_header X-Old \"\";
             proxy_set_header Host backend.example;
             proxy_set_header Upgrade $http_upgrade;
             proxy_set_header Authorization $http_authorization;",
        );
        let reader = reader.unwrap();
        let SnippetHeaders { request, response } = &reader.snippet_headers;
        assert_eq!(texts(&response.set), ["X-Frame-Options: DENY"]);
        assert_eq!(texts(&response.add), ["X-Robots-Tag: noindex, nofollow"]);
        let names = |removed: &[FieldName]| removed.iter().map(|it| it.0.clone()).collect();
        let removed: Vec<_> = names(&response.remove);
        assert_eq!(removed, ["Server", "X-Powered-By", "X-Internal"]);
        assert_eq!(texts(&request.set), ["X-Tenant: blue"]);
        let removed: Vec<_> = names(&request.remove);
        assert_eq!(removed, ["X-Old"]);
        assert_eq!(reader.rewrite.host.as_deref(), Some("backend.example"));
    }

    #[test]
    fn addresses_keep_the_order_of_nginx() {
        let lists = |snippet: &str| {
            let access = read(snippet).unwrap().client_addresses;
            let text = |it: &[crate::objects::CidrBlock]| {
                it.iter().map(|it| it.0.to_string()).collect::<Vec<_>>().join(" ")
            };
            (text(&access.allow), text(&access.deny))
        };
        let pair = |allow: &str, deny: &str| (allow.to_owned(), deny.to_owned());
        let office = "deny 10.1.0.0/16; allow 10.0.0.0/8; deny all; allow all;";
        assert_eq!(lists(office), pair("10.0.0.0/8", "10.1.0.0/16"));
        assert_eq!(lists("deny 192.0.2.1; allow 10.0.0.0/8;"), pair("", "192.0.2.1/32"));
        assert_eq!(lists("allow all; deny all;"), pair("", ""));
        assert_eq!(lists("deny all;"), pair("", "0.0.0.0/0 ::/0"));
        assert!(read("allow 10.0.0.0/8; deny 192.0.2.1;").is_err());
        assert!(read("deny unix:;").is_err());
    }

    #[test]
    fn the_first_return_is_the_response() {
        let response = |snippet: &str| {
            let reader = read(snippet).unwrap();
            let DirectResponse { status, body, content_type, .. } = reader.direct_response.unwrap();
            format!("{status} {} {content_type}", body.unwrap_or_default())
        };
        assert_eq!(response("return 404; return 200;"), "404  text/html");
        assert_eq!(response("return 200 'a\\nb'; allow 10.0.0.0/8;"), "200 a\nb text/html");
        let json = "default_type application/json; return 503 '{\"a\": 1}';";
        assert_eq!(response(json), "503 {\"a\": 1} application/json");
        for redirect in ["return https://a.example/;", "return 302 https://a.example/;"] {
            let reader = read(&format!("{redirect} return 403;")).unwrap();
            assert_eq!(reader.redirects.all.unwrap().status_code, 302);
            assert_eq!(reader.direct_response, None);
        }
    }

    #[test]
    fn a_directive_that_is_not_understood_is_an_error_with_its_line() {
        let cases = [
            "rewrite ^/(?=a)(.*)$ /b permanent;",
            "rewrite ^/a++$ /b;",
            "rewrite ^/a$ /b lasting;",
            "if (-f $request_filename) { return 404; }",
            "if ($host = $http_host) { return 404; }",
            "if ($http_x) { deny all; }",
            "if ($http_x) { add_header X y; }",
            "if ($uri ~ ^/a) { rewrite ^/a /b; return 404; }",
            "set $host a;",
            "return 301 $unknown;",
            "return 301 https://a.example/$1;",
            "return 301 $http_x;",
            "proxy_set_header X-User $remote_user;",
            "more_set_headers -s 404 \"X: y\";",
            "more_set_headers \"X: $host\";",
            "more_clear_headers X-*;",
            "add_header X y; add_header X z;",
            "add_header X \"a\nb\";",
            "return;",
            "return 444;",
            "return 600;",
            "return 301;",
            "return 200 $host;",
            "default_type $type;",
            "client_max_body_size lots;",
            "gzip on;",
            "auth_basic on;",
        ];
        for snippet in cases {
            let message = read(&format!("proxy_buffering off;\n{snippet}")).err().unwrap();
            assert!(message.starts_with("line 2: `"), "{snippet}: {message}");
        }
    }
}
