//! The program on a data directory: who may have it, what a kill leaves, what a full disk refuses.

mod common;

use common::{Server, assert_refused, recollectd};
use half::f16;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tonic::Code;
use wire::{tensor, v1};

type Client = v1::kv_client::KvClient<tonic::transport::Channel>;

const LAYERS: u32 = 2;
const DIM: usize = 64;

fn open(durable: bool) -> v1::OpenRequest {
    v1::OpenRequest { durable, ..common::open((LAYERS, 2), DIM) }
}

fn rows(layer: u32, range: std::ops::Range<u64>, value: bool) -> Vec<f16> {
    let element = |t: u64, d: usize| {
        f16::from_f32(
            ((t * 31 + d as u64 * 7 + u64::from(layer) * 3 + u64::from(value)) % 2039) as f32 / 64.0,
        )
    };
    range.flat_map(|t| (0..DIM).map(move |d| element(t, d))).collect()
}

fn chunk(layer: u32, range: std::ops::Range<u64>, seal: bool) -> v1::AppendChunk {
    let shape = [(range.end - range.start) as usize, 1, DIM];
    v1::AppendChunk {
        session: vec![7; 16],
        layer,
        begin: range.start,
        k: Some(tensor::from_f16(&shape, &rows(layer, range.clone(), false))),
        v: Some(tensor::from_f16(&shape, &rows(layer, range.clone(), true))),
        seal_to: seal.then_some(range.end),
        ..Default::default()
    }
}

/// Appends one chunk and returns its acknowledgement.
async fn append(client: &mut Client, chunk: v1::AppendChunk) -> v1::AppendAck {
    let acks = client.append(tokio_stream::iter([chunk])).await.unwrap();
    acks.into_inner().message().await.unwrap().unwrap()
}

async fn watermark(client: &mut Client) -> u64 {
    let renewed = client.renew(v1::RenewRequest { session: vec![7; 16], lease_ms: 0 }).await;
    renewed.unwrap().into_inner().watermark
}

async fn assert_rows(client: &mut Client, tokens: u64) {
    for layer in 0..LAYERS {
        let request = v1::ReadRowsRequest { session: vec![7; 16], layer, kv_head: 0, begin: 0, end: tokens };
        let read = client.read_rows(request).await.unwrap().into_inner();
        let shape = [tokens as usize, DIM];
        assert!(read.k == Some(tensor::from_f16(&shape, &rows(layer, 0..tokens, false))), "keys");
        assert!(read.v == Some(tensor::from_f16(&shape, &rows(layer, 0..tokens, true))), "values");
    }
}

fn on(data: &Path) -> Server {
    Server::start(&["--data", data.to_str().unwrap()])
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |data: &Path, code: i32, words: &str| {
        let ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        assert_refused(&recollectd(&ports).output().unwrap(), code, words);
    };
    let data = folder.path().join("data");
    let server = on(&data);
    refused(&data, 1, "another process uses this directory");
    server.kill();
    std::fs::write(data.join("FORMAT"), "data directory of recollectd\nformat 2\n").unwrap();
    refused(&data, 64, "format 2, this program reads up to 1");
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    refused(&file, 64, "storage.path (--data)");
    refused(folder.path(), 64, "it is not empty and not a data directory");
    refused(Path::new("/proc/recollect"), 64, "storage.path (--data)");
}

#[tokio::test]
async fn a_kill_loses_nothing_that_was_acknowledged_as_durable() {
    let folder = tempfile::tempdir().unwrap();
    let mut held = 0;
    for round in 0..4 {
        let server = on(folder.path());
        let mut client = server.client().await;
        if round == 0 {
            client.open(open(true)).await.unwrap();
        }
        assert_eq!(watermark(&mut client).await, held, "round {round}");
        // Appends of a token each, without end; the kill comes in the middle of them.
        let endless = async_chunks(held);
        let mut acks = client.append(endless).await.unwrap().into_inner();
        let mut acknowledged = held;
        for _ in 0..150 + 37 * round {
            let ack = acks.message().await.unwrap().unwrap();
            assert_eq!(ack.error, None);
            acknowledged = acknowledged.max(ack.watermark);
        }
        server.kill();
        let server = on(folder.path());
        let mut client = server.client().await;
        held = watermark(&mut client).await;
        assert!(held >= acknowledged && acknowledged > 0, "{held} of {acknowledged} tokens are left");
        assert_rows(&mut client, held).await;
        // One layer may be ahead.
        let cut = v1::TruncateRequest { session: vec![7; 16], length: held };
        assert_eq!(client.truncate(cut).await.unwrap().into_inner().watermark, held);
        server.kill();
    }
}

/// Chunks of one token, layer by layer, sealed now and then.
fn async_chunks(from: u64) -> impl tokio_stream::Stream<Item = v1::AppendChunk> {
    tokio_stream::iter(
        (from..from + 100_000)
            .flat_map(|t| (0..LAYERS).map(move |layer| chunk(layer, t..t + 1, t % 50 == 49))),
    )
}

