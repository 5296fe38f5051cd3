//! What a start finds of what was there before.

use super::*;
use tonic::Code;

#[tokio::test]
async fn a_durable_session_comes_back_with_every_row_and_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let change = |c: &mut NodeConfig| c.seal_tokens = 300;
    let n = on(folder.path(), change);
    n.open(stored(1, true)).await.unwrap();
    prefill(&n, 1, &[100, 1900, 2000], &[100, 1900]).await;
    // Seals at 2,200 and 2,500 and merges them; the last tokens stay fresh.
    assert_eq!(decode(&n, 1, 2000..2630).await, 2630);
    let before = answers(&n, 1, 2630).await;
    let spans = told(&n, 1).await.spans;
    let instance = n.instance();
    // At once: what is sealed but not stored comes back from the log.
    drop(n);
    let n = on(folder.path(), change);
    assert_eq!(watermark(&n, 1).await.unwrap(), 2630);
    assert_ne!(n.instance(), instance);
    assert_rows(&n, 1, 2630).await;
    assert_eq!(answers(&n, 1, 2630).await, before);
    let places = |spans: &[v1::SpanInfo]| -> Vec<_> {
        spans.iter().map(|s| (s.layer, s.kv_head, s.begin, s.end, s.version, s.index, s.width)).collect()
    };
    assert_eq!(places(&told(&n, 1).await.spans), places(&spans));
    // It goes on, and comes back again from extents alone.
    assert_eq!(decode(&n, 1, 2630..2650).await, 2650);
    all_stored(&n).await;
    drop(n);
    let n = on(folder.path(), change);
    assert_eq!(watermark(&n, 1).await.unwrap(), 2650);
    assert_rows(&n, 1, 2650).await;
    let info = told(&n, 1).await;
    assert!(info.durable && info.durable_watermark == 2650);
    close(&n, 1).await.unwrap();
    all_stored(&n).await;
    // A build may still be running.
    let returned = || n.snapshot().granted_bytes == n.snapshot().catalogue_bytes;
    crate::shard::tests::life::until("memory returns", returned).await;
    assert_eq!((files(folder.path(), "extents").len(), files(folder.path(), "logs").len()), (0, 0));
    drop(n);
    let n = on(folder.path(), change);
    assert_eq!(watermark(&n, 1).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_session_in_memory_comes_back_up_to_its_stored_spans() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[700, 800], &[700]).await;
    all_stored(&n).await;
    let info = told(&n, 1).await;
    assert_eq!((info.watermark, info.durable_watermark, info.durable), (800, 700, false));
    assert_eq!(files(folder.path(), "logs").len(), 0);
    drop(n);
    let n = on(folder.path(), |_| {});
    assert_eq!(watermark(&n, 1).await.unwrap(), 700);
    assert_rows(&n, 1, 700).await;
    // It is served from the maps, and goes on from there.
    for layer in 0..2 {
        n.append(sampled(1, layer, 700, 50)).await.unwrap();
    }
    assert_rows(&n, 1, 750).await;
}

#[tokio::test]
async fn full_extents_are_mapped_and_shared() {
    let folder = tempfile::tempdir().unwrap();
    let flat = v1::OpenRequest { index: v1::IndexKind::Flat as i32, ..stored(1, false) };
    let n = on(folder.path(), |_| {});
    n.open(flat).await.unwrap();
    let length = attention::EXTENT_TOKENS as u64 + 900;
    prefill(&n, 1, &[length], &[length]).await;
    all_stored(&n).await;
    assert_eq!(files(folder.path(), "extents").len(), 2 * 4);
    drop(n);
    let n = on(folder.path(), |_| {});
    assert_rows(&n, 1, length).await;
    assert_eq!((n.snapshot().kv_bytes, n.snapshot().spilled_bytes), (0, length * 4 * 56));
}

#[tokio::test]
async fn truncated_tokens_stay_away() {
    for durable in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let n = on(folder.path(), |_| {});
        n.open(stored(1, durable)).await.unwrap();
        prefill(&n, 1, &[100, 900, 1000], &[100, 900]).await;
        all_stored(&n).await;
        // Into a span that is stored, on, into fresh tokens, on.
        assert_eq!(truncate(&n, 1, 500).await, 500);
        decode(&n, 1, 500..520).await;
        assert_eq!(truncate(&n, 1, 510).await, 510);
        drop(n);
        let n = on(folder.path(), |_| {});
        let left = if durable { 510 } else { 500 };
        assert_eq!(watermark(&n, 1).await.unwrap(), left, "durable {durable}");
        assert_rows(&n, 1, left).await;
        // Sealed again over the cut, in another layout.
        for layer in 0..2 {
            let mut c = sampled(1, layer, left, 800);
            c.seal_to = Some(left + 400);
            n.append(c).await.unwrap();
        }
        all_stored(&n).await;
        assert_eq!(truncate(&n, 1, 50).await, 50);
        drop(n);
        let n = on(folder.path(), |_| {});
        assert_eq!(watermark(&n, 1).await.unwrap(), 50);
        assert_rows(&n, 1, 50).await;
    }
}

#[tokio::test]
async fn leases_begin_anew_and_run_out() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    for id in [1, 2] {
        let lease_ms = if id == 1 { 700 } else { 60_000 };
        n.open(v1::OpenRequest { lease_ms, ..stored(id, true) }).await.unwrap();
        prefill(&n, id, &[300], &[200]).await;
    }
    let renewed = n.renew(v1::RenewRequest { session: vec![2; 16], lease_ms: 90_000 }).await.unwrap();
    assert_eq!((renewed.lease_ms, renewed.watermark), (90_000, 300));
    drop(n);
    let n = on(folder.path(), |_| {});
    assert!(told(&n, 2).await.lease_left_ms > 60_000);
    crate::shard::tests::life::until("expiry", || n.snapshot().sessions == 1).await;
    drop(n);
    let n = on(folder.path(), |_| {});
    assert_eq!(watermark(&n, 1).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(watermark(&n, 2).await.unwrap(), 300);
    // The same id may be used again, and meets nothing of its old life.
    n.open(stored(1, true)).await.unwrap();
    assert_eq!(watermark(&n, 1).await.unwrap(), 0);
}

#[tokio::test]
async fn logs_are_dropped_once_their_tokens_are_in_extents() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    n.open(v1::OpenRequest { index: v1::IndexKind::Flat as i32, ..stored(1, true) }).await.unwrap();
    let length = 20_000;
    prefill(&n, 1, &[length / 2, length], &[length]).await;
    all_stored(&n).await;
    // Over a megabyte of log was written; all of it lies in extents.
    assert_eq!(files(folder.path(), "logs").len(), 0);
    drop(n);
    let n = on(folder.path(), |_| {});
    assert_eq!(watermark(&n, 1).await.unwrap(), length);
    assert_eq!(decode(&n, 1, length..length + 3).await, length + 3);
    drop(n);
    let n = on(folder.path(), |_| {});
    assert_eq!(watermark(&n, 1).await.unwrap(), length + 3);
}

#[tokio::test]
async fn durable_without_storage_is_refused() {
    let n = node(|_| {});
    let e = n.open(stored(1, true)).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("storage.path (--data)"), "{e}");
}
