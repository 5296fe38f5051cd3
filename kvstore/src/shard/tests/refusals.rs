//! What is refused, with which words, and that nothing of it is kept.

use super::*;
use half::f16;
use wire::convert::Budget;
use wire::tensor::{from_f16, from_f32};

fn small() -> v1::Fingerprint {
    fingerprint(2, 4, 2, 4, 4)
}

async fn ready() -> (Arc<Node>, v1::Fingerprint) {
    let f = small();
    let n = node(|_| {});
    filled(&n, &f, open(1, &f), 10, &[4]).await;
    (n, f)
}

#[tokio::test]
async fn chunks_that_are_refused_store_nothing() {
    type Spoil = fn(&mut v1::AppendChunk);
    let cases: &[(Code, &str, Spoil)] = &[
        (Code::NotFound, "unknown here", |c| c.session = vec![7; 16]),
        (Code::InvalidArgument, "session: 3 bytes", |c| c.session = vec![7; 3]),
        (Code::InvalidArgument, "layer: 2", |c| c.layer = 2),
        (Code::InvalidArgument, "kv_head_begin: 1 with 2 heads", |c| c.kv_head_begin = 1),
        (Code::OutOfRange, "begin is 9, but layer 0, KV head 0 holds 10", |c| c.begin = 9),
        (Code::OutOfRange, "begin is 11", |c| c.begin = 11),
        (Code::OutOfRange, "begin is", |c| c.begin = u64::MAX - 100),
        (Code::InvalidArgument, "begin: ", |c| c.begin = u64::MAX),
        (Code::InvalidArgument, "k: missing", |c| c.k = None),
        (Code::InvalidArgument, "v: missing", |c| c.v = None),
        (Code::InvalidArgument, "k: shape is [5, 2, 5]", |c| {
            c.k = Some(from_f16(&[5, 2, 5], &[f16::ONE; 50]));
        }),
        (Code::InvalidArgument, "v: shape is [4, 2, 4]", |c| {
            c.v = Some(from_f16(&[4, 2, 4], &[f16::ONE; 32]));
        }),
        (Code::InvalidArgument, "k: dtype is F32, must be F16", |c| {
            c.k = Some(from_f32(&[5, 2, 4], &[1.0; 40]));
        }),
        (Code::InvalidArgument, "v: dtype is BF16, must be F16", |c| {
            c.v.as_mut().unwrap().dtype = v1::DType::Bf16 as i32;
        }),
        (Code::InvalidArgument, "k[3, 1, 2]: NaN", |c| spoil(&mut c.k, (3 * 2 + 1) * 4 + 2, f16::NAN)),
        (Code::InvalidArgument, "v[0, 0, 1]: inf", |c| spoil(&mut c.v, 1, f16::INFINITY)),
        (Code::InvalidArgument, "q: missing", |c| c.q_pos = vec![10]),
        (Code::InvalidArgument, "q_pos: 15", |c| queries(c, &[15])),
        (Code::InvalidArgument, "q_pos[1]: 10", |c| queries(c, &[12, 10])),
        (Code::InvalidArgument, "q[1, 3, 3]: -inf", |c| {
            queries(c, &[11, 12]);
            spoil(&mut c.q, 31, f16::NEG_INFINITY);
        }),
        (Code::OutOfRange, "seal_to is 16", |c| c.seal_to = Some(16)),
        (Code::OutOfRange, "seal_to is 3", |c| c.seal_to = Some(3)),
    ];
    let (n, f) = ready().await;
    let before = (told(&n, 1).await, n.snapshot());
    for (code, words, change) in cases {
        let mut c = chunk(1, &f, 0, 10, 5);
        change(&mut c);
        let e = n.append(c).await.unwrap_err();
        assert!(e.code() == *code && e.message().contains(words), "{words}: {e}");
        let mut after = (told(&n, 1).await, n.snapshot());
        after.0.lease_left_ms = before.0.lease_left_ms;
        assert_eq!(before, after, "{words}");
    }
    n.append(chunk(1, &f, 0, 10, 5)).await.unwrap();
}

fn spoil(t: &mut Option<v1::Tensor>, at: usize, with: f16) {
    let t = t.as_mut().unwrap();
    let mut data = t.data.to_vec();
    data[2 * at..2 * at + 2].copy_from_slice(&with.to_le_bytes());
    t.data = data.into();
}

fn queries(c: &mut v1::AppendChunk, pos: &[u64]) {
    c.q = Some(from_f16(&[pos.len(), 4, 4], &vec![f16::ONE; pos.len() * 16]));
    c.q_pos = pos.to_vec();
}

