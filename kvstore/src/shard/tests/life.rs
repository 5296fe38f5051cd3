//! Memory, leases, deadlines, indexes in the background, figures.

use super::*;
use std::time::Duration;

fn close(id: u8) -> v1::CloseRequest {
    v1::CloseRequest { session: vec![id; 16] }
}

/// Waits for what happens in the background.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}

#[tokio::test]
async fn memory_is_counted_refused_and_returned() {
    let f = fingerprint(1, 2, 2, 8, 8);
    let (row_bytes, heads) = (32, 2);
    let n = node(|c| c.memory_bytes = 128 * 32 * 2 * 3);
    let mut o = open(1, &f);
    o.index = v1::IndexKind::Flat as i32;
    o.reserve_tokens = 129;
    let opened = n.open(o.clone()).await.unwrap();
    assert_eq!(opened.reserved_bytes, 256 * row_bytes * heads);
    o.session = vec![2; 16];
    let e = n.open(o.clone()).await.unwrap_err();
    assert_eq!(e.code(), Code::ResourceExhausted);
    let words = "needs 16384 bytes, 8192 are available of memory.budget (--memory) = 24576";
    assert!(e.message().contains(words), "{e}");
    // Inside the reservation, then beyond it, then beyond the budget.
    n.append(chunk(1, &f, 0, 0, 256)).await.unwrap();
    assert_eq!(n.snapshot().granted_bytes, 16384);
    n.append(chunk(1, &f, 0, 256, 128)).await.unwrap();
    assert_eq!(n.snapshot().granted_bytes, 24576);
    let before = n.snapshot();
    let e = n.append(chunk(1, &f, 0, 384, 1)).await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("memory.budget"), "{e}");
    let mut r = row(1, &f, 0, 0, 385, true);
    r.token = Some(token(&f, 0, 384));
    let e = refused(&n, r).await;
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("rows[0].token"), "{e}");
    assert_eq!(n.snapshot(), before);
    assert_exact(&f, &ask(&n, row(1, &f, 0, 0, 384, false)).await, 0, 0, 384);
    assert_eq!(n.close(close(1)).await.unwrap().freed_bytes, 24576);
    let after = n.snapshot();
    assert_eq!((after.granted_bytes, after.kv_bytes, after.sessions), (0, 0, 0));
    assert_eq!(n.close(close(1)).await.unwrap_err().code(), Code::NotFound);
    n.open(o).await.unwrap();
}

#[tokio::test]
async fn a_lease_that_runs_out_ends_the_session() {
    let f = fingerprint(1, 1, 1, 4, 4);
    let n = node(|_| {});
    let mut o = open(1, &f);
    o.lease_ms = 30;
    filled(&n, &f, o, 10, &[5]).await;
    let renewed = n.renew(v1::RenewRequest { session: vec![1; 16], lease_ms: 40 });
    assert_eq!(renewed.await.unwrap().lease_ms, 40);
    until("expiry", || n.snapshot().sessions == 0).await;
    let e = refused(&n, row(1, &f, 0, 0, 1, true)).await;
    assert!(e.code() == Code::NotFound && e.message().contains("expired"), "{e}");
    assert_eq!(n.snapshot().granted_bytes, 0);
    // The same worker may come back with the same id.
    filled(&n, &f, open(1, &f), 10, &[5]).await;
}

#[tokio::test]
async fn out_of_time_is_declared() {
    let f = fingerprint(1, 2, 1, 4, 4);
    let n = node(|_| {});
    filled(&n, &f, open(1, &f), 50, &[20]).await;
    let mut m = message(&n, vec![row(1, &f, 0, 0, 51, false)]);
    m.rows[0].token = Some(token(&f, 0, 50));
    m.deadline_us = 1;
    let r = n.attend(m).await.unwrap().rows.remove(0);
    let stats = r.stats.unwrap();
    assert!(stats.deadline_hit && r.error.is_none());
    assert_eq!(stats.missing_tokens, 51);
    assert!(floats(&r.m).iter().all(|&m| m == f32::NEG_INFINITY));
    assert!(mass(&r).iter().all(|&l| l == 0.0) && floats(&r.o).iter().all(|&o| o == 0.0));
    // The token was stored all the same.
    assert_exact(&f, &ask(&n, row(1, &f, 0, 0, 51, false)).await, 0, 0, 51);
    // With time enough the bits are those of a message without a deadline.
    let mut m = message(&n, vec![row(1, &f, 0, 0, 51, false)]);
    m.deadline_us = 60_000_000;
    let r = n.attend(m.clone()).await.unwrap().rows.remove(0);
    let without = ask(&n, row(1, &f, 0, 0, 51, false)).await;
    assert_eq!((r.o, r.m, r.l_exact), (without.o, without.m, without.l_exact));
    m.deadline_us = u64::MAX;
    assert_exact(&f, &n.attend(m).await.unwrap().rows[0], 0, 0, 51);
}

#[tokio::test]
async fn answers_come_before_the_index_and_after_it() {
    let f = fingerprint(1, 2, 1, 16, 16);
    let n = node(|_| {});
    filled(&n, &f, open(1, &f), 4000, &[3900]).await;
    assert_exact(&f, &ask(&n, row(1, &f, 0, 0, 4000, false)).await, 0, 0, 4000);
    let ready = n.wait_ready(v1::WaitReadyRequest { session: vec![1; 16], timeout_ms: 60_000 });
    let ready = ready.await.unwrap();
    assert_eq!((ready.spans, ready.ready), (1, 1));
    assert_exact(&f, &ask(&n, row(1, &f, 0, 0, 4000, false)).await, 0, 0, 4000);
    let snapshot = n.snapshot();
    assert!(snapshot.index_bytes > 0 && snapshot.scratch_bytes == 0, "{snapshot:?}");
}

