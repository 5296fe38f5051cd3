//! The smallest HTTP client that reads probes and metrics.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Status and body of a GET.
pub fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split_whitespace().nth(1).context("no status line")?.parse()?;
    let body = answer.split_once("\r\n\r\n").context("no end of headers")?.1;
    Ok((status, body.to_owned()))
}

/// The sum of the samples of a metric whose labels contain all of `labels`; 0 when there are none.
pub fn metric(address: &str, name: &str, labels: &[&str]) -> Result<f64> {
    let (_, text) = get(address, "/metrics")?;
    let mut sum = 0.0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((sample, value)) = line.rsplit_once(' ') else { continue };
        let (sample_name, sample_labels) = sample.split_once('{').unwrap_or((sample, ""));
        if sample_name == name && labels.iter().all(|label| sample_labels.contains(label)) {
            sum += value.parse::<f64>().with_context(|| format!("not a number: {line}"))?;
        }
    }
    Ok(sum)
}
