//! nginx, configured as ingress-nginx would.
//!
//! Its template runs Lua; here the same is said by nginx alone: endpoints are servers of upstreams, and the redirect to
//! HTTPS is a line of the case.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, ensure};
use tests::certificates::IssuedCertificate;
use tests::configuration::TempDirectory;
use tests::{Result, eventually};
use tokio::process::Child;

use super::endpoints::ServiceEndpoints;
use super::table::{CaseGroup, ConformanceCase, NginxLocation};
use crate::tools;

/// Settings of ingress-nginx for all servers.
const SETTINGS: &str = r#"
    access_log off;
    default_type text/html;
    server_tokens off;
    server_names_hash_bucket_size 256;
    variables_hash_bucket_size 256;
    client_max_body_size 1m;
    client_body_buffer_size 8k;
    port_in_redirect off;
    underscores_in_headers off;
    ignore_invalid_headers on;
    limit_req_status 503;
    limit_conn_status 503;
    proxy_connect_timeout 5s;
    proxy_read_timeout 60s;
    proxy_send_timeout 60s;
    proxy_buffering off;
    proxy_request_buffering on;
    proxy_http_version 1.1;
    proxy_redirect off;
    proxy_cookie_domain off;
    proxy_cookie_path off;
    proxy_next_upstream error timeout;
    proxy_next_upstream_timeout 0;
    proxy_next_upstream_tries 3;
    proxy_ssl_session_reuse on;
    map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
"#;

/// Lines of each location.
const LOCATION: &str = r#"
            set $best_http_host $http_host;
            set $pass_access_scheme $scheme;
            set $host_for_endpoint $http_host;
            set $name_of_service "";
            proxy_set_header Host $host_for_endpoint;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Request-ID $request_id;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $best_http_host;
            proxy_set_header X-Forwarded-Port $server_port;
            proxy_set_header X-Forwarded-Proto $pass_access_scheme;
            proxy_set_header X-Forwarded-Scheme $pass_access_scheme;
            proxy_set_header X-Scheme $pass_access_scheme;
            proxy_set_header X-Original-Forwarded-For $http_x_forwarded_for;
            proxy_set_header Proxy "";
"#;

/// A server for all cases of a group; it is killed when dropped.
pub(super) struct NginxServer {
    pub(super) http: SocketAddr,
    pub(super) https: SocketAddr,
    _folder: TempDirectory,
    _child: Child,
}

impl NginxServer {
    pub(super) async fn start(
        group: &CaseGroup,
        endpoints: &ServiceEndpoints,
        identity: &IssuedCertificate,
        endpoint_authority: &str,
    ) -> Result<Self> {
        let folder = TempDirectory::new()?;
        let path = folder.path();
        // The server takes over sockets that listen already, as from an older process of its own.
        let sockets = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let mut inherited = Vec::new();
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            inherited.push(rustix::io::dup(socket)?);
        }
        let descriptors: String =
            inherited.iter().map(|it| format!("{};", it.as_raw_fd())).collect();
        let (http, https) = (sockets[0].local_addr()?, sockets[1].local_addr()?);
        fs::write(path.join("chain.pem"), &identity.certificate_pem)?;
        fs::write(path.join("key.pem"), &identity.key_pem)?;
        fs::write(path.join("endpoint-ca.pem"), endpoint_authority)?;
        for case in &group.cases {
            for (name, text) in &case.nginx.files {
                fs::write(path.join(format!("{}-{name}", case.name)), text)?;
            }
        }
        let listen = format!(
            "listen {http};\n        listen {https} ssl;\n        ssl_certificate {0}/chain.pem;\n        \
             ssl_certificate_key {0}/key.pem;\n",
            path.display()
        );
        let text = configuration(group, endpoints, &listen, path)?;
        let file = path.join("nginx.conf");
        fs::write(&file, text.replace("FOLDER", &path.display().to_string()))?;
        let mut command = tools::program("nginx")?;
        command.args(["-e", "stderr", "-c"]).arg(&file).arg("-p").arg(path);
        let mut child = command.env("NGINX", descriptors).spawn()?;
        let started = async || {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "nginx ended: {ended:?}");
            Ok(path.join("nginx.pid").exists())
        };
        let started = eventually("nginx", started, |started| *started).await;
        started.with_context(|| format!("nginx with the cases of {}", group.name))?;
        Ok(Self { http, https, _folder: folder, _child: child })
    }
}

