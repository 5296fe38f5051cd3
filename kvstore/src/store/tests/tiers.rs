//! Rows that leave RAM, are searched in their files, and come back.

use super::*;
use crate::shard::tests::life::{metric, until};
use std::sync::atomic::{AtomicBool, Ordering};
use tonic::Code;

const ROW: u64 = 56;
const HEADS: u64 = 4;

async fn evict(node: &Arc<Node>, session: Vec<u8>) -> Result<u64, tonic::Status> {
    node.evict(v1::EvictRequest { session, ..Default::default() }).await.map(|r| r.freed_bytes)
}

async fn promote(node: &Arc<Node>, id: u8) -> Result<u64, tonic::Status> {
    node.promote(v1::PromoteRequest { session: vec![id; 16] }).await.map(|r| r.promoted_bytes)
}

async fn pin(node: &Arc<Node>, id: u8) {
    node.pin(v1::PinRequest { session: vec![id; 16] }).await.unwrap();
}

async fn unpin(node: &Arc<Node>, id: u8) {
    node.unpin(v1::UnpinRequest { session: vec![id; 16] }).await.unwrap();
}

/// No build is left.
pub(super) async fn ready(node: &Node, id: u8) {
    let wait = v1::WaitReadyRequest { session: vec![id; 16], timeout_ms: 60_000 };
    node.wait_ready(wait).await.unwrap();
}

pub(super) async fn all_returned(node: &Node) {
    let zero = || {
        let s = node.snapshot();
        (s.granted_bytes, s.kv_bytes, s.index_bytes, s.compact_bytes, s.scratch_bytes, s.spilled_bytes)
            == (s.catalogue_bytes, 0, 0, 0, 0, 0)
    };
    until("all memory returns", zero).await;
}

#[tokio::test]
async fn a_spilled_span_answers_with_the_same_bits_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[100, 1900, 2000], &[100, 1900]).await;
    let before = answers(&n, 1, 2000).await;
    let index_bytes = n.snapshot().index_bytes;
    let bytes = 1900 * HEADS * ROW;
    // It need not have been stored yet: evict does that first.
    assert_eq!(evict(&n, vec![1; 16]).await.unwrap(), bytes);
    let s = n.snapshot();
    assert_eq!((s.spilled_bytes, s.index_bytes), (bytes, index_bytes));
    assert_eq!(s.kv_bytes, 128 * HEADS * ROW, "the fresh tokens");
    let info = told(&n, 1).await;
    assert_eq!((info.kv_bytes, info.spilled_bytes), (s.kv_bytes, bytes));
    assert!(info.spans.iter().all(|s| s.tier() == v1::Tier::Spilled));
    assert_eq!(info.spans.iter().map(|s| s.spilled_bytes).sum::<u64>(), bytes);
    assert_eq!(answers(&n, 1, 2000).await, before);
    assert_rows(&n, 1, 2000).await;
    assert_eq!(evict(&n, Vec::new()).await.unwrap(), 0, "nothing is left to evict");
    assert_eq!(metric(&n.render_metrics(), "recollect_spilled_bytes"), bytes as f64);
    assert_eq!(metric(&n.render_metrics(), "recollect_span_spills_total"), 2.0 * HEADS as f64);
    assert_eq!(promote(&n, 1).await.unwrap(), bytes);
    let back = n.snapshot();
    assert_eq!((back.spilled_bytes, back.kv_bytes), (0, s.kv_bytes + bytes));
    assert!(told(&n, 1).await.spans.iter().all(|s| s.tier() == v1::Tier::Full && s.spilled_bytes == 0));
    assert_eq!(metric(&n.render_metrics(), "recollect_span_promotions_total"), 2.0 * HEADS as f64);
    assert_eq!(answers(&n, 1, 2000).await, before);
    // What came back can go again, and be cut.
    assert_eq!(evict(&n, vec![1; 16]).await.unwrap(), bytes);
    assert_eq!(truncate(&n, 1, 1000).await, 1000);
    assert_rows(&n, 1, 1000).await;
    assert_eq!(truncate(&n, 1, 50).await, 50);
    assert_eq!(n.snapshot().spilled_bytes, 100 * HEADS * ROW);
    close(&n, 1).await.unwrap();
    all_returned(&n).await;
}

