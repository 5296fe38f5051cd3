//! Damaged, foreign and missing files; no room.

use super::*;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use tonic::Code;

/// A directory with session 1 to be hurt and session 2 to be served all the same.
async fn two_sessions(path: &Path) {
    let n = on(path, |_| {});
    for id in [1, 2] {
        n.open(stored(id, true)).await.unwrap();
        prefill(&n, id, &[100, 900, 950], &[100, 900]).await;
        all_stored(&n).await;
    }
    drop(n);
    left(path);
}

/// Session 2 is served, session 1 is refused in words; closing it removes it.
async fn assert_refused(path: &Path, words: &str, quarantined: u64) {
    let n = on(path, |_| {});
    assert_rows(&n, 2, 950).await;
    for e in [watermark(&n, 1).await.unwrap_err(), n.append(sampled(1, 0, 950, 1)).await.unwrap_err()] {
        assert!(e.code() == Code::DataLoss && e.message().contains(words), "{words}: {e}");
        assert!(!e.message().contains('\n'));
    }
    assert_eq!(n.open(stored(1, true)).await.unwrap_err().code(), Code::AlreadyExists);
    let told = n.inspect(v1::InspectRequest::default()).await.unwrap();
    assert_eq!((told.sessions.len(), told.refused.len(), told.quarantined_files), (1, 1, quarantined));
    assert!(told.refused[0].reason.contains(words));
    assert_eq!(files(path, "quarantine").len() as u64, quarantined);
    let text = n.render_metrics();
    assert_eq!(
        crate::shard::tests::life::metric(&text, "recollect_store_quarantined_files"),
        quarantined as f64
    );
    assert_eq!(crate::shard::tests::life::metric(&text, "recollect_sessions_refused"), 1.0);
    close(&n, 1).await.unwrap();
    n.open(stored(1, true)).await.unwrap();
    drop(n);
    let n = on(path, |_| {});
    assert_rows(&n, 2, 950).await;
    assert_eq!(watermark(&n, 1).await.unwrap(), 0);
}

