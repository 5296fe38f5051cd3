//! Addresses as people write them: `127.0.0.1:7420`, `[::1]:7420`, `host.name:7420`. Names are resolved when a port is
//! opened or connected to.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The gRPC port of a shard whose address names none.
pub const DEFAULT_PORT: u16 = 7420;

const NO_HOST: &str = "the host is missing";

/// A TCP address: a host name, an IPv4 or an IPv6 address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// 127.0.0.1.
    pub fn loopback(port: u16) -> Self {
        Self { host: "127.0.0.1".into(), port }
    }

    /// Of a shard to connect to: [`DEFAULT_PORT`] when no port is written. The error is the reason alone.
    pub fn of_shard(text: &str) -> Result<Self, &'static str> {
        let (host, port) = split(text)?;
        let port = match port.map(number) {
            None => DEFAULT_PORT,
            Some(Some(port)) if port > 0 => port,
            Some(_) => return Err("the port is not a number from 1 to 65535"),
        };
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }

    /// Host name or IP address; IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// In an address to listen on, 0 asks the system for a free one.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// An address to listen on: the port must be written, nothing is guessed.
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        to_listen_on(text).map_err(|why| format!("{text:?} is not an address: {why}"))
    }
}

fn to_listen_on(text: &str) -> Result<Address, &'static str> {
    let (host, port) = split(text).map_err(|why| match why {
        NO_HOST => "the host is missing; 0.0.0.0 or [::] listens everywhere",
        why => why,
    })?;
    let port = port.ok_or("the port is missing, as in 127.0.0.1:7420 or [::1]:7420")?;
    let port = number(port).ok_or("the port is not a number up to 65535")?;
    Ok(Address { host: host.to_owned(), port })
}

/// Host without brackets, and what stands in the place of a port.
fn split(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    if text.starts_with("unix:") || text.starts_with('/') {
        return Err("unix sockets are not supported");
    }
    if text.contains("://") {
        return Err("it has a scheme");
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err("an IPv6 address needs brackets, as in [::1]:7420");
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, tail) = rest.split_once(']').ok_or("the bracket is not closed")?;
        ip.parse::<Ipv6Addr>().map_err(|_| "only an IPv6 address stands in brackets")?;
        return match tail.strip_prefix(':') {
            None if !tail.is_empty() => Err("only a port may follow the bracket, as in [::1]:7420"),
            port => Ok((ip, port)),
        };
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    match host.bytes().all(name) {
        _ if host.is_empty() => Err(NO_HOST),
        false => Err("that is no host name"),
        true => Ok((host, port)),
    }
}

/// Digits only: `u16::from_str` also takes a sign.
fn number(port: &str) -> Option<u16> {
    port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse().ok()).flatten()
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

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_need_no_port() {
        for (text, canonical) in [
            ("127.0.0.1:7420", "127.0.0.1:7420"),
            ("127.0.0.1", "127.0.0.1:7420"),
            ("[::1]:9000", "[::1]:9000"),
            ("[::1]", "[::1]:7420"),
            ("Shard-0.kv.svc", "shard-0.kv.svc:7420"),
            ("shard_1:65535", "shard_1:65535"),
        ] {
            assert_eq!(Address::of_shard(text).expect(text).to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn addresses_to_listen_on_are_complete() {
        for text in ["127.0.0.1:7420", "[::1]:7420", "[::]:0", "shard-3.recollect.svc:7420", "localhost:1"] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        for text in ["[::1]", "127.0.0.1", "localhost"] {
            let line = text.parse::<Address>().expect_err(text);
            assert!(line.contains(text) && line.contains("port is missing"), "{line}");
        }
        assert!(":7420".parse::<Address>().expect_err("refused").contains("listens everywhere"));
        assert!(Address::of_shard("host:0").expect_err("refused").contains("from 1 to 65535"));
    }

    #[test]
    fn refused_for_both_with_the_reason() {
        for (text, why) in [
            ("", "host is missing"),
            (":7420", "host is missing"),
            ("::1", "brackets"),
            ("::1:7420", "brackets"),
            ("2001:db8::7", "brackets"),
            ("[::1", "not closed"),
            ("[::1]x", "only a port may follow"),
            ("[localhost]:1", "only an IPv6"),
            ("unix:/tmp/s", "unix sockets"),
            ("/run/kv.sock", "unix sockets"),
            ("http://a:1", "scheme"),
            ("a:b:1", "no host name"),
            ("1::2::3", "no host name"),
            ("fe80::1%eth0", "no host name"),
            ("a b:1", "no host name"),
            ("a,b:1", "no host name"),
            ("a:70000", "not a number"),
            ("a:+1", "not a number"),
            ("a:seven", "not a number"),
            ("a:", "not a number"),
        ] {
            let listen = text.parse::<Address>().expect_err(text);
            let shard = Address::of_shard(text).expect_err(text);
            assert!(listen.contains(why) && !listen.contains('\n'), "{text}: {listen}");
            assert!(shard.contains(why), "{text}: {shard}");
        }
    }
}
