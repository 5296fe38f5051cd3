//! Rows that leave the host, come back when somebody reads them, and what goes wrong on the way.

use super::*;
use crate::ArchiveSettings;
use crate::shard::tests::life::{metric, until};
use crate::testing::floats;
use tonic::Code;

const ROW: u64 = 56;
const HEADS: u64 = 4;

fn settings(url: String) -> ArchiveSettings {
    ArchiveSettings {
        timeout: Duration::from_millis(400),
        retries: 1,
        ..ArchiveSettings::new(&url, Duration::ZERO, 0)
    }
}

fn local(folder: &Path) -> ArchiveSettings {
    settings(format!("file://{}", folder.join("archive").display()))
}

/// A node on `data` with an archive beside it.
fn with_archive(folder: &Path, change: impl Fn(&mut NodeConfig)) -> Arc<Node> {
    on(&folder.join("data"), |c| {
        c.archive = Some(local(folder));
        change(c);
    })
}

async fn archive(node: &Arc<Node>, session: Vec<u8>) -> Result<v1::EvictResponse, tonic::Status> {
    node.evict(v1::EvictRequest { session, tier: v1::Tier::Archived.into(), ..Default::default() }).await
}

/// Objects of all directories.
fn objects(folder: &Path) -> Vec<std::path::PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => walk(&entry.path(), found),
                false => found.push(entry.path()),
            }
        }
    }
    let mut found = Vec::new();
    walk(&folder.join("archive"), &mut found);
    found
}

/// Extent files here.
fn extents(folder: &Path) -> usize {
    let all = files(&folder.join("data"), "extents");
    all.iter().filter(|p| p.extension().is_some_and(|e| e == "kv")).count()
}

#[tokio::test]
async fn an_archived_span_comes_back_when_it_is_read_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let n = with_archive(path, |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[100, 1900, 2000], &[100, 1900]).await;
    let before = answers(&n, 1, 2000).await;
    let bytes = 1900 * HEADS * ROW;
    let index = n.snapshot().index_bytes;
    let moved = archive(&n, vec![1; 16]).await.unwrap();
    assert_eq!((moved.archived_bytes, moved.freed_bytes), (bytes, bytes + index));
    let s = n.snapshot();
    assert_eq!((s.archived_bytes, s.spilled_bytes, s.kv_bytes), (bytes, 0, 128 * HEADS * ROW));
    assert!(index > 0 && s.index_bytes == 0);
    assert_eq!((objects(path).len(), extents(path)), (2 * HEADS as usize, 0));
    let info = told(&n, 1).await;
    assert_eq!((info.archived_bytes, info.spilled_bytes), (bytes, 0));
    assert!(info.spans.iter().all(|s| s.tier() == v1::Tier::Archived && s.archived_bytes > 0));
    // The index is told of, though it lies in its file.
    assert!(info.spans.iter().any(|s| s.recall.is_some() && s.index_bytes == 0));
    assert_eq!(metric(&n.render_metrics(), "recollect_archived_bytes"), bytes as f64);
    assert_eq!(metric(&n.render_metrics(), "recollect_span_archives_total"), 2.0 * HEADS as f64);
    // What is not asked for stays there.
    let f = model();
    let tail = row(1, &f, 0, 1900, 2000, false);
    let tail = n.attend(message(&n, vec![tail])).await.unwrap().rows.remove(0);
    assert_eq!((tail.error, n.snapshot().archived_bytes), (None, bytes));
    assert_eq!(answers(&n, 1, 2000).await, before);
    let s = n.snapshot();
    assert_eq!((s.archived_bytes, s.spilled_bytes, s.index_bytes), (0, bytes, index));
    assert_eq!(metric(&n.render_metrics(), "recollect_span_revivals_total"), 2.0 * HEADS as f64);
    assert_eq!(metric(&n.render_metrics(), "recollect_indexes_loaded_total"), HEADS as f64);
    assert_eq!(metric(&n.render_metrics(), "recollect_archive_errors_total"), 0.0);
    // Once more: the objects are still there, so that nothing is written. Rows are read, then all is promoted.
    assert_eq!(archive(&n, Vec::new()).await.unwrap().archived_bytes, bytes);
    assert_rows(&n, 1, 2000).await;
    assert_eq!(archive(&n, Vec::new()).await.unwrap().archived_bytes, bytes);
    let promoted = n.promote(v1::PromoteRequest { session: vec![1; 16] }).await.unwrap().promoted_bytes;
    assert_eq!((promoted, n.snapshot().archived_bytes, n.snapshot().spilled_bytes), (bytes, 0, 0));
    assert_eq!(answers(&n, 1, 2000).await, before);
    // What is cut off goes from the archive too, and all at the end.
    assert_eq!(archive(&n, vec![1; 16]).await.unwrap().freed_bytes, bytes + index);
    assert_eq!(truncate(&n, 1, 50).await, 50);
    until("objects of what was cut off go", || objects(path).len() == HEADS as usize).await;
    assert_rows(&n, 1, 50).await;
    close(&n, 1).await.unwrap();
    until("all objects go", || objects(path).is_empty()).await;
    let s = n.snapshot();
    assert_eq!((s.archived_bytes, s.spilled_bytes, s.granted_bytes), (0, 0, s.catalogue_bytes));
}

