//! Addresses to listen on: a host and a port, nothing guessed.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// `127.0.0.1:7420`, `[::1]:7420` or `host.name:7420`. Names are resolved when the port is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// 127.0.0.1.
    pub fn loopback(port: u16) -> Self {
        Self { host: "127.0.0.1".into(), port }
    }

    /// Without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// 0 asks the system for a free one.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = |why: &str| Err(format!("{text:?} is not an address: {why}"));
        if text.starts_with("unix:") {
            return fail("unix sockets are not served, write HOST:PORT");
        }
        if text.contains("://") {
            return fail("write HOST:PORT without a scheme");
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return fail("an IPv6 address needs brackets and a port, as in [::1]:7420");
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let Some((host, port)) = rest.split_once(']') else {
                return fail("the bracket is not closed");
            };
            if host.parse::<Ipv6Addr>().is_err() {
                return fail("only an IPv6 address stands in brackets");
            }
            match port.strip_prefix(':') {
                Some(port) => (host, port),
                None => return fail("the port is missing, as in [::1]:7420"),
            }
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) => (host, port),
                None => return fail("the port is missing, as in 127.0.0.1:7420"),
            }
        };
        let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if host.is_empty() {
            return fail("the host is missing; 0.0.0.0 or [::] listens everywhere");
        }
        if !text.starts_with('[') && !host.bytes().all(name) {
            return fail("that is no host name");
        }
        match port.parse() {
            Ok(number) if port.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(Self { host: host.to_owned(), port: number })
            }
            _ => fail("the port is not a number up to 65535"),
        }
    }
}

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
    fn parsed_or_refused_in_one_line() {
        for text in ["127.0.0.1:7420", "[::1]:7420", "[::]:0", "shard-3.recollect.svc:7420", "localhost:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("::1", "brackets"),
            ("fe80::1", "brackets"),
            ("[::1]", "port is missing"),
            ("[::1", "not closed"),
            ("[localhost]:1", "only an IPv6"),
            ("127.0.0.1", "port is missing"),
            ("localhost", "port is missing"),
            (":7420", "host is missing"),
            ("unix:/tmp/s", "unix sockets"),
            ("http://a:1", "scheme"),
            ("a:b:1", "no host name"),
            ("a b:1", "no host name"),
            ("a:70000", "not a number"),
            ("a:+1", "not a number"),
            ("a:", "not a number"),
            ("", "port is missing"),
        ] {
            let e = text.parse::<Address>().unwrap_err();
            assert!(e.contains(why) && !e.contains('\n'), "{text}: {e}");
        }
    }
}
