//! Addresses of shards as people write them: `host`, `host:port`, `[::1]:7420`, a bare IPv6 address.

use crate::Error;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The gRPC port when an address names none.
pub const DEFAULT_PORT: u16 = 7420;

/// A TCP address: a host name, an IPv4 or an IPv6 address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Host name or IP address; IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, [`DEFAULT_PORT`] when none was written.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What an HTTP/2 connection is opened to.
    pub fn uri(&self) -> String {
        format!("http://{self}")
    }
}

/// The canonical form: always with a port, IPv6 in brackets.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text.trim())
            .map_err(|reason| Error::Address { address: text.trim().to_owned(), reason: reason.to_owned() })
    }
}

fn parse(text: &str) -> Result<Address, &'static str> {
    if text.is_empty() {
        return Err("is empty; write host:port");
    }
    if text.starts_with("unix:") || text.starts_with('/') {
        return Err("Unix sockets are not supported; write host:port");
    }
    if text.contains("://") {
        return Err("write host:port, not a URL");
    }
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Ok(Address { host: ip.to_string(), port: DEFAULT_PORT });
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, tail) = rest.split_once(']').ok_or("the bracket is not closed; write [address]:port")?;
        let ip: Ipv6Addr = ip.parse().map_err(|_| "no IPv6 address inside the brackets")?;
        let port = match tail.strip_prefix(':') {
            Some(port) => parse_port(port)?,
            None if tail.is_empty() => DEFAULT_PORT,
            None => return Err("write [address]:port"),
        };
        return Ok(Address { host: ip.to_string(), port });
    }
    let (host, port) = match text.split_once(':') {
        None => (text, DEFAULT_PORT),
        Some((_, port)) if port.contains(':') => return Err("not an IPv6 address; write host:port"),
        Some((host, port)) => (host, parse_port(port)?),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || !host.chars().all(plain) {
        return Err("no host name or IP address before the port");
    }
    Ok(Address { host: host.to_ascii_lowercase(), port })
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    // u16::from_str also takes a sign.
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("the port is not a number");
    }
    match text.parse() {
        Ok(0) | Err(_) => Err("the port must be 1 to 65535"),
        Ok(port) => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted() {
        for (text, canonical) in [
            ("127.0.0.1:7420", "127.0.0.1:7420"),
            ("127.0.0.1", "127.0.0.1:7420"),
            ("[::1]:9000", "[::1]:9000"),
            ("[::1]", "[::1]:7420"),
            ("::1", "[::1]:7420"),
            ("2001:db8::7", "[2001:db8::7]:7420"),
            ("Shard-0.kv.svc", "shard-0.kv.svc:7420"),
            ("shard_1:65535", "shard_1:65535"),
            (" host:1 ", "host:1"),
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn refused_in_one_line() {
        for text in [
            "",
            "  ",
            "unix:/run/kv.sock",
            "/run/kv.sock",
            "http://host:7420",
            "host:",
            ":7420",
            "host:0",
            "host:65536",
            "host:+1",
            "host:seven",
            "[::1",
            "[::1]x",
            "[host]:1",
            "a:b:c",
            "1::2::3",
            "fe80::1%eth0",
            "ho st:1",
            "a,b",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert_eq!(error.kind(), crate::Kind::Usage, "{text}");
            let line = error.to_string();
            assert!(line.contains(text.trim()) && !line.contains('\n'), "{line}");
        }
        let unix = "unix:/run/kv.sock".parse::<Address>().expect_err("refused").to_string();
        assert_eq!(
            unix,
            "shard address \"unix:/run/kv.sock\": Unix sockets are not supported; write host:port"
        );
    }
}