#[tokio::test]
async fn rows_that_are_refused_append_nothing_and_leave_their_neighbours_alone() {
    type Spoil = fn(&mut v1::AttendRow);
    let cases: &[(Code, &str, Spoil)] = &[
        (Code::NotFound, "rows[1].session", |r| r.session = vec![7; 16]),
        (Code::InvalidArgument, "rows[1].layer: 9", |r| r.layer = 9),
        (Code::InvalidArgument, "rows[1].kv_head_begin: 1 with 2", |r| r.kv_head_begin = 1),
        (Code::InvalidArgument, "rows[1].kv_head_begin", |r| r.kv_head_count = 0),
        (Code::InvalidArgument, "rows[1].kv_head_begin", |r| r.kv_head_count = u32::MAX),
        (Code::OutOfRange, "rows[1].end is 12, but layer 0, KV head 0 holds 10", |r| r.end = 12),
        (Code::OutOfRange, "rows[1].end", |r| r.end = u64::MAX),
        (Code::InvalidArgument, "rows[1].begin: 12", |r| r.begin = 12),
        (Code::InvalidArgument, "rows[1].budget: missing", |r| r.budget = None),
        (Code::InvalidArgument, "rows[1].budget.top_k: 0", |r| r.budget = Some(Budget::TopK(0).write())),
        (Code::InvalidArgument, "rows[1].budget.coverage: 2", |r| {
            r.budget = Some(Budget::Coverage(2.0).write());
        }),
        (Code::InvalidArgument, "rows[1].attention: missing", |r| r.attention = None),
        (Code::InvalidArgument, "rows[1].attention.scale: NaN", |r| {
            r.attention.as_mut().unwrap().scale = f32::NAN;
        }),
        (Code::InvalidArgument, "rows[1].attention.scale: 0.25, must be the session's, 1", |r| {
            r.attention.as_mut().unwrap().scale = 0.25;
        }),
        (Code::InvalidArgument, "rows[1].attention.logit_softcap: 0", |r| {
            r.attention.as_mut().unwrap().logit_softcap = Some(0.0);
        }),
        (Code::InvalidArgument, "rows[1].q: dtype is F16, must be F32", |r| {
            r.q = Some(from_f16(&[4, 4], &[f16::ONE; 16]));
        }),
        (Code::InvalidArgument, "rows[1].q[2, 1]: inf", |r| {
            let mut q = [0.5; 16];
            q[9] = f32::INFINITY;
            r.q = Some(from_f32(&[4, 4], &q));
        }),
        (Code::InvalidArgument, "rows[1].q: 300000000000000000000, must be at most 1e20", |r| {
            r.q = Some(from_f32(&[4, 4], &[3e20; 16]));
        }),
        (Code::InvalidArgument, "rows[1].token.k: shape is [2, 5]", |r| {
            r.token.as_mut().unwrap().k = Some(from_f16(&[2, 5], &[f16::ONE; 10]));
        }),
        (Code::InvalidArgument, "rows[1].token.v[1, 0]: NaN", |r| {
            spoil(&mut r.token.as_mut().unwrap().v, 4, f16::NAN);
        }),
        (Code::OutOfRange, "rows[1].token.position is 11", |r| {
            r.token.as_mut().unwrap().position = 11;
        }),
    ];
    let (n, f) = ready().await;
    let before = (told(&n, 1).await.fresh_tokens, n.snapshot());
    for (code, words, change) in cases {
        let good = row(1, &f, 1, 0, 10, false);
        let mut bad = row(1, &f, 0, 0, 11, false);
        bad.token = Some(token(&f, 0, 10));
        change(&mut bad);
        let answer = n.attend(message(&n, vec![good.clone(), bad, good])).await.unwrap();
        let e = Status::from(answer.rows[1].error.clone().expect(words));
        assert!(e.code() == *code && e.message().contains(words), "{words}: {e}");
        for i in [0, 2] {
            assert_exact(&f, &answer.rows[i], 1, 0, 10);
        }
        assert_eq!(before, (told(&n, 1).await.fresh_tokens, n.snapshot()), "{words}");
    }
    let nothing = v1::AttendRow { q: None, ..row(1, &f, 0, 0, 10, false) };
    assert!(refused(&n, nothing).await.message().contains("rows[0].q: missing"));
}