#[tokio::test]
async fn a_start_finds_what_is_in_the_archive_and_removes_what_nobody_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let n = with_archive(path, |_| {});
    n.open(stored(1, true)).await.unwrap();
    prefill(&n, 1, &[100, 1900, 2000], &[100, 1900]).await;
    decode(&n, 1, 2000..2003).await;
    let before = answers(&n, 1, 2003).await;
    let bytes = archive(&n, vec![1; 16]).await.unwrap().archived_bytes;
    drop(n);
    left(&path.join("data"));
    // A crash between upload and catalogue leaves an object under a number that nobody knows; others have objects too.
    let known = objects(path);
    let of_session = known[0].parent().unwrap();
    let unknown = of_session.join(format!("{:016x}.kv", 1u64 << 40));
    std::fs::write(&unknown, "half").unwrap();
    let foreign = path.join("archive/0123/4567/89ab.kv");
    std::fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    std::fs::write(&foreign, "another directory's").unwrap();
    // One between catalogue and removal leaves the file; one that is damaged is no loss.
    let id = known[0].file_name().unwrap();
    std::fs::copy(&known[0], path.join("data/extents").join(id)).unwrap();
    let id = known[1].file_name().unwrap();
    std::fs::write(path.join("data/extents").join(id), "damaged").unwrap();
    let n = with_archive(path, |_| {});
    let s = n.snapshot();
    assert_eq!((s.sessions, s.refused_sessions, s.quarantined_files), (1, 0, 1));
    assert!(s.archived_bytes < bytes && s.archived_bytes + s.spilled_bytes == bytes, "{s:?}");
    until("what nobody needs goes", || !unknown.exists()).await;
    assert!(foreign.exists());
    // Indexes are read from their files or built from what comes back: the answers are the same.
    assert_eq!(answers(&n, 1, 2003).await, before);
    assert_rows(&n, 1, 2003).await;
    let text = n.render_metrics();
    let built = metric(&text, "recollect_index_builds_total{result=\"ok\"}");
    assert_eq!(built + metric(&text, "recollect_indexes_loaded_total"), HEADS as f64);
    assert_eq!(objects(path).len(), known.len() + 1);
    archive(&n, vec![1; 16]).await.unwrap();
    drop(n);
    left(&path.join("data"));
    // Without the archive the rest of the session is served.
    let n = on(&path.join("data"), |_| {});
    let read = |begin, end| {
        let request = v1::ReadRowsRequest { session: vec![1; 16], layer: 0, kv_head: 0, begin, end };
        let n = n.clone();
        async move { n.read_rows(request).await }
    };
    read(1900, 2003).await.unwrap();
    let e = read(0, 2000).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("--archive"), "{e}");
    assert!(!e.message().contains('\n'));
    let e = archive(&n, Vec::new()).await.unwrap_err();
    assert!(e.code() == Code::FailedPrecondition && e.message().contains("--archive"), "{e}");
}

