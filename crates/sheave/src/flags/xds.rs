//! Flags of the server for gRPC clients that balance each call themselves (xDS), and of its helper.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::values::AdminAddress;

const XDS: &str = "gRPC clients without a proxy (xDS)";

/// Flags of the server.
#[derive(Clone, Debug, Args)]
pub(crate) struct XdsFlags {
    /// Address of the xDS server (gRPC), or `off`; port 0 takes any free port.
    ///
    /// gRPC clients that dial xds:///SERVICE.NAMESPACE:PORT get routes and endpoints from it and balance each call
    /// themselves, without a proxy. Needs --xds-certs, unless the address is a loopback address.
    #[arg(long, value_name = "ADDR", default_value = "off", help_heading = XDS)]
    pub(crate) xds: AdminAddress,

    /// Folder with tls.crt, tls.key and ca.crt of the xDS server; a mounted Secret is one.
    ///
    /// Clients verify the certificate, and need one of an authority in ca.crt themselves. The files are watched; a
    /// renewal interrupts nothing.
    #[arg(long, value_name = "FOLDER", help_heading = XDS)]
    pub(crate) xds_certs: Option<PathBuf>,
}

impl XdsFlags {
    /// Returns the error of an invalid combination: one sentence that names the remedy.
    pub(super) fn conflict(&self) -> Option<&'static str> {
        match (self.address(), &self.xds_certs) {
            (None, Some(_)) => Some("--xds-certs is for the xDS server: add --xds"),
            (Some(address), None) if !address.ip().is_loopback() => Some(
                "--xds needs --xds-certs, unless its address is a loopback address: clients learn the \
                 addresses of all Services from it",
            ),
            (Some(_) | None, _) => None,
        }
    }

    /// Returns the address; `None` if the server is off.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self.xds {
            AdminAddress::Off => None,
            AdminAddress::At(address) => Some(address),
        }
    }
}

/// Helpers for clients of the xDS server.
#[derive(Debug, Subcommand)]
pub(crate) enum XdsCommand {
    /// Print the bootstrap file of gRPC clients or of an Envoy.
    ///
    /// A gRPC client reads it from the path in its environment variable GRPC_XDS_BOOTSTRAP, or has its text in
    /// GRPC_XDS_BOOTSTRAP_CONFIG. For an Envoy, it is the file of `envoy --config-path`.
    Bootstrap(BootstrapFlags),
}

/// A client of the xDS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum XdsClient {
    /// gRPC clients, which balance their own calls.
    Grpc,
    /// An Envoy, which forwards the HTTP requests of others.
    Envoy,
}

/// Flags of `sheave xds bootstrap`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave xds bootstrap --server 127.0.0.1:9905 > bootstrap.json
  sheave xds bootstrap --server sheave.sheave.svc:9905 --certs /var/run/sheave-xds --zone eu-1a
  sheave xds bootstrap --server sheave.sheave.svc:9905 --certs /var/run/sheave-xds --serve shop/web:80
  sheave xds bootstrap --for envoy --server 127.0.0.1:9905 --listen 127.0.0.1:10000 > envoy.json

Exit code: 0; 1 if the flags do not fit together.")]
pub(crate) struct BootstrapFlags {
    /// Target of the xDS server, as NAME:PORT.
    #[arg(long, value_name = "TARGET")]
    pub(crate) server: String,

    /// Folder with tls.crt, tls.key and ca.crt of the client, on its machine [default: plaintext].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) certs: Option<PathBuf>,

    /// Folder with tls.crt, tls.key and ca.crt for TLS between clients and servers [default: that of --certs].
    ///
    /// Clients with xDS credentials in their code use it with servers whose Service has a BackendTLSPolicy.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) workload_certs: Option<PathBuf>,

    /// Port of the Service whose gRPC servers use the file, as NAMESPACE/SERVICE:PORT [default: clients alone].
    ///
    /// Servers with xDS in their code get their TLS and the clients that they accept from Sheave.
    #[arg(long, value_name = "PORT", value_parser = service_port)]
    pub(crate) serve: Option<String>,

    /// The client.
    #[arg(long = "for", value_name = "CLIENT", value_enum, default_value_t = XdsClient::Grpc)]
    pub(crate) client: XdsClient,

    /// Address of the Envoy's listener [default: 127.0.0.1:10000].
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// Routes of the Envoy's listener [default: services:80].
    ///
    /// `services:PORT` routes requests by their Host to all Services with that port; `NAMESPACE/SERVICE:PORT` routes all
    /// requests as those of one Service.
    #[arg(long, value_name = "NAME", value_parser = routes_name)]
    pub(crate) routes: Option<String>,

    /// Name of the client in logs of Sheave [default: grpc, or envoy].
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// Zone of the client: endpoints in it are used first if the Service prefers that.
    #[arg(long, value_name = "NAME")]
    pub(crate) zone: Option<String>,
}

/// Parses the name of a RouteConfiguration.
fn routes_name(text: &str) -> Result<String, String> {
    let port = text.strip_prefix("services:").is_some_and(is_port_number);
    match port || is_service_port(text) {
        true => Ok(text.to_owned()),
        false => Err("must be services:PORT or NAMESPACE/SERVICE:PORT".to_owned()),
    }
}

/// Parses a port of a Service.
fn service_port(text: &str) -> Result<String, String> {
    match is_service_port(text) {
        true => Ok(text.to_owned()),
        false => Err("must be NAMESPACE/SERVICE:PORT".to_owned()),
    }
}

fn is_service_port(text: &str) -> bool {
    let Some((service, port)) = text.rsplit_once(':') else { return false };
    let is_name =
        |text: &str| !text.is_empty() && !text.contains(|it: char| !is_name_character(it));
    let names = service.split_once('/');
    names.is_some_and(|(namespace, name)| is_name(namespace) && is_name(name))
        && is_port_number(port)
}

/// True for characters of Kubernetes' names.
fn is_name_character(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit() || matches!(character, '-' | '.')
}

fn is_port_number(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}