fn configuration(
    group: &CaseGroup,
    endpoints: &ServiceEndpoints,
    listen: &str,
    folder: &Path,
) -> Result<String> {
    let mut text = String::new();
    for name in ["ndk_http", "ngx_http_set_misc", "ngx_http_headers_more_filter"] {
        let module = tools::path(&format!("nginx-modules/{name}_module.so"))?;
        writeln!(text, "load_module {};", module.display())?;
    }
    // One process, which a test can end.
    text += "daemon off;\nmaster_process off;\nuser root;\npid FOLDER/nginx.pid;\nerror_log FOLDER/error.log info;\n";
    text += "events { worker_connections 1000; }\nhttp {";
    text += SETTINGS;
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "    {name}_temp_path {}/{name};", folder.display())?;
    }
    let listen_default = listen.replacen(';', " default_server;", 1);
    let listen_default = listen_default.replacen(" ssl;", " ssl default_server;", 1);
    writeln!(text, "    server {{\n        {listen_default}        server_name _;")?;
    text += "        location / { return 404; }\n    }\n";
    for case in group.cases.iter().filter(|case| case.without_nginx.is_none()) {
        add_case(&mut text, case, endpoints, listen)?;
    }
    text += "}\n";
    Ok(text)
}

fn add_case(
    text: &mut String,
    case: &ConformanceCase,
    endpoints: &ServiceEndpoints,
    listen: &str,
) -> Result {
    writeln!(text, "\n    # {}", case.name)?;
    for (service, kinds) in &case.services {
        if kinds.is_empty() {
            continue;
        }
        writeln!(text, "    upstream {}-{service} {{", case.name)?;
        for address in endpoints.addresses(&format!("{}-{service}", case.name)) {
            // ingress-nginx does not eject endpoints.
            writeln!(text, "        server {address} max_fails=0;")?;
        }
        text.push_str("    }\n");
    }
    let nginx = &case.nginx;
    text.push_str(&nginx.http);
    let mut locations = nginx.locations.clone();
    if locations.is_empty() {
        let (matches, pass) = (vec!["/".to_owned()], "http://app".to_owned());
        locations.push(NginxLocation { matches, lines: nginx.lines.clone(), pass });
    }
    let names = [vec![case.host()], nginx.names.clone()].concat().join(" ");
    add_server(text, case, listen, (&names, &nginx.server), &locations)?;
    for server in &nginx.servers {
        add_server(text, case, listen, (&server.name, &server.server), &server.locations)?;
    }
    Ok(())
}

fn add_server(
    text: &mut String,
    case: &ConformanceCase,
    listen: &str,
    (names, lines): (&str, &str),
    locations: &[NginxLocation],
) -> Result {
    writeln!(text, "    server {{\n        {listen}        server_name {names};\n{lines}")?;
    for location in locations {
        for matched in &location.matches {
            writeln!(text, "        location {matched} {{{LOCATION}{}", location.lines)?;
            if let Some((scheme, service)) = location.pass.split_once("://") {
                writeln!(text, "            proxy_pass {scheme}://{}-{service};", case.name)?;
            }
            text.push_str("        }\n");
        }
    }
    let has_root = locations.iter().any(|location| location.matches.iter().any(|it| it == "/"));
    if !has_root {
        text.push_str("        location / { return 404; }\n");
    }
    text.push_str("    }\n");
    Ok(())
}
