//! Indexes beside extents: read at a start, built again where they cannot be.

use super::*;
use crate::catalogue::records::{HeadRecord, decode as read_record, encode};
use crate::catalogue::sled::Sled;
use crate::catalogue::{Catalogue, Change, Table};
use crate::shard::tests::life::{metric, until};
use std::path::PathBuf;

const HEADS: usize = 4;
const BUILT: &str = "recollect_index_builds_total{result=\"ok\"}";
const LOADED: &str = "recollect_indexes_loaded_total";

/// Until no build or merge is left and all is on disk.
async fn settled(node: &Arc<Node>, id: u8) {
    let wait = v1::WaitReadyRequest { session: vec![id; 16], timeout_ms: 60_000 };
    let ready = node.wait_ready(wait).await.unwrap();
    assert_eq!(ready.spans, ready.ready);
    all_stored(node).await;
}

fn index_files(path: &Path) -> Vec<PathBuf> {
    files(path, "extents").into_iter().filter(|p| p.extension().is_some_and(|e| e == "ix")).collect()
}

/// Indexes built and read since the start.
fn counts(node: &Node) -> (usize, usize) {
    let text = node.render_metrics();
    (metric(&text, BUILT) as usize, metric(&text, LOADED) as usize)
}

/// A directory with one session of 2,000 tokens, one indexed span a head; its answers.
async fn one_session(path: &Path) -> Vec<v1::AttendResult> {
    let n = on(path, |_| {});
    n.open(stored(1, true)).await.unwrap();
    prefill(&n, 1, &[100, 1900, 2000], &[100, 1900]).await;
    let before = answers(&n, 1, 2000).await;
    settled(&n, 1).await;
    drop(n);
    left(path);
    before
}