#[tokio::test]
async fn readers_finish_on_the_old_span_and_its_memory_returns_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[700], &[700]).await;
    ready(&n, 1).await;
    all_stored(&n).await;
    let session = n.session(&[1; 16], "session").unwrap();
    let held = session.head(0, 0).unwrap().read().spans().next().unwrap().0.clone();
    let before = n.snapshot().kv_bytes;
    evict(&n, vec![1; 16]).await.unwrap();
    let (one, fresh) = (700 * ROW, before - 700 * HEADS * ROW);
    assert_eq!(n.snapshot().kv_bytes, fresh + one);
    assert_eq!(held.rows.tiers(), (one, 0));
    drop(held);
    assert_eq!(n.snapshot().kv_bytes, fresh);
}

#[tokio::test]
async fn pins_hold_and_what_cannot_be_done_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |c| c.memory_bytes = 3 << 20);
    for id in [1, 2] {
        n.open(stored(id, false)).await.unwrap();
        prefill(&n, id, &[900], &[900]).await;
    }
    ready(&n, 1).await;
    ready(&n, 2).await;
    // All that could go would not do: nothing goes.
    let flat = v1::OpenRequest { index: v1::IndexKind::Flat as i32, ..stored(3, false) };
    let e = n.open(v1::OpenRequest { reserve_tokens: 13 * 1024, ..flat }).await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("memory.budget"), "{e}");
    assert_eq!(n.snapshot().spilled_bytes, 0);
    pin(&n, 1).await;
    assert!(told(&n, 1).await.pinned);
    let e = evict(&n, vec![1; 16]).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("is pinned"), "{e}");
    let bytes = 900 * HEADS * ROW;
    assert_eq!(evict(&n, Vec::new()).await.unwrap(), bytes);
    assert_eq!((told(&n, 1).await.spilled_bytes, told(&n, 2).await.spilled_bytes), (0, bytes));
    // A reservation takes the room: the promotion is refused as a whole, with the amount.
    let full = n.snapshot();
    let rows = (full.budget_bytes - full.granted_bytes) / (HEADS * ROW);
    for (id, reserve_tokens) in [(3, rows / 1024 * 1024), (4, rows % 1024 / 128 * 128)] {
        let flat = v1::OpenRequest { index: v1::IndexKind::Flat as i32, ..stored(id, false) };
        n.open(v1::OpenRequest { reserve_tokens, ..flat }).await.unwrap();
    }
    let e = promote(&n, 2).await.unwrap_err();
    let words = format!("promoting the session needs {bytes} bytes");
    assert!(e.code() == Code::ResourceExhausted && e.message().contains(&words), "{e}");
    close(&n, 3).await.unwrap();
    close(&n, 4).await.unwrap();
    assert_eq!(promote(&n, 2).await.unwrap(), bytes);
    unpin(&n, 1).await;
    assert_eq!(evict(&n, vec![1; 16]).await.unwrap(), bytes);
    let e = evict(&n, vec![9; 16]).await.unwrap_err();
    assert_eq!(e.code(), Code::NotFound);
    let e = evict(&node(|_| {}), Vec::new()).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("storage.path (--data)"), "{e}");
}

#[tokio::test]
async fn rows_whose_file_is_damaged_stay_in_ram() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[600], &[600]).await;
    all_stored(&n).await;
    let extents = files(folder.path(), "extents");
    let extent = extents.iter().find(|p| p.extension().is_some_and(|e| e == "kv")).unwrap();
    let mut bytes = std::fs::read(extent).unwrap();
    let at = bytes.len() - 3;
    bytes[at] ^= 1;
    std::fs::write(extent, bytes).unwrap();
    for _ in 0..2 {
        let e = evict(&n, vec![1; 16]).await.unwrap_err();
        assert!(e.code() == Code::DataLoss && e.message().starts_with("1 spans stay in RAM"), "{e}");
        assert_eq!(n.snapshot().spilled_bytes, 600 * (HEADS - 1) * ROW);
        assert_rows(&n, 1, 600).await;
    }
    // It is not tried again.
    assert_eq!(metric(&n.render_metrics(), "recollect_store_errors_total"), 1.0);
}

/// Rows of 1 KiB, so that indexes are a small part of what a session holds.
fn wide() -> v1::Fingerprint {
    fingerprint(2, 4, 2, 16, 496)
}

/// Tokens of a session, and decoded in a round.
const PREFILL: u64 = 3000;
const STEPS: u64 = 110;