#[tokio::test]
async fn messages_that_are_refused_as_a_whole() {
    let (n, f) = ready().await;
    let mut other = message(&n, vec![row(1, &f, 0, 0, 10, false)]);
    other.instance = vec![3; 16];
    let e = n.attend(other).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("restarted"), "{e}");
    let mut none = message(&n, vec![]);
    none.instance.clear();
    assert_eq!(n.attend(none).await.unwrap_err().code(), Code::InvalidArgument);
    assert!(n.attend(message(&n, vec![])).await.unwrap().rows.is_empty());

    let small = node(|c| c.queue = 3);
    filled(&small, &f, open(1, &f), 10, &[]).await;
    let mut rows = vec![row(1, &f, 0, 0, 11, false), row(1, &f, 1, 0, 10, false)];
    rows[0].token = Some(token(&f, 0, 10));
    let e = small.attend(message(&small, rows)).await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("attend.queue = 3"), "{e}");
    assert_eq!(told(&small, 1).await.fresh_tokens, 10);
    assert_eq!(small.snapshot().queued, 0);
}

#[tokio::test]
async fn sessions_that_cannot_be_opened() {
    let f = small();
    let n = node(|c| c.memory_bytes = 1 << 20);
    type Spoil = fn(&mut v1::OpenRequest);
    let cases: &[(Code, &str, Spoil)] = &[
        (Code::FailedPrecondition, "protocol 2 is not spoken here: this server speaks 1", |o| o.protocol = 2),
        (Code::InvalidArgument, "session: 0 bytes", |o| o.session.clear()),
        (Code::InvalidArgument, "fingerprint: missing", |o| o.fingerprint = None),
        (Code::InvalidArgument, "fingerprint.scale: -1, must be above 0 and at most 1e6", |o| {
            o.fingerprint.as_mut().unwrap().scale = -1.0;
        }),
        (Code::InvalidArgument, "fingerprint.scale: 0, must be above 0", |o| {
            o.fingerprint.as_mut().unwrap().scale = 0.0;
        }),
        (Code::InvalidArgument, "fingerprint.scale: 2000000, must be", |o| {
            o.fingerprint.as_mut().unwrap().scale = 2e6;
        }),
        (Code::InvalidArgument, "owned: missing", |o| o.owned.clear()),
        (Code::InvalidArgument, "index: 99", |o| o.index = 99),
        (Code::InvalidArgument, "lease_ms", |o| o.lease_ms = u64::MAX),
        (Code::ResourceExhausted, "memory.budget (--memory) = 1048576", |o| o.reserve_tokens = 1 << 20),
        (Code::ResourceExhausted, "reserve_tokens", |o| o.reserve_tokens = u64::MAX),
    ];
    for (code, words, change) in cases {
        let mut o = open(1, &f);
        change(&mut o);
        let e = n.open(o).await.unwrap_err();
        assert!(e.code() == *code && e.message().contains(words), "{words}: {e}");
        assert_eq!((n.snapshot().sessions, n.snapshot().granted_bytes), (0, 0));
    }
    let e = n.describe(v1::DescribeRequest { protocol: 9 }).await.unwrap_err();
    assert_eq!(e.code(), Code::FailedPrecondition);
    n.open(open(1, &f)).await.unwrap();
    assert_eq!(n.open(open(1, &f)).await.unwrap_err().code(), Code::AlreadyExists);
}

#[tokio::test]
async fn heads_of_another_shard_are_refused() {
    let f = small();
    let n = node(|_| {});
    let mut o = open(1, &f);
    o.owned[0].kv_head_end = 1;
    n.open(o).await.unwrap();
    let e = n.append(chunk(1, &f, 0, 0, 3)).await.unwrap_err();
    assert!(e.message().contains("layer 0, KV head 1 is not owned"), "{e}");
    let e = refused(&n, row(1, &f, 0, 0, 0, false)).await;
    assert!(e.message().contains("KV head 1 is not owned"), "{e}");
    assert_eq!(n.snapshot().kv_bytes, 0);
}

#[tokio::test]
async fn reads_and_cuts_that_reach_too_far() {
    let (n, _) = ready().await;
    let read = |begin, end| v1::ReadRowsRequest { session: vec![1; 16], begin, end, ..Default::default() };
    assert_eq!(n.read_rows(read(0, 11)).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(n.read_rows(read(5, 5)).await.unwrap_err().code(), Code::InvalidArgument);
    let cut = v1::TruncateRequest { session: vec![1; 16], length: 11 };
    assert_eq!(n.truncate(cut).await.unwrap_err().code(), Code::OutOfRange);
    let small = node(|c| c.max_message_bytes = 400);
    let f = fingerprint(2, 4, 2, 4, 4);
    filled(&small, &f, open(1, &f), 10, &[]).await;
    let e = small.read_rows(read(0, 10)).await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("server.max_message"), "{e}");
    assert!(small.read_rows(read(0, 9)).await.is_ok());
}
