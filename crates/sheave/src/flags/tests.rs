//! Tests of command-line parsing.

use clap::CommandFactory;

use super::*;

/// Parses flags of `sheave serve`, or returns the error message up to the hint at its end.
fn serve(arguments: &str) -> Result<ServeFlags, String> {
    let words = ["sheave", "serve"].into_iter().chain(arguments.split_whitespace());
    let line = CommandLine::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        text.split("\n\n").next().unwrap_or_default().to_owned()
    })?;
    let CliCommand::Serve(serve) = line.command else { panic!("not serve") };
    match serve.conflict() {
        Some(conflict) => Err(conflict.to_owned()),
        None => Ok(*serve),
    }
}

fn refused(arguments: &str, part: &str) {
    let message = serve(arguments).expect_err(arguments);
    assert!(message.contains(part), "{arguments}: {message}");
}

fn listens(url: &str) -> Result<String, String> {
    url.parse::<ListenUrl>().map(|url| format!("{:?} {}", url.0.protocol, url.0.address))
}

#[test]
fn command_line_is_well_formed() {
    CommandLine::command().debug_assert();
}

#[test]
fn flag_defaults_match_the_help() {
    let flags = serve("--config x").unwrap();
    assert_eq!(flags.admin, AdminAddress::At("127.0.0.1:9900".parse().unwrap()));
    assert_eq!(flags.access_log, LoggedShare::Nothing);
    assert_eq!(flags.drain_timeout, Duration::from_secs(30));
    assert_eq!(flags.log_format, LogFormat::Text);
    assert_eq!(flags.workers, None);
}

#[test]
fn shorthand_flags_are_parsed() {
    let flags = serve(
        "--listen http://:8080 --listen http://127.0.0.1:0 --to 10.0.0.1:80,[::1]:81 --to app.local:82 \
         --max-in-flight 4 --queue 0 --queue-timeout 1m30s --access-log 0.5 --admin off --workers 2",
    )
    .unwrap();
    assert_eq!(flags.shorthand.listen.len(), 2);
    assert_eq!(
        flags.shorthand.to,
        [
            ToAddress::Address("10.0.0.1:80".parse().unwrap()),
            ToAddress::Address("[::1]:81".parse().unwrap()),
            ToAddress::Name("app.local".to_owned(), 82),
        ]
    );
    assert_eq!(flags.shorthand.max_in_flight, Some(MaxInFlight::Number(4)));
    assert_eq!(flags.shorthand.queue, Some(0));
    assert_eq!(flags.shorthand.queue_timeout, Some(Duration::from_secs(90)));
    assert_eq!(flags.access_log, LoggedShare::Fraction(0.5));
    assert_eq!(flags.admin, AdminAddress::Off);
    assert_eq!(flags.workers, NonZeroUsize::new(2));
}

#[test]
fn invalid_flags_give_an_actionable_error() {
    refused("", "nothing to serve: name files with --config");
    let to = "--to 127.0.0.1:1";
    let without = format!("--listen https://:443 {to} --cert a --cert b --key c");
    refused(&without, "give a --key for each --cert");
    refused(&format!("--listen http://:80 {to} --cert a --key b"), "add --listen https://");
    refused(&format!("--listen http://:80 {to} --no-http3"), "--no-http3 is for https");
    refused("--listen http://:80", "--listen needs endpoints to send requests to: add --to");
    refused("--listen http://:80 --config x", "--listen needs endpoints");
    refused("--to 127.0.0.1:1", "add --listen http://127.0.0.1:8080");
    refused("--config x --queue 3", "add --listen and --to, or write a BackendPolicy");
    refused("--config x --max-in-flight 0", "write a number from 1 on");
    refused("--config x --workers 0", "write a number from 1 to 1024");
    refused("--config x --workers 9999", "write a number from 1 to 1024");
    refused("--config x --queue-timeout 5", "write a duration such as 5s");
    refused("--config x --queue-timeout 0s", "write a duration above 0");
    refused("--config x --access-log 0", "write `off`, `on`, or a share");
    refused("--config x --access-log 1.5", "write `off`, `on`, or a share");
    refused("--config x --admin localhost:80", "as 127.0.0.1:9900, or `off`");
    refused("--config x --to http://10.0.0.1:80", "write ADDRESS:PORT without a protocol");
    refused("--config x --to 10.0.0.1", "write the port too: 10.0.0.1:8080");
    refused("--config x --to 10.0.0.1:0", "no endpoint serves port 0");
    refused("--config x --to :80", "write ADDRESS:PORT or NAME:PORT");
    let replicas = "--config x --replicas 10.0.0.1:80,10.0.0.2:80";
    refused(replicas, "--replicas needs the address of this replica: add --replica");
    refused(&format!("{replicas} --replica 10.0.0.3:80"), "--replica must be one of --replicas");
    refused("--config x --replica 10.0.0.1:80", "--replica must be one of --replicas");
    refused("--config x --replicas here:80", "write an IP address and a port, as 10.0.0.7:8080");
    refused("--config x --replicas 10.0.0.1", "write the port too: 10.0.0.1:8080");
    refused("--confg x", "unexpected argument '--confg'");
}