/// Decodes a token over everything; the row as it was answered.
async fn step(node: &Arc<Node>, id: u8, position: u64, deadline_us: u64) -> v1::AttendResult {
    let f = model();
    let mut r = row(id, &f, 0, 0, position + 1, false);
    r.token = Some(token(&f, 0, position));
    let message = v1::AttendRequest { deadline_us, ..message(node, vec![r]) };
    node.attend(message).await.unwrap().rows.remove(0)
}

#[tokio::test]
async fn what_is_damaged_or_gone_in_the_archive_is_said_and_nothing_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let n = with_archive(path, |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[600], &[600]).await;
    archive(&n, vec![1; 16]).await.unwrap();
    n.open(stored(2, false)).await.unwrap();
    prefill(&n, 2, &[700], &[700]).await;
    let all = objects(path);
    let whole: Vec<Vec<u8>> = all.iter().map(|p| std::fs::read(p).unwrap()).collect();
    for object in &all {
        let mut hurt = std::fs::read(object).unwrap();
        let at = hurt.len() / 2;
        hurt[at] ^= 4;
        std::fs::write(object, hurt).unwrap();
    }
    let e = step(&n, 1, 600, 0).await.error.unwrap();
    assert!(e.code == Code::DataLoss as u32 && e.message.contains("other bytes"), "{}", e.message);
    assert!(e.message.starts_with("rows[0]: tokens 0..600 of layer 0, KV head "), "{}", e.message);
    for object in &all {
        std::fs::remove_file(object).unwrap();
    }
    let e = step(&n, 1, 600, 0).await.error.unwrap();
    assert!(e.code == Code::DataLoss as u32 && e.message.contains("does not hold"), "{}", e.message);
    assert_eq!(told(&n, 1).await.archived_bytes, 600 * HEADS * ROW);
    assert!(metric(&n.render_metrics(), "recollect_archive_errors_total") >= 2.0);
    // Others go on, in the same message too.
    let f = model();
    let rows = vec![row(1, &f, 0, 0, 600, false), row(2, &f, 0, 0, 700, false)];
    let answer = n.attend(message(&n, rows)).await.unwrap();
    assert!(answer.rows[0].error.is_some() && answer.rows[1].error.is_none());
    for (object, bytes) in all.iter().zip(whole) {
        std::fs::write(object, bytes).unwrap();
    }
    // The token of the step that failed was not stored: the same step can be made again.
    assert_eq!(step(&n, 1, 600, 0).await.error, None);
    assert_rows(&n, 1, 600).await;
}