#[tokio::test]
async fn an_orderly_end_stores_what_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = on(folder.path());
    let mut client = server.client().await;
    client.open(open(false)).await.unwrap();
    for layer in 0..LAYERS {
        append(&mut client, chunk(layer, 0..3000, true)).await;
        append(&mut client, chunk(layer, 3000..3010, false)).await;
    }
    let instance = client.describe(v1::DescribeRequest { protocol: 1 }).await.unwrap().into_inner().instance;
    server.terminate();
    assert_eq!(server.wait(Duration::from_secs(10)).await, Some(0));
    let server = on(folder.path());
    let mut client = server.client().await;
    assert_eq!(watermark(&mut client).await, 3000);
    assert_rows(&mut client, 3000).await;
    // A worker of before is told that the server was restarted.
    let old = v1::AttendRequest { id: 1, instance, ..Default::default() };
    let answer = client.attend(tokio_stream::iter([old])).await.unwrap().into_inner().message().await;
    let error = answer.unwrap().unwrap().error.unwrap();
    assert!(error.code == Code::FailedPrecondition as u32 && error.message.contains("restarted"));
}

/// A file system of its own of so many MiB, if this user may mount one.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(mib: u32) -> Option<Tmpfs> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|o| o.status.success());
        if !mounted {
            println!("no tmpfs can be mounted here: the injected failure of the unit tests stands in for it");
        }
        mounted.then_some(Tmpfs(folder))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_full_file_system_refuses_writes_and_reads_go_on() {
    let Some(disk) = Tmpfs::mount(24) else { return };
    let data = disk.0.path().join("data");
    let server = on(&data);
    let mut client = server.client().await;
    client.open(open(true)).await.unwrap();
    let (mut held, mut refusal) = (0, None);
    while refusal.is_none() {
        for layer in 0..LAYERS {
            let ack = append(&mut client, chunk(layer, held..held + 500, held % 5000 == 4500)).await;
            refusal = refusal.or(ack.error);
        }
        held += if refusal.is_none() { 500 } else { 0 };
    }
    let refusal = refusal.unwrap();
    assert_eq!(refusal.code, Code::ResourceExhausted as u32, "{}", refusal.message);
    assert!(refusal.message.contains("storage.path (--data)"), "{}", refusal.message);
    assert!(held > 10_000, "{held}");
    assert_rows(&mut client, held).await;
    assert_eq!(watermark(&mut client).await, held);
    server.kill();
    // It starts on the full disk, serves, and has room again when the session ends.
    let server = on(&data);
    let mut client = server.client().await;
    assert_eq!(watermark(&mut client).await, held);
    assert_rows(&mut client, held).await;
    client.close(v1::CloseRequest { session: vec![7; 16] }).await.unwrap();
    client.open(open(true)).await.unwrap();
    let ack = append(&mut client, chunk(0, 0..500, false)).await;
    assert_eq!(ack.error, None);
}

#[tokio::test]
async fn a_read_only_directory_is_refused() {
    let Some(disk) = Tmpfs::mount(24) else { return };
    let data = disk.0.path().join("data");
    on(&data).kill();
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.0.path()).output().unwrap();
    assert!(remounted.status.success());
    let ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    assert_refused(&recollectd(&ports).output().unwrap(), 64, "Read-only file system");
}

#[tokio::test]
async fn a_killed_server_brings_spilled_sessions_back_in_the_same_budget() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let args = ["--data", data, "--memory", "5MiB"];
    let server = Server::start(&args);
    let mut client = server.client().await;
    client.open(v1::OpenRequest { index: v1::IndexKind::Flat as i32, ..open(true) }).await.unwrap();
    // 15 MB of rows.
    let tokens = 30_000;
    for begin in (0..tokens).step_by(2500) {
        for layer in 0..LAYERS {
            let ack = append(&mut client, chunk(layer, begin..begin + 2500, true)).await;
            assert_eq!(ack.error, None, "at {begin}");
        }
    }
    let attend = |instance: Vec<u8>| v1::AttendRequest {
        id: 1,
        deadline_us: 0,
        instance,
        rows: vec![v1::AttendRow {
            session: vec![7; 16],
            layer: 1,
            kv_head_count: 1,
            end: tokens,
            budget: Some(wire::convert::Budget::TopK(50).write()),
            attention: Some(v1::AttentionDesc { scale: 1.0, ..Default::default() }),
            q: Some(tensor::from_f32(&[2, DIM], &[0.25; 2 * DIM])),
            ..Default::default()
        }],
    };
    let mut answers = Vec::new();
    let mut running = Some(server);
    for round in 0..2 {
        let server = running.take().unwrap_or_else(|| Server::start(&args));
        let mut client = server.client().await;
        assert_rows(&mut client, tokens / 2).await;
        let described = client.describe(v1::DescribeRequest { protocol: 1 }).await.unwrap().into_inner();
        assert!(described.memory_used_bytes <= described.memory_budget_bytes, "{described:?}");
        let asked = tokio_stream::iter([attend(described.instance)]);
        let mut stream = client.attend(asked).await.unwrap().into_inner();
        let mut answer = stream.message().await.unwrap().unwrap().rows.remove(0);
        assert_eq!(answer.error, None);
        answer.stats = None;
        answers.push(answer);
        let (_, metrics) = server.get("/metrics");
        let spilled = metrics.lines().find_map(|l| l.strip_prefix("recollect_spilled_bytes "));
        let spilled: f64 = spilled.unwrap().parse().unwrap();
        assert!(spilled > f64::from(8 << 20), "round {round}: {spilled}");
        server.kill();
    }
    assert_eq!(answers[0], answers[1]);
}