/// A file of session 1: the oldest of its kind.
fn first(path: &Path, folder: &str, ending: &str) -> PathBuf {
    let all = files(path, folder);
    all.into_iter().find(|p| p.extension().is_some_and(|e| e == ending)).unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn damaged_files_are_put_away_and_their_session_is_refused() {
    type Hurt = fn(&Path);
    let cases: [(&str, &str, &str, Hurt); 7] = [
        ("extents", "kv", "is gone or damaged", |p| flip(p, 5000)),
        ("extents", "kv", "is gone or damaged", |p| flip(p, 70)),
        ("extents", "kv", "is gone or damaged", |p| std::fs::write(p, "").unwrap()),
        ("extents", "kv", "is gone or damaged", |p| std::fs::write(p, "PK, from elsewhere").unwrap()),
        ("extents", "kv", "is gone or damaged", |p| {
            let bytes = std::fs::read(p).unwrap();
            std::fs::write(p, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("logs", "log", "does not match its checksum", |p| flip(p, 400)),
        ("logs", "log", "format version 7", |p| {
            let mut bytes = std::fs::read(p).unwrap();
            bytes[8] = 7;
            std::fs::write(p, bytes).unwrap();
        }),
    ];
    for (folder, ending, words, hurt) in cases {
        let root = tempfile::tempdir().unwrap();
        two_sessions(root.path()).await;
        hurt(&first(root.path(), folder, ending));
        assert_refused(root.path(), words, 1).await;
    }
}

#[tokio::test]
async fn queries_that_are_gone_lose_no_token() {
    for gone in [false, true] {
        let root = tempfile::tempdir().unwrap();
        two_sessions(root.path()).await;
        let queries = first(root.path(), "extents", "q");
        match gone {
            true => std::fs::remove_file(queries).unwrap(),
            false => flip(&queries, 300),
        }
        let n = on(root.path(), |_| {});
        let s = n.snapshot();
        assert_eq!((s.sessions, s.refused_sessions, s.quarantined_files), (2, 0, u64::from(!gone)));
        for id in [1, 2] {
            assert!(n.session(&[id; 16], "session").is_ok());
        }
    }
}

#[tokio::test]
async fn missing_and_exchanged_files_are_found() {
    let root = tempfile::tempdir().unwrap();
    two_sessions(root.path()).await;
    std::fs::remove_file(first(root.path(), "extents", "kv")).unwrap();
    assert_refused(root.path(), "is gone or damaged", 0).await;

    // A whole file under the name of another: the id inside tells.
    let root = tempfile::tempdir().unwrap();
    two_sessions(root.path()).await;
    let all = files(root.path(), "extents");
    let kv: Vec<&PathBuf> = all.iter().filter(|p| p.extension().is_some_and(|e| e == "kv")).collect();
    std::fs::copy(kv[1], kv[0]).unwrap();
    assert_refused(root.path(), "is gone or damaged", 1).await;
}

#[tokio::test]
async fn files_that_belong_to_nobody_are_cleaned_or_put_away() {
    let root = tempfile::tempdir().unwrap();
    two_sessions(root.path()).await;
    let kv = first(root.path(), "extents", "kv");
    let extents = root.path().join("extents");
    // A duplicate, something foreign, a file that was never published.
    std::fs::copy(&kv, extents.join("copy of an extent.kv")).unwrap();
    std::fs::copy(&kv, extents.join("00000000000fffff.kv")).unwrap();
    std::fs::write(extents.join("README"), "hello").unwrap();
    std::fs::write(extents.join("0000000000000099.kv.tmp"), "half").unwrap();
    std::fs::write(root.path().join("logs/notes"), "hello").unwrap();
    let n = on(root.path(), |_| {});
    assert_rows(&n, 1, 950).await;
    assert_rows(&n, 2, 950).await;
    assert_eq!(n.snapshot().quarantined_files, 4);
    assert!(files(root.path(), "extents").iter().all(|p| !p.to_str().unwrap().ends_with("tmp")));
}

#[tokio::test]
async fn extents_of_another_model_are_never_served() {
    // Two directories that were filled alike, but by another weight revision.
    let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    two_sessions(ours.path()).await;
    let n = on(other.path(), |_| {});
    for id in [1, 2] {
        let mut o = stored(id, true);
        o.fingerprint.as_mut().unwrap().weight_revision = "another".into();
        n.open(o).await.unwrap();
        prefill(&n, id, &[100, 900, 950], &[100, 900]).await;
        all_stored(&n).await;
    }
    drop(n);
    left(other.path());
    let theirs = first(other.path(), "extents", "kv");
    std::fs::copy(&theirs, ours.path().join("extents").join(theirs.file_name().unwrap())).unwrap();
    assert_refused(ours.path(), "fingerprint is another one", 1).await;
}

#[tokio::test]
async fn a_damaged_catalogue_is_put_away_and_the_server_starts() {
    let root = tempfile::tempdir().unwrap();
    two_sessions(root.path()).await;
    let db = root.path().join("catalogue/db");
    let bytes = std::fs::read(&db).unwrap();
    std::fs::write(&db, &bytes[..bytes.len() / 7]).unwrap();
    let n = on(root.path(), |_| {});
    let e = watermark(&n, 1).await.unwrap_err();
    assert!(e.code() == Code::NotFound && e.message().contains("or lost: 4 damaged"), "{e}");
    // Catalogue, stamp, extents, logs; nothing is deleted.
    assert_eq!(files(root.path(), "quarantine").len(), 4);
    n.open(stored(1, true)).await.unwrap();
    prefill(&n, 1, &[300], &[300]).await;
    drop(n);
    let n = on(root.path(), |_| {});
    assert_rows(&n, 1, 300).await;
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_reads_go_on() {
    let root = tempfile::tempdir().unwrap();
    let n = on(root.path(), |_| {});
    n.open(stored(1, true)).await.unwrap();
    n.open(stored(2, false)).await.unwrap();
    prefill(&n, 1, &[300], &[]).await;
    let taken = &n.store.as_ref().unwrap().directory.taken;
    taken.store(u64::MAX, Ordering::Relaxed);
    let e = n.append(sampled(1, 0, 300, 10)).await.unwrap_err();
    assert!(e.code() == Code::ResourceExhausted && e.message().contains("storage.path (--data)"), "{e}");
    let mut r = row(1, &model(), 0, 0, 301, false);
    r.token = Some(token(&model(), 0, 300));
    let e = crate::shard::tests::refused(&n, r).await;
    assert_eq!(e.code(), Code::ResourceExhausted, "{e}");
    assert_eq!(n.open(stored(3, true)).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_rows(&n, 1, 300).await;
    // A session in memory is served from there; its spans wait.
    prefill(&n, 2, &[600], &[600]).await;
    assert_rows(&n, 2, 600).await;
    crate::shard::tests::life::until("a failure", || {
        crate::shard::tests::life::metric(&n.render_metrics(), "recollect_store_errors_total") > 0.0
    })
    .await;
    assert!(n.snapshot().unstored_heads > 0);
    // Ending a session needs no room; with room again all goes on.
    taken.store(0, Ordering::Relaxed);
    all_stored(&n).await;
    prefill_on(&n, 1, 300, 10).await;
    drop(n);
    let n = on(root.path(), |_| {});
    assert_rows(&n, 1, 310).await;
    assert_rows(&n, 2, 600).await;
}

async fn prefill_on(n: &Arc<Node>, id: u8, begin: u64, tokens: u64) {
    for layer in 0..model().layers {
        let ack = n.append(sampled(id, layer, begin, tokens)).await.unwrap();
        assert_eq!(ack.layer_end, begin + tokens);
    }
}

#[tokio::test]
async fn a_budget_that_has_shrunk_is_named() {
    let root = tempfile::tempdir().unwrap();
    two_sessions(root.path()).await;
    let n = on(root.path(), |c| c.memory_bytes = 50_000);
    let served = [watermark(&n, 1).await, watermark(&n, 2).await];
    let refused: Vec<_> = served.iter().filter_map(|w| w.as_ref().err()).collect();
    assert!(!refused.is_empty(), "both fit");
    for e in refused {
        assert!(e.code() == Code::ResourceExhausted && e.message().contains("memory.budget"), "{e}");
    }
    drop(n);
    // Nothing was lost.
    let n = on(root.path(), |_| {});
    assert_rows(&n, 1, 950).await;
    assert_rows(&n, 2, 950).await;
}

/// The segments of session 1, in order.
fn segments(path: &Path) -> Vec<PathBuf> {
    let all = files(path, "logs");
    let session = |p: &PathBuf| p.file_name().unwrap().to_str().unwrap()[..16].to_owned();
    let first = session(&all[0]);
    all.into_iter().filter(|p| session(p) == first).collect()
}

#[tokio::test]
async fn an_unfinished_record_is_cut_off_and_a_gap_is_found() {
    let root = tempfile::tempdir().unwrap();
    two_sessions(root.path()).await;
    let last = segments(root.path()).pop().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    // In the middle of the last record, the last tokens of layer 1: a write that was cut short.
    std::fs::write(&last, &bytes[..bytes.len() - 9]).unwrap();
    for _ in 0..2 {
        let n = on(root.path(), |_| {});
        assert_eq!((watermark(&n, 1).await.unwrap(), n.snapshot().quarantined_files), (900, 0));
        assert_rows(&n, 1, 900).await;
    }
    let n = on(root.path(), |_| {});
    assert_eq!(truncate(&n, 1, 900).await, 900);
    for begin in (900..1200).step_by(60) {
        prefill_on(&n, 1, begin, 60).await;
    }
    drop(n);
    let n = on(root.path(), |_| {});
    assert_rows(&n, 1, 1200).await;
    drop(n);
    left(root.path());
    // Cut short where others follow, and one that is gone from the middle.
    for hurt in [
        |p: &Path| std::fs::File::options().write(true).open(p).unwrap().set_len(200).unwrap(),
        |p: &Path| {
            std::fs::remove_file(p).unwrap();
        },
    ] {
        let hurt_root = tempfile::tempdir().unwrap();
        crate::store::tests::crash::copy(root.path(), hurt_root.path());
        let segments = segments(hurt_root.path());
        assert!(segments.len() >= 3, "{segments:?}");
        hurt(&segments[segments.len() - 2]);
        let n = on(hurt_root.path(), |_| {});
        let e = watermark(&n, 1).await.unwrap_err();
        assert!(e.code() == Code::DataLoss && e.message().contains("lost"), "{e}");
        assert_rows(&n, 2, 950).await;
    }
}