#[tokio::test]
async fn archived_parts_merge_and_what_is_planned_or_pinned_stays() {
    let folder = tempfile::tempdir().unwrap();
    let small = |c: &mut NodeConfig| {
        c.seal_tokens = 100;
        c.index_min_tokens = 64;
    };
    let plain = node(small);
    let n = with_archive(folder.path(), small);
    for node in [&plain, &n] {
        node.open(v1::OpenRequest { durable: false, ..stored(1, false) }).await.unwrap();
    }
    let mut ends = Vec::new();
    for end in (100..=1300).step_by(100) {
        let begin = ends.last().copied().unwrap_or(0);
        ends.push(end);
        for node in [&plain, &n] {
            for layer in 0..model().layers {
                let mut c = sampled(1, layer, begin, end - begin);
                c.seal_to = Some(end);
                node.append(c).await.unwrap();
            }
        }
        // Of a session whose merges are done every span can go.
        archive(&n, vec![1; 16]).await.unwrap();
        assert!(n.snapshot().kv_bytes <= 128 * HEADS * ROW, "{:?}", n.snapshot());
    }
    let text = n.render_metrics();
    assert!(metric(&text, "recollect_span_revivals_total") > 0.0);
    assert_eq!(metric(&text, "recollect_span_merges_total{result=\"refused\"}"), 0.0);
    assert_eq!(answers(&n, 1, 1300).await, answers(&plain, 1, 1300).await);
    n.pin(v1::PinRequest { session: vec![1; 16] }).await.unwrap();
    assert_eq!(archive(&n, vec![1; 16]).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(archive(&n, Vec::new()).await.unwrap().archived_bytes, 0);
    let e = n
        .evict(v1::EvictRequest { session: Vec::new(), tier: v1::Tier::Full.into(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn rows_that_are_read_do_not_leave() {
    let folder = tempfile::tempdir().unwrap();
    let n = with_archive(folder.path(), |_| {});
    n.open(stored(1, false)).await.unwrap();
    prefill(&n, 1, &[600], &[600]).await;
    let session = n.session(&[1; 16], "session").unwrap();
    let reading = crate::session::Reading::begin(&session);
    assert_eq!(archive(&n, vec![1; 16]).await.unwrap().archived_bytes, 0);
    drop(reading);
    assert_eq!(archive(&n, vec![1; 16]).await.unwrap().archived_bytes, 600 * HEADS * ROW);
    // Many at once, while the rows go again and again.
    let f = model();
    let want = floats(&n.attend(message(&n, vec![row(1, &f, 0, 0, 600, false)])).await.unwrap().rows[0].o);
    for _ in 0..20 {
        let rows = || vec![row(1, &f, 0, 0, 600, false), row(1, &f, 1, 0, 600, false)];
        let (a, b, c) = tokio::join!(
            n.attend(message(&n, rows())),
            archive(&n, Vec::new()),
            n.attend(message(&n, rows()))
        );
        b.unwrap();
        for answer in [a.unwrap(), c.unwrap()] {
            assert!(answer.rows.iter().all(|r| r.error.is_none()), "{:?}", answer.rows[0].error);
            assert_eq!(floats(&answer.rows[0].o), want);
        }
    }
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn a_store_that_times_out_denies_or_returns_short_bodies() {
    use crate::archive::fake::{Fake, Mode};
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start();
    let n = on(folder.path(), |c| {
        let variables = fake.variables();
        c.archive = Some(ArchiveSettings { variables, ..settings("s3://bucket/here".into()) });
    });
    for id in [1, 2] {
        n.open(stored(id, false)).await.unwrap();
        prefill(&n, id, &[600], &[600]).await;
    }
    let before = answers(&n, 1, 600).await;
    let faults = [Mode::Deny, Mode::Hang, Mode::Short, Mode::Busy(u32::MAX)];
    for mode in faults {
        fake.set(mode);
        let e = archive(&n, vec![1; 16]).await.unwrap_err();
        assert!(e.code() == Code::Unavailable && !e.message().contains('\n'), "{mode:?}: {e}");
        assert!(e.message().contains(" cannot go to the archive: "), "{e}");
        assert_eq!(n.snapshot().archived_bytes, 0);
        assert_eq!(answers(&n, 1, 600).await, before, "{mode:?}");
    }
    fake.set(Mode::Serve);
    let bytes = archive(&n, vec![1; 16]).await.unwrap().archived_bytes;
    assert_eq!((bytes, fake.keys().len()), (600 * HEADS * ROW, HEADS as usize));
    let f = model();
    for mode in faults {
        fake.set(mode);
        let rows = vec![row(1, &f, 0, 0, 600, false), row(2, &f, 0, 0, 600, false)];
        // Half of it is for the archive.
        let asked = v1::AttendRequest { deadline_us: 4_000_000, ..message(&n, rows) };
        let answer = n.attend(asked).await.unwrap();
        let e = answer.rows[0].error.clone().unwrap();
        assert!(e.code == Code::Unavailable as u32 && !e.message.contains('\n'), "{mode:?}: {}", e.message);
        assert!(e.message.contains("lie in the archive"), "{mode:?}: {}", e.message);
        assert!(answer.rows[1].error.is_none(), "{mode:?}");
        // Without a deadline it takes as long as the settings say.
        let e = step(&n, 1, 600, 0).await.error.unwrap();
        assert!(e.code == Code::Unavailable as u32 && e.message.contains("the archive"), "{}", e.message);
        assert!(told(&n, 1).await.archived_bytes > 0, "{mode:?}");
    }
    // What is late is on its way all the same.
    fake.set(Mode::Hang);
    let e = step(&n, 1, 600, 1000).await.error.unwrap();
    assert!(e.code == Code::Unavailable as u32 && e.message.ends_with("ask again"), "{}", e.message);
    fake.set(Mode::Serve);
    assert_eq!(answers(&n, 1, 600).await, before);
    close(&n, 1).await.unwrap();
    until("all objects go", || fake.keys().is_empty()).await;
}
