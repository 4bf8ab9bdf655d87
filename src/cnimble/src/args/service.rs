//! The options that long-running subcommands share.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    Off,
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Off => f.write_str("off"),
            Listen::Unix(path) => write!(f, "{}", path.display()),
            Listen::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        if text.starts_with('/') {
            return Ok(Listen::Unix(text.into()));
        }
        let address: SocketAddr =
            text.parse().map_err(|_| "expected a path (/run/…), ADDRESS:PORT or off".to_owned())?;
        if address.ip().is_loopback() {
            Ok(Listen::Tcp(address))
        } else {
            // Any process that reaches the address can read the pages.
            Err(format!("{} is no loopback address", address.ip()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_and_loopback_ports() {
        assert_eq!("/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        assert!(matches!("127.0.0.1:9100".parse(), Ok(Listen::Tcp(_))));
        assert!(matches!("[::1]:9100".parse(), Ok(Listen::Tcp(_))));
        for bad in ["", "9100", ":9100", "0.0.0.0:9100", "192.0.2.1:9100", "localhost:9100", "run/x"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }
}
