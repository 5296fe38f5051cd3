//! The program with its archive on a real S3 server, which `scripts/s3-server` installs and runs.

mod common;

use common::Server;
use half::f16;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tonic::Code;
use wire::{tensor, v1};

const DIM: usize = 64;
const TOKENS: u64 = 20_000;

/// A server with one bucket, killed when dropped.
struct S3 {
    child: Child,
    port: u16,
}

impl S3 {
    fn start() -> Self {
        // Free a moment ago; whoever takes it in between fails the test with an error of its own.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/s3-server");
        let mut command = Command::new(script);
        // Beside the program under test, where cargo builds.
        let build = Path::new(env!("CARGO_BIN_EXE_recollectd")).ancestors().nth(2).unwrap();
        command.arg(port.to_string()).env("CARGO_TARGET_DIR", build);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, port };
        // The first time it is installed.
        let until = Instant::now() + Duration::from_secs(600);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(server.child.try_wait().unwrap().is_none(), "scripts/s3-server has ended");
            assert!(Instant::now() < until, "no S3 server");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(server.ask("PUT", "/bucket").contains(" 200 "));
        server
    }

    fn ask(&self, verb: &str, target: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(
            stream,
            "{verb} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Objects of the bucket.
    fn objects(&self) -> usize {
        self.ask("GET", "/bucket?list-type=2").matches("<Key>some/prefix/").count()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rows(value: bool) -> Vec<f16> {
    let element = |t: u64, d: u64| f16::from_f32(((t * 31 + d * 7 + u64::from(value)) % 2039) as f32 / 64.0);
    (0..TOKENS).flat_map(|t| (0..DIM as u64).map(move |d| element(t, d))).collect()
}

fn start(s3: &S3, data: &Path) -> Server {
    let endpoint = format!("http://127.0.0.1:{}", s3.port);
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("RECOLLECT__ARCHIVE__TIMEOUT_SECONDS", "5"),
        ("RECOLLECT__ARCHIVE__RETRIES", "1"),
    ];
    let data = data.to_str().unwrap();
    Server::start_with(&["--data", data, "--archive", "s3://bucket/some/prefix"], &variables)
}

async fn read(server: &Server) -> Result<(), tonic::Status> {
    let request = v1::ReadRowsRequest { session: vec![7; 16], layer: 0, kv_head: 0, begin: 0, end: TOKENS };
    let read = server.client().await.read_rows(request).await?.into_inner();
    for (t, value) in [(read.k, false), (read.v, true)] {
        assert!(t == Some(tensor::from_f16(&[TOKENS as usize, DIM], &rows(value))));
    }
    Ok(())
}

async fn archive(server: &Server) -> Result<u64, tonic::Status> {
    let mut admin = v1::admin_client::AdminClient::connect(format!("http://{}", server.grpc)).await.unwrap();
    let request = v1::EvictRequest { tier: v1::Tier::Archived.into(), ..Default::default() };
    Ok(admin.evict(request).await?.into_inner().archived_bytes)
}

fn extents(data: &Path) -> usize {
    let names = std::fs::read_dir(data.join("extents")).unwrap().map(|e| e.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".kv")).count()
}

#[tokio::test]
async fn spans_go_to_s3_outlive_a_kill_and_come_back() {
    let s3 = S3::start();
    let folder = tempfile::tempdir().unwrap();
    let server = start(&s3, folder.path());
    let open =
        v1::OpenRequest { index: v1::IndexKind::Flat as i32, durable: true, ..common::open((1, 1), DIM) };
    let mut client = server.client().await;
    client.open(open.clone()).await.unwrap();
    let shape = [TOKENS as usize, 1, DIM];
    let chunk = v1::AppendChunk {
        session: vec![7; 16],
        k: Some(tensor::from_f16(&shape, &rows(false))),
        v: Some(tensor::from_f16(&shape, &rows(true))),
        seal_to: Some(TOKENS),
        ..Default::default()
    };
    let mut acks = client.append(tokio_stream::iter([chunk.clone()])).await.unwrap().into_inner();
    assert_eq!(acks.message().await.unwrap().unwrap().error, None);
    let bytes = TOKENS * 4 * DIM as u64;
    assert_eq!(archive(&server).await.unwrap(), bytes);
    // More than one extent, and nothing of them here.
    assert_eq!((s3.objects(), extents(folder.path())), (2, 0));
    read(&server).await.unwrap();
    assert_eq!((archive(&server).await.unwrap(), extents(folder.path())), (bytes, 0));
    server.kill();
    let server = start(&s3, folder.path());
    read(&server).await.unwrap();
    assert_eq!((s3.objects(), extents(folder.path())), (2, 2));
    // The end of a session takes its objects with it.
    client = server.client().await;
    let other = v1::OpenRequest { session: vec![8; 16], ..open.clone() };
    client.open(other).await.unwrap();
    let chunk = v1::AppendChunk { session: vec![8; 16], ..chunk };
    let mut acks = client.append(tokio_stream::iter([chunk])).await.unwrap().into_inner();
    assert_eq!(acks.message().await.unwrap().unwrap().error, None);
    assert_eq!((archive(&server).await.unwrap(), s3.objects()), (2 * bytes, 4));
    client.close(v1::CloseRequest { session: vec![8; 16] }).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while s3.objects() != 2 {
        assert!(Instant::now() < until, "{} objects", s3.objects());
        std::thread::sleep(Duration::from_millis(50));
    }
    server.kill();
    // Without the store: a clear error, and the server lives.
    drop(s3);
    let s3 = S3 { child: Command::new("true").spawn().unwrap(), port: 9 };
    let server = start(&s3, folder.path());
    let e = read(&server).await.unwrap_err();
    assert!(e.code() == Code::Unavailable && e.message().contains("lie in the archive"), "{e}");
    assert!(server.get("/livez").0 == 200 && extents(folder.path()) == 0);
    let close = v1::CloseRequest { session: vec![7; 16] };
    server.client().await.close(close).await.unwrap();
}
