//! Messages around the limit, both ways, unary and stream; another protocol; malformed messages.

use client::{Budget, Cluster};
use e2e::daemon::Daemon;
use e2e::replay::{Replay, SMALL};
use prost::Message;
use tonic::{Code, Status};
use wire::v1;
use wire::v1::kv_client::KvClient;

const LIMIT: usize = 64 << 10;

fn small() -> Daemon {
    Daemon::start_with(&["--memory", "256MiB"], &format!("[server]\nmax_message = {LIMIT}\n"))
        .expect("a daemon")
}

async fn raw(daemon: &Daemon) -> KvClient<tonic::transport::Channel> {
    let client = KvClient::connect(format!("http://{}", daemon.grpc)).await.expect("connect");
    client.max_encoding_message_size(usize::MAX).max_decoding_message_size(usize::MAX)
}

/// Grows `pad` until the message has `size` bytes.
fn sized<M: Message>(size: usize, make: impl Fn(usize) -> M) -> M {
    let overhead = make(size).encoded_len() - size;
    let message = make(size - overhead);
    assert_eq!(message.encoded_len(), size);
    message
}

fn padding(bytes: usize) -> Option<v1::Tensor> {
    Some(v1::Tensor { data: vec![0; bytes].into(), ..Default::default() })
}

fn named(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("server.max_message")
}

#[tokio::test]
async fn messages_around_the_limit() {
    let daemon = small();
    for (size, fits) in [(LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false)] {
        let mut client = raw(&daemon).await;
        let open = sized(size, |pad| v1::OpenRequest { session: vec![1; pad], ..Default::default() });
        let status = client.open(open).await.expect_err("no request to open");
        assert_eq!(named(&status), !fits, "unary, {size} bytes: {status}");

        let chunk = sized(size, |pad| v1::AppendChunk {
            session: vec![1; 16],
            k: padding(pad),
            ..Default::default()
        });
        let refused = match client.append(tokio_stream::once(chunk)).await {
            Err(status) => status,
            Ok(stream) => match stream.into_inner().message().await {
                Ok(ack) => ack.and_then(|ack| ack.error).expect("an unknown session").into(),
                Err(status) => status,
            },
        };
        assert_eq!(named(&refused), !fits, "append, {size} bytes: {refused}");

        let row = |pad| v1::AttendRow { session: vec![1; 16], q: padding(pad), ..Default::default() };
        let request =
            sized(size, |pad| v1::AttendRequest { id: 7, rows: vec![row(pad)], ..Default::default() });
        let refused = match client.attend(tokio_stream::once(request)).await {
            Err(status) => status,
            Ok(stream) => match stream.into_inner().message().await {
                Ok(answer) => answer.and_then(|answer| answer.error).expect("no instance").into(),
                Err(status) => status,
            },
        };
        assert_eq!(named(&refused), !fits, "attend, {size} bytes: {refused}");
    }
}

/// The client cuts chunks and rows to the limit by itself; an answer that would be over it is refused.
#[tokio::test]
async fn the_client_keeps_to_the_limit() {
    let daemon = small();
    let replay = Replay::new(SMALL, 2000, 41);
    let cluster = Cluster::connect(&[&daemon.grpc]).await.expect("connect");
    let session = cluster.open(replay.spec()).await.expect("open");
    assert_eq!(replay.append(&session, 0..2000, Some(1900)).await.expect("append"), 2000);
    let asks: Vec<_> = (0..200).map(|i| replay.ask(i % 2, 0..2000, Budget::TopK(8 + i), true)).collect();
    assert_eq!(session.attend(asks).await.expect("attend").len(), 200);
    let mut client = raw(&daemon).await;
    let rows = |end| v1::ReadRowsRequest { session: session.id().to_vec(), end, ..Default::default() };
    let answer = client.read_rows(rows(100)).await.expect("read").into_inner();
    assert_eq!(answer.k.expect("k").shape, [100, 32]);
    let status = client.read_rows(rows(2000)).await.expect_err("224,000 bytes");
    assert!(named(&status), "{status}");
}

#[tokio::test]
async fn another_protocol_is_refused() {
    let daemon = small();
    let mut client = raw(&daemon).await;
    let status = client.describe(v1::DescribeRequest { protocol: 99 }).await.expect_err("refused");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("99") && status.message().contains(&wire::PROTOCOL.to_string()),
        "{status}"
    );
    let open = v1::OpenRequest { session: vec![1; 16], protocol: 99, ..Default::default() };
    assert_eq!(client.open(open).await.expect_err("refused").code(), Code::FailedPrecondition);
}

/// Bytes of another dtype, a wrong shape, a short id: refused with the field's name, and the stream lives on.
#[tokio::test]
async fn malformed_rows_cost_their_neighbours_nothing() {
    let daemon = small();
    let replay = Replay::new(SMALL, 100, 42);
    let cluster = Cluster::connect(&[&daemon.grpc]).await.expect("connect");
    let session = cluster.open(replay.spec()).await.expect("open");
    replay.append(&session, 0..100, None).await.expect("append");
    let mut client = raw(&daemon).await;
    let described =
        client.describe(v1::DescribeRequest { protocol: wire::PROTOCOL }).await.expect("describe");
    let instance = described.into_inner().instance;
    let good = v1::AttendRow {
        session: session.id().to_vec(),
        kv_head_count: 3,
        end: 100,
        budget: Some(Budget::All.write()),
        attention: Some(v1::AttentionDesc { scale: replay.spec().fingerprint.scale, ..Default::default() }),
        q: Some(wire::tensor::from_f32(&[9, 32], &[0.5; 288])),
        ..Default::default()
    };
    let wrong_dtype = wire::tensor::from_f16(&[9, 32], &[half::f16::ONE; 288]);
    let bad = [
        (v1::AttendRow { session: vec![1, 2], ..good.clone() }, "session"),
        (v1::AttendRow { session: vec![9; 16], ..good.clone() }, "unknown"),
        (v1::AttendRow { q: Some(wrong_dtype), ..good.clone() }, "dtype is F16, must be F32"),
        (v1::AttendRow { kv_head_count: 2, ..good.clone() }, "q: shape"),
        (v1::AttendRow { kv_head_begin: 1, ..good.clone() }, "head"),
        (v1::AttendRow { layer: 7, ..good.clone() }, "layer"),
        (v1::AttendRow { end: 101, ..good.clone() }, "holds 100 tokens"),
        (v1::AttendRow { begin: 50, end: 49, ..good.clone() }, "begin"),
        (v1::AttendRow { budget: None, ..good.clone() }, "budget"),
        (v1::AttendRow { attention: None, ..good.clone() }, "attention"),
    ];
    let rows = bad.iter().flat_map(|(row, _)| [good.clone(), row.clone()]).collect();
    let request = v1::AttendRequest { id: 5, instance, rows, ..Default::default() };
    let mut stream = client.attend(tokio_stream::once(request)).await.expect("stream").into_inner();
    let answer = stream.message().await.expect("an answer").expect("one");
    assert_eq!((answer.id, answer.rows.len(), answer.error), (5, 20, None));
    for (pair, (_, what)) in answer.rows.chunks(2).zip(&bad) {
        assert!(pair[0].error.is_none() && pair[0].o.is_some(), "{what}: its neighbour");
        let error = pair[1].error.as_ref().expect(what);
        assert!(error.message.contains(what) && pair[1].o.is_none(), "{what}: {error:?}");
    }
}
