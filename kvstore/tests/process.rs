//! The program as its operators meet it: configuration, exit codes, ports, probes, limits, the end.

mod common;

use common::{Server, assert_refused, recollectd, text};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;
use tonic::Code;
use wire::v1;

#[test]
fn bad_usage_is_64_in_one_line() {
    for (args, words) in [
        (&["--frob"][..], "--frob"),
        (&["--memory", "4GB"], "4GB"),
        (&["--listen", "::1"], "brackets"),
        (&["--listen", "127.0.0.1"], "port is missing"),
        (&["--http", "unix:/tmp/x"], "unix sockets"),
        (&["--threads", "-1"], "-1"),
        (&["--threads", "99999"], "attend.threads"),
        (&["--log-format", "xml"], "xml"),
        (&["--config", "/nowhere/c.toml"], "/nowhere/c.toml"),
        (&["--http", "127.0.0.1:7420"], "server.listen"),
    ] {
        assert_refused(&recollectd(args).output().unwrap(), 64, words);
    }
    let bare = Command::new(env!("CARGO_BIN_EXE_recollectd")).output().unwrap();
    assert_eq!(bare.status.code(), Some(64));
    let env = recollectd(&[]).env("RECOLLECT__SERVER__LISEN", "x").output().unwrap();
    assert_refused(&env, 64, "server.lisen: no such setting");
    let env = recollectd(&[]).env("RECOLLECT__SERVER__NOPE", "x").output().unwrap();
    assert_refused(&env, 64, "(RECOLLECT__SERVER__NOPE)");
}

#[test]
fn file_then_environment_then_flags() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "[memory]\nbudget = \"1GiB\"\n[attend]\nqueue = 77\nthreads = 1\n[server]\nlisten = \"127.0.0.1:1\"\n",
    )
    .unwrap();
    let output =
        recollectd(&["--config", file.path().to_str().unwrap(), "--memory", "3GiB", "--print-config"])
            .env("RECOLLECT__MEMORY__BUDGET", "2GiB")
            .env("RECOLLECT__ATTEND__THREADS", "5")
            .env("RECOLLECT__SERVER__LISTEN", "[::1]:7420")
            .output()
            .unwrap();
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in ["budget = \"3GiB\"", "queue = 77", "threads = 5", "listen = \"[::1]:7420\""] {
        assert!(printed.lines().any(|l| l == line), "{line} in {printed}");
    }
}

#[test]
fn a_taken_address_is_69() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = recollectd(&["--listen", &address]).output().unwrap();
    assert_refused(&output, 69, &address);
    let output = recollectd(&["--listen", "no-such-host.invalid:1"]).output().unwrap();
    assert_refused(&output, 69, "no-such-host.invalid");
}

#[tokio::test]
async fn probes_pages_and_message_limits() {
    let mut server = Server::start(&["--memory", "64MiB"]);
    assert_eq!(server.get("/livez").0, 200);
    assert_eq!(server.get("/readyz").0, 200);
    assert_eq!(server.get("/nothing").0, 404);
    assert!(server.get("/metrics").1.contains("recollect_memory_budget_bytes 67108864"));
    let status: serde_json::Value = serde_json::from_str(&server.get("/status").1).unwrap();
    let mut client = server.client().await;
    let described = client.describe(v1::DescribeRequest { protocol: wire::PROTOCOL }).await;
    let described = described.unwrap().into_inner();
    assert_eq!(status["instance"], wire::convert::hex(&described.instance));
    assert_eq!(described.max_message_bytes, 64 << 20);

    let e = client.renew(v1::RenewRequest { session: vec![0; 65 << 20], lease_ms: 0 }).await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("server.max_message"), "{e}");
    let huge = v1::AppendChunk { session: vec![0; 65 << 20], ..Default::default() };
    let stream = client.append(tokio_stream::iter([huge])).await;
    let e = stream.unwrap().into_inner().message().await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("server.max_message"), "{e}");
    drop(client);
    server.terminate();
    assert_eq!(server.wait(Duration::from_secs(8)).await, Some(0));
}

#[tokio::test]
async fn the_end_does_not_wait_for_idle_half_open_and_stalled_streams() {
    let mut server = Server::start(&[]);
    let mut client = server.client().await;
    // Idle: open streams that send nothing. Their end is announced.
    let attend = client.attend(tokio_stream::pending()).await.unwrap();
    let append = client.append(tokio_stream::pending()).await.unwrap();
    // Half open: a connection that never speaks, and one in the middle of its preface.
    let silent = TcpStream::connect(server.grpc).unwrap();
    let mut partial = TcpStream::connect(server.grpc).unwrap();
    partial.write_all(b"PRI * HTTP").unwrap();
    let probe = TcpStream::connect(server.http).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.terminate();
    let end = attend.into_inner().message().await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert_eq!(append.into_inner().message().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(server.wait(Duration::from_secs(13)).await, Some(0));
    drop((silent, partial, probe));
}