#[test]
fn flags_of_transparent_mode_are_checked() {
    let flags = serve("--kubernetes --transparent --node-name n1 --transparent-ports 15001-15002");
    let flags = flags.unwrap().transparent;
    assert_eq!(flags.node_name(), "n1");
    assert_eq!(flags.transparent_ports.iter().collect::<Vec<_>>(), [15001, 15002]);
    let default = serve("--kubernetes --transparent").unwrap().transparent.transparent_ports;
    assert_eq!(default.to_string(), "15100-15109");
    let line = "sheave probe ready --ready-file x".split(' ');
    let CliCommand::Probe(probe) = CommandLine::try_parse_from(line).unwrap().command else {
        panic!("not probe")
    };
    assert_eq!(probe.question, ProbeQuestion::Ready);
    refused("--transparent --config x", "--kubernetes");
    refused("--kubernetes --node-name n1", "--transparent");
    assert!(serve("--kubernetes --load-balancer --node-name n1").is_ok());
    refused("--kubernetes --default-load-balancer", "--load-balancer");
    refused("--config x --load-balancer", "--kubernetes");
    let both = r#"--kubernetes --load-balancer --service-template {"spec":{"selector":{"a":"b"}}}"#;
    refused(both, "cannot be used with");
    let transparent = "--kubernetes --transparent";
    for ports in ["0-5", "5", "9-5", "1-2000", "a-b", "15001-"] {
        let flags = format!("{transparent} --transparent-ports {ports}");
        match ports {
            "5" => assert_eq!(serve(&flags).unwrap().transparent.transparent_ports.last, 5),
            _ => refused(&flags, "write the first and the last port"),
        }
    }
    refused(&format!("{transparent} --transparent-addresses node"), "invalid");
}

#[test]
fn listen_urls_are_parsed_or_give_an_actionable_error() {
    for (url, expected) in [
        ("http://127.0.0.1:8080", Ok("Http 127.0.0.1:8080")),
        ("http://127.0.0.1:8080/", Ok("Http 127.0.0.1:8080")),
        ("http://:8080", Ok("Http [::]:8080")),
        ("http://[::1]:0", Ok("Http [::1]:0")),
        ("tcp://:5432", Ok("Tcp [::]:5432")),
        ("udp://:53", Ok("Udp [::]:53")),
        ("127.0.0.1:8080", Err("write the protocol too: http://127.0.0.1:8080")),
        ("https://:443", Ok("Https [::]:443")),
        ("ftp://:21", Err("unknown protocol ftp: use http://, https://, tcp:// or udp://")),
        ("http://127.0.0.1", Err("write the port too: 127.0.0.1:8080")),
        ("http://::1:80", Err("write an IPv6 address in brackets, as [::1]:8080")),
        ("http://:80000", Err("`80000` is not a port: write a number up to 65535")),
        (
            "http://localhost:80",
            Err("localhost is not an IP address: write http://127.0.0.1:80 or http://:80"),
        ),
    ] {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(listens(url), expected, "{url}");
    }
}

#[test]
fn https_enables_http3_unless_disabled() {
    let policies = |flags: &str| {
        let objects = serve(flags).unwrap().shorthand.objects().unwrap();
        let of_clients =
            |it: &&gateway::ApiObject| matches!(it, gateway::ApiObject::ClientPolicy(_));
        objects.iter().filter(of_clients).count()
    };
    let listen =
        "--to 127.0.0.1:1 --listen https://:443 --listen https://:8443 --listen http://:80";
    assert_eq!(policies(listen), 2);
    assert_eq!(policies(&format!("{listen} --no-http3")), 0);
    assert_eq!(policies(&format!("{listen} --listen udp://:8443")), 1);
}

#[test]
fn endpoint_names_are_resolved_and_addresses_deduplicated() {
    let flags = serve("--listen http://:0 --to localhost:8000,127.0.0.1:8000").unwrap();
    let objects = format!("{:?}", flags.shorthand.objects().unwrap());
    assert_eq!(objects.matches("\"127.0.0.1\"").count(), 1);
}