#[tokio::test]
async fn closing_while_indexes_build_returns_everything() {
    let f = fingerprint(4, 1, 1, 16, 16);
    let n = node(|_| {});
    filled(&n, &f, open(1, &f), 3000, &[2900]).await;
    n.close(close(1)).await.unwrap();
    until("builds end", || n.snapshot().builds_pending == 0).await;
    until("memory returns", || n.snapshot().granted_bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_token_is_seen_at_once_under_load() {
    let f = fingerprint(1, 1, 1, 8, 8);
    let n = node(|c| c.seal_tokens = 16);
    let mut tasks = Vec::new();
    for id in 1..=4 {
        let (n, f) = (n.clone(), f.clone());
        tasks.push(tokio::spawn(async move {
            n.open(open(id, &f)).await.unwrap();
            for t in 0..100 {
                let ack = n.append(chunk(id, &f, 0, t, 1)).await.unwrap();
                assert_eq!(ack.watermark, t + 1);
                let r = ask(&n, row(id, &f, 0, 0, t + 1, true)).await;
                assert_eq!(mass(&r), [t as f32 + 1.0]);
            }
            n.close(v1::CloseRequest { session: vec![id; 16] }).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(n.snapshot().granted_bytes, 0);
}

/// The value of a metric line, labels included in the name.
pub fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_scripted_workload_and_every_metric() {
    let f = fingerprint(2, 2, 2, 16, 16);
    let n = node(|c: &mut NodeConfig| c.queue = 4);
    let idle = n.render_metrics();
    filled(&n, &f, open(1, &f), 2000, &[100, 1900]).await; // 6 chunks, 4 sinks, 4 spans
    n.append(chunk(1, &f, 0, 7, 1)).await.unwrap_err();
    for position in 2000..2010 {
        let mut r = row(1, &f, 0, 0, position + 1, false);
        r.token = Some(token(&f, 0, position));
        ask(&n, r).await;
    }
    refused(&n, row(1, &f, 0, 0, 99_999, false)).await;
    let three = vec![row(1, &f, 0, 0, 9, false); 3];
    n.attend(message(&n, three)).await.unwrap_err();
    let mut late = message(&n, vec![row(1, &f, 1, 0, 2000, false)]);
    late.deadline_us = 1;
    n.attend(late).await.unwrap();
    let mut big = open(2, &f);
    big.reserve_tokens = 1 << 40;
    n.open(big).await.unwrap_err();
    n.wait_ready(v1::WaitReadyRequest { session: vec![1; 16], timeout_ms: 60_000 }).await.unwrap();
    let text = n.render_metrics();
    let told = told(&n, 1).await;
    for (name, value) in [
        ("recollect_attend_rows_total{result=\"ok\"}", 11.0),
        ("recollect_attend_rows_total{result=\"error\"}", 1.0),
        ("recollect_attend_missing_tokens_total", 2000.0),
        ("recollect_attend_refused_total", 1.0),
        ("recollect_attend_queue_tasks", 0.0),
        ("recollect_attend_seconds_count", 12.0),
        ("recollect_appended_head_tokens_total{path=\"append\"}", 8000.0),
        ("recollect_appended_head_tokens_total{path=\"decode\"}", 20.0),
        ("recollect_append_chunks_total{result=\"ok\"}", 6.0),
        ("recollect_append_chunks_total{result=\"error\"}", 1.0),
        ("recollect_sessions", 1.0),
        ("recollect_sessions_opened_total", 1.0),
        ("recollect_sessions_ended_total{reason=\"close\"}", 0.0),
        ("recollect_sessions_ended_total{reason=\"lease\"}", 0.0),
        // 1,900 sealed and 110 or 100 fresh, held in steps of 128, for two heads of each layer.
        ("recollect_memory_bytes{kind=\"kv\"}", 4.0 * (1900.0 + 128.0) * 64.0),
        ("recollect_memory_bytes{kind=\"index\"}", told.index_bytes as f64),
        // One decode query in four is kept: three for each of two heads.
        ("recollect_memory_bytes{kind=\"scratch\"}", 6.0 * (16.0 + 2.0 * 16.0)),
        ("recollect_memory_refused_total", 1.0),
        ("recollect_spans_sealed_total", 8.0),
        ("recollect_index_builds_total{result=\"ok\"}", 4.0),
        ("recollect_index_builds_total{result=\"error\"}", 0.0),
        ("recollect_index_builds_total{result=\"cancelled\"}", 0.0),
        ("recollect_index_build_seconds_count", 4.0),
        ("recollect_index_builds_pending", 0.0),
        ("recollect_span_merges_total{result=\"ok\"}", 0.0),
        ("recollect_span_merges_total{result=\"refused\"}", 0.0),
        ("recollect_span_merges_total{result=\"error\"}", 0.0),
        ("recollect_span_merges_total{result=\"cancelled\"}", 0.0),
        ("recollect_span_merge_seconds_count", 0.0),
    ] {
        assert_eq!(metric(&text, name), value, "{name}");
        if !name.contains("memory") {
            assert_eq!(metric(&idle, name), 0.0, "{name} when idle");
        }
    }
    n.close(close(1)).await.unwrap();
    let text = n.render_metrics();
    assert_eq!(metric(&text, "recollect_sessions_ended_total{reason=\"close\"}"), 1.0);
    assert_eq!(metric(&text, "recollect_memory_granted_bytes"), 0.0);
}