/// Sessions in turn: prefill, then three rounds of decode with seals and merges. Returns every answer.
async fn in_turn(n: &Arc<Node>, sessions: u8, mut watch: impl FnMut()) -> Vec<v1::AttendResult> {
    let f = wide();
    let mut all = Vec::new();
    for id in 1..=sessions {
        let request = v1::OpenRequest {
            deterministic: true,
            index: v1::IndexKind::Summary as i32,
            seed: 5,
            durable: id % 3 == 0 && n.store.is_some(),
            reserve_tokens: if id % 4 == 0 { 1000 } else { 0 },
            ..open(id, &f)
        };
        n.open(request).await.unwrap_or_else(|e| panic!("session {id}: {e}, {:?}", n.snapshot()));
        for layer in 0..f.layers {
            for (begin, end, seal) in [(0, 64, 64), (64, PREFILL, PREFILL - 100)] {
                let mut c = chunk(id, &f, layer, begin, end - begin);
                c.seal_to = Some(seal);
                c.q_pos = (begin..end).step_by(8).collect();
                let width = (f.q_heads * f.key_dim) as usize;
                let q: Vec<f16> = (0..c.q_pos.len() * width)
                    .map(|i| f16::from_f32(((i * 31 + usize::from(id)) % 89) as f32 / 89.0 - 0.5))
                    .collect();
                c.q = Some(tensor::from_f16(&[c.q_pos.len(), f.q_heads as usize, f.key_dim as usize], &q));
                n.append(c).await.unwrap();
                watch();
            }
        }
    }
    for round in 0..3 {
        for id in 1..=sessions {
            for position in PREFILL + round * STEPS..PREFILL + (round + 1) * STEPS {
                for layer in 0..f.layers {
                    let mut r = row(id, &f, layer, 0, position + 1, false);
                    r.token = Some(token(&f, layer, position));
                    r.budget = Some(wire::convert::Budget::TopK(30).write());
                    r.estimate = true;
                    let mut answer = n.attend(message(n, vec![r])).await.unwrap().rows.remove(0);
                    assert_eq!(answer.error, None, "session {id} at {position}");
                    answer.stats.as_mut().unwrap().compute_us = 0;
                    // That of a durable session is what is on disk.
                    answer.watermark = 0;
                    all.push(answer);
                    watch();
                }
            }
        }
    }
    all
}

