//! A `recollectd` of its own, as its operators meet it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use wire::v1;
use wire::v1::kv_client::KvClient;

pub fn recollectd(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recollectd"));
    command.arg("serve").args(args);
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One line on stderr, the code, and nothing on stdout.
pub fn assert_refused(output: &Output, code: i32, words: &str) {
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert!(err.starts_with("error: ") && err.contains(words), "{words}: {err}");
    assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    assert!(output.stdout.is_empty());
}

/// Opens session 7 with so many layers, and query heads on one KV head.
pub fn open((layers, q_heads): (u32, u32), dim: usize) -> v1::OpenRequest {
    v1::OpenRequest {
        session: vec![7; 16],
        fingerprint: Some(v1::Fingerprint {
            model: "test".into(),
            layers,
            q_heads,
            kv_heads: 1,
            key_dim: dim as u32,
            value_dim: dim as u32,
            kv_dtype: v1::DType::F16 as i32,
            scale: 1.0,
            provenance: v1::Provenance::Exact as i32,
            ..Default::default()
        }),
        owned: vec![v1::HeadRange { layer_begin: 0, layer_end: layers, kv_head_begin: 0, kv_head_end: 1 }],
        protocol: wire::PROTOCOL,
        ..Default::default()
    }
}

/// A running server, killed when dropped.
pub struct Server {
    pub child: Child,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// With more variables than those of the test.
    pub fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json"];
        let mut child = recollectd(&[&ports, args].concat())
            .env("RECOLLECT__SERVER__GRACE_SECONDS", "3")
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (grpc, http) = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "no listening line");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "listening" {
                let at = |key: &str| line[key].as_str().unwrap().parse().unwrap();
                break (at("grpc"), at("http"));
            }
        };
        // Keeps the pipe empty.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, grpc, http }
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub async fn client(&self) -> KvClient<tonic::transport::Channel> {
        let client = KvClient::connect(format!("http://{}", self.grpc)).await.unwrap();
        client.max_encoding_message_size(1 << 30).max_decoding_message_size(1 << 30)
    }

    /// SIGKILL, and the end of it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    pub async fn wait(&mut self, at_most: Duration) -> Option<i32> {
        let started = Instant::now();
        while started.elapsed() < at_most {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("still running after {at_most:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