#[tokio::test]
async fn a_restart_reads_indexes_builds_nothing_and_goes_on_with_the_same_bits() {
    let change = |c: &mut NodeConfig| c.seal_tokens = 300;
    // One that is never stopped, to compare with.
    let twin = node(|c| {
        c.index_min_tokens = 256;
        change(c);
    });
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), change);
    for (node, durable) in [(&twin, false), (&n, true)] {
        node.open(stored(1, durable)).await.unwrap();
        prefill(node, 1, &[100, 1900, 2000], &[100, 1900]).await;
        // Two more spans, merged into one.
        decode(node, 1, 2000..2630).await;
    }
    let before = answers(&n, 1, 2630).await;
    settled(&n, 1).await;
    let (info, memory) = (told(&n, 1).await, n.snapshot());
    let indexed = info.spans.iter().filter(|s| s.index_bytes > 0).count();
    assert_eq!((index_files(folder.path()).len(), indexed), (2 * HEADS, 2 * HEADS));
    drop(n);
    let n = on(folder.path(), change);
    // At once: nothing is waited for.
    assert!(told(&n, 1).await.spans.iter().all(|s| s.ready));
    assert_eq!(counts(&n), (0, indexed));
    assert_eq!(n.snapshot().index_bytes, memory.index_bytes);
    let places = |spans: Vec<v1::SpanInfo>| -> Vec<_> {
        let unspilled = |s| v1::SpanInfo { tier: 0, spilled_bytes: 0, ..s };
        spans.into_iter().map(unspilled).collect()
    };
    assert_eq!(places(told(&n, 1).await.spans), places(info.spans));
    assert_eq!(answers(&n, 1, 2630).await, before);
    // Merges are built with the queries that a build would have kept.
    let watermark_apart = |mut all: Vec<v1::AttendResult>| {
        all.iter_mut().for_each(|a| a.watermark = 0);
        all
    };
    for node in [&twin, &n] {
        decode(node, 1, 2630..3300).await;
    }
    let (got, want) = (answers(&n, 1, 3300).await, answers(&twin, 1, 3300).await);
    assert!(watermark_apart(got) == watermark_apart(want), "answers after merges differ");
    settled(&n, 1).await;
    // Files of spans that were merged or cut off are gone.
    let spans = told(&n, 1).await.spans;
    assert_eq!(index_files(folder.path()).len(), spans.iter().filter(|s| s.index_bytes > 0).count());
    truncate(&n, 1, 90).await;
    all_stored(&n).await;
    assert_eq!(index_files(folder.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn what_cannot_be_used_is_put_away_and_built_again() {
    type Hurt = fn(&Path);
    let cases: [(u64, Hurt); 7] = [
        (1, |p| {
            let mut bytes = std::fs::read(p).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 8;
            std::fs::write(p, bytes).unwrap();
        }),
        (1, |p| {
            let mut bytes = std::fs::read(p).unwrap();
            bytes[8] = 9;
            std::fs::write(p, bytes).unwrap();
        }),
        (1, |p| {
            let bytes = std::fs::read(p).unwrap();
            std::fs::write(p, &bytes[..bytes.len() - 1]).unwrap();
        }),
        (1, |p| std::fs::write(p, "").unwrap()),
        (1, |p| std::fs::write(p, "PK, from elsewhere").unwrap()),
        // The index of another head, under this name.
        (1, |p| {
            let all = index_files(p.parent().unwrap().parent().unwrap());
            std::fs::copy(&all[1], p).unwrap();
        }),
        (0, |p| std::fs::remove_file(p).unwrap()),
    ];
    let root = tempfile::tempdir().unwrap();
    let before = one_session(root.path()).await;
    for (quarantined, hurt) in cases {
        let hurt_one = index_files(root.path()).remove(0);
        hurt(&hurt_one);
        let n = on(root.path(), |_| {});
        assert_eq!(answers(&n, 1, 2000).await, before);
        settled(&n, 1).await;
        assert_eq!(counts(&n), (1, HEADS - 1));
        assert_eq!((n.snapshot().quarantined_files, n.snapshot().refused_sessions), (quarantined, 0));
        let now = index_files(root.path());
        assert!(now.len() == HEADS && !now.contains(&hurt_one), "{now:?}");
        drop(n);
        left(root.path());
    }
    let n = on(root.path(), |_| {});
    assert_eq!(counts(&n), (0, HEADS));
    assert_eq!(answers(&n, 1, 2000).await, before);
}

#[tokio::test]
async fn indexes_of_another_model_are_never_used() {
    let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = one_session(ours.path()).await;
    let n = on(other.path(), |_| {});
    let mut o = stored(1, true);
    o.fingerprint.as_mut().unwrap().weight_revision = "another".into();
    n.open(o).await.unwrap();
    prefill(&n, 1, &[100, 1900, 2000], &[100, 1900]).await;
    settled(&n, 1).await;
    drop(n);
    left(other.path());
    // Files are numbered as they are written, so the same name need not be there.
    for theirs in index_files(other.path()) {
        let to = ours.path().join("extents").join(theirs.file_name().unwrap());
        if to.exists() {
            std::fs::copy(&theirs, to).unwrap();
        }
    }
    let n = on(ours.path(), |_| {});
    assert_eq!(answers(&n, 1, 2000).await, before);
    let (built, loaded) = counts(&n);
    assert_eq!((built + loaded, n.snapshot().quarantined_files), (HEADS, built as u64));
    assert!(built > 0, "no file had the name of another");
}

#[tokio::test]
async fn a_directory_from_before_index_files_starts_and_gets_them() {
    let root = tempfile::tempdir().unwrap();
    let before = one_session(root.path()).await;
    {
        let catalogue = Sled::open(&root.path().join("catalogue"), 1 << 20).unwrap();
        let changes = catalogue.scan(Table::Spans, &[]).unwrap().into_iter().map(|(key, value)| {
            let mut record: HeadRecord = read_record("spans", &value).unwrap();
            record.spans.iter_mut().for_each(|s| s.index = 0);
            Change::Put(Table::Spans, key, encode(&record))
        });
        catalogue.apply(&changes.collect::<Vec<_>>()).unwrap();
    }
    index_files(root.path()).iter().for_each(|p| std::fs::remove_file(p).unwrap());
    let n = on(root.path(), |_| {});
    assert_eq!(answers(&n, 1, 2000).await, before);
    settled(&n, 1).await;
    assert_eq!((counts(&n), index_files(root.path()).len()), ((HEADS, 0), HEADS));
    drop(n);
    assert_eq!(counts(&on(root.path(), |_| {})), (0, HEADS));
}

#[tokio::test]
async fn another_recall_is_built_for_again() {
    let root = tempfile::tempdir().unwrap();
    one_session(root.path()).await;
    let old = index_files(root.path());
    let lower = |c: &mut NodeConfig| c.index_recall = 0.8;
    let n = on(root.path(), lower);
    settled(&n, 1).await;
    assert_eq!((counts(&n), n.snapshot().quarantined_files), ((HEADS, 0), 0));
    let new = index_files(root.path());
    assert!(new.len() == HEADS && new.iter().all(|p| !old.contains(p)), "{new:?}");
    drop(n);
    let n = on(root.path(), lower);
    assert_eq!(counts(&n), (0, HEADS));
    let wanted = told(&n, 1).await.spans.into_iter().filter_map(|s| s.recall_target);
    assert!(wanted.eq([0.8; HEADS]));
}

#[tokio::test]
async fn an_index_for_which_there_is_no_memory_costs_no_rows() {
    let root = tempfile::tempdir().unwrap();
    one_session(root.path()).await;
    let n = on(root.path(), |_| {});
    let held = n.snapshot();
    drop(n);
    // Room for all but half of the indexes.
    let rest = held.granted_bytes - held.catalogue_bytes - held.index_bytes / 2;
    let budget = rest + rest / 15;
    let n = on(root.path(), |c| c.memory_bytes = budget);
    let s = n.snapshot();
    assert!(s.granted_bytes <= budget && counts(&n).1 < HEADS, "{s:?}");
    assert_rows(&n, 1, 2000).await;
    until("builds end", || n.snapshot().builds_pending == 0).await;
    assert_eq!((n.snapshot().quarantined_files, n.snapshot().refused_sessions), (0, 0));
    drop(n);
    let n = on(root.path(), |_| {});
    assert_eq!(counts(&n), (0, HEADS), "their files are still there");
}