#[tokio::test]
async fn a_workload_of_four_times_the_budget() {
    const SESSIONS: u8 = 8;
    let small = |c: &mut NodeConfig| {
        c.index_min_tokens = 256;
        c.seal_tokens = 150;
    };
    let roomy = node(small);
    let want = in_turn(&roomy, SESSIONS, || ()).await;
    let held = roomy.snapshot();
    let budget = (held.kv_bytes + held.index_bytes + held.scratch_bytes) / 4;
    assert!(held.index_bytes * 2 < budget, "{held:?}");
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |c| {
        small(c);
        c.memory_bytes = budget;
    });
    let within = move |n: &Node| assert!(n.snapshot().granted_bytes <= budget, "{:?}", n.snapshot());
    // Beside what the workload itself sees, from another thread at any time.
    let ended = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let (n, ended) = (n.clone(), ended.clone());
        move || {
            while !ended.load(Ordering::Relaxed) {
                within(&n);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let got = in_turn(&n, SESSIONS, || within(&n)).await;
    ended.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    assert!(got == want, "answers differ");
    let text = n.render_metrics();
    assert!(metric(&text, "recollect_span_spills_total") > 0.0);
    assert_eq!(metric(&text, "recollect_memory_refused_total"), 0.0);
    assert_eq!(metric(&text, "recollect_span_merges_total{result=\"refused\"}"), 0.0);
    assert_eq!(metric(&text, "recollect_index_builds_total{result=\"error\"}"), 0.0);
    println!("{:?} for {held:?}", n.snapshot());
    all_stored(&n).await;
    // Its end and another start, in the same budget: stored spans stay in their files.
    drop(n);
    let n = on(folder.path(), |c| {
        small(c);
        c.memory_bytes = budget;
    });
    let s = n.snapshot();
    assert_eq!((s.sessions, s.refused_sessions), (u64::from(SESSIONS), 0), "{s:?}");
    assert!(s.granted_bytes <= budget && s.spilled_bytes > 2 * budget, "{s:?}");
    for id in 1..=SESSIONS {
        close(&n, id).await.unwrap();
    }
    all_returned(&n).await;
}

/// Every span of a session refers once, at a time.
fn refer(node: &Node, id: u8, now: u64) {
    let session = node.session(&[id; 16], "session").unwrap();
    for (_, _, head) in session.owned() {
        head.read().spans().for_each(|(span, _)| span.history().refer(now, 0.5));
    }
}

#[tokio::test]
async fn what_is_used_again_and_again_comes_back_while_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |c| c.memory_bytes = 8 << 20);
    for id in [1, 2] {
        n.open(stored(id, false)).await.unwrap();
        prefill(&n, id, &[100, 1900, 2000], &[100, 1900]).await;
    }
    for id in [1, 2] {
        // A build gives its working memory back when it ends.
        ready(&n, id).await;
    }
    let before = answers(&n, 1, 2000).await;
    let bytes = 1900 * HEADS * ROW;
    assert_eq!(evict(&n, Vec::new()).await.unwrap(), 2 * bytes);
    // Far ahead of the thread that looks at the real time.
    let (once, twice) = (crate::spill::now() + 1_000_000, crate::spill::now() + 1_010_000);
    refer(&n, 1, once);
    refer(&n, 2, once);
    assert_eq!(n.bring_back(once), 0, "one burst brings nothing back");
    refer(&n, 1, twice);
    let s = n.snapshot();
    let free = s.budget_bytes - s.granted_bytes;
    let part = s.budget_bytes / crate::spill::policy::FREE_PART;
    // All but so much that the part that stays free would be touched.
    let rows = (free - part - bytes / 2) / (HEADS * ROW) / 1024 * 1024;
    let flat = v1::OpenRequest { index: v1::IndexKind::Flat as i32, ..stored(3, false) };
    n.open(v1::OpenRequest { reserve_tokens: rows, ..flat }).await.unwrap();
    let back = n.bring_back(twice);
    let s = n.snapshot();
    assert!(back < bytes && s.budget_bytes - s.granted_bytes >= part, "{back} of {bytes}, {s:?}");
    close(&n, 3).await.unwrap();
    assert_eq!(back + n.bring_back(twice), bytes);
    assert_eq!((told(&n, 1).await.spilled_bytes, told(&n, 2).await.spilled_bytes), (0, bytes));
    assert_eq!(answers(&n, 1, 2000).await, before);
    // It leaves again, and does not return for having been hot before.
    assert_eq!(evict(&n, vec![1; 16]).await.unwrap(), bytes);
    let session = n.session(&[1; 16], "session").unwrap();
    for (_, _, head) in session.owned() {
        head.read().spans().for_each(|(span, _)| span.history().leave(twice));
    }
    assert_eq!(n.bring_back(twice), 0);
}

#[tokio::test]
async fn pins_hold_over_restarts_and_bring_rows_back() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    for id in [1, 2, 3] {
        n.open(stored(id, id == 1)).await.unwrap();
        prefill(&n, id, &[700], &[700]).await;
        pin(&n, id).await;
    }
    unpin(&n, 2).await;
    all_stored(&n).await;
    // A pin of a session that has ended does not bring it back.
    let ended = n.session(&[3; 16], "session").unwrap();
    close(&n, 3).await.unwrap();
    n.store.as_ref().unwrap().pin(&ended, false).unwrap();
    drop((ended, n));
    let n = on(folder.path(), |_| {});
    assert_eq!(watermark(&n, 3).await.unwrap_err().code(), Code::NotFound);
    assert_eq!((told(&n, 1).await.pinned, told(&n, 2).await.pinned), (true, false));
    let e = evict(&n, vec![1; 16]).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("is pinned"), "{e}");
    // The thread that looks for it may be faster than this.
    let bytes = 700 * HEADS * ROW;
    n.bring_back(crate::spill::now());
    until("a pinned session comes back", || n.snapshot().spilled_bytes == bytes).await;
    assert_eq!(told(&n, 2).await.spilled_bytes, bytes);
    assert_rows(&n, 1, 700).await;
    // With no room for a record of it the answer says so, and nothing changes.
    let taken = &n.store.as_ref().unwrap().directory.taken;
    taken.store(u64::MAX, Ordering::Relaxed);
    let e = n.pin(v1::PinRequest { session: vec![2; 16] }).await.unwrap_err();
    assert_eq!(e.code(), Code::ResourceExhausted, "{e}");
    assert!(!told(&n, 2).await.pinned);
}
