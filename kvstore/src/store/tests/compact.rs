//! Spans that answer in a compact form, and indexes that leave RAM.

use super::tiers::{all_returned, ready};
use super::*;
use crate::shard::tests::life::metric;
use crate::spill;
use tonic::Code;

const ROW: u64 = 56;
const HEADS: u64 = 4;

async fn evict(node: &Arc<Node>, tier: v1::Tier, percent: u32) -> Result<u64, tonic::Status> {
    let request = v1::EvictRequest { session: vec![1; 16], tier: tier.into(), sketch_percent: percent };
    node.evict(request).await.map(|r| r.freed_bytes)
}

async fn promote(node: &Arc<Node>) -> u64 {
    node.promote(v1::PromoteRequest { session: vec![1; 16] }).await.unwrap().promoted_bytes
}

/// A session with a sink of 100 tokens, a span of 1,800 with an index and 100 fresh tokens.
async fn filled(node: &Arc<Node>) {
    node.open(stored(1, false)).await.unwrap();
    prefill(node, 1, &[100, 1900, 2000], &[100, 1900]).await;
    ready(node, 1).await;
}

/// Sum of l over kinds of mass, and l itself: exact, quantised, estimated.
fn masses(answer: &v1::AttendResult) -> [Vec<f32>; 3] {
    let read = |t: &Option<v1::Tensor>| floats(t);
    [read(&answer.l_exact), read(&answer.l_quant), read(&answer.l_est)]
}

/// With all logits equal every visible token counts once.
async fn assert_counted_once(node: &Arc<Node>, tokens: u64) {
    let f = model();
    for (begin, end) in [(0, tokens), (100, tokens), (101, 1500), (50, 1900)] {
        let mut r = row(1, &f, 0, begin, end, true);
        r.budget = Some(wire::convert::Budget::TopK(60).write());
        r.estimate = true;
        let answer = node.attend(message(node, vec![r])).await.unwrap().rows.remove(0);
        assert_eq!(answer.error, None);
        let [exact, quant, est] = masses(&answer);
        for ((e, q), s) in exact.iter().zip(&quant).zip(&est) {
            assert_eq!(e + q + s, (end - begin) as f32, "{begin}..{end}");
        }
    }
}

#[tokio::test]
async fn a_quantised_session_answers_close_by_and_its_rows_come_back_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    filled(&n).await;
    let before = answers(&n, 1, 2000).await;
    let full = n.snapshot();
    let freed = evict(&n, v1::Tier::Quantised, 0).await.unwrap();
    let s = n.snapshot();
    // The span with an index; the sink stays.
    let rows = 1800 * HEADS * ROW;
    assert_eq!((s.spilled_bytes, s.index_bytes), (rows, 0));
    assert!(s.compact_bytes > rows / 2 && s.compact_bytes < rows, "{}", s.compact_bytes);
    assert_eq!(freed, full.kv_bytes - s.kv_bytes + full.index_bytes - s.compact_bytes);
    let info = told(&n, 1).await;
    assert_eq!(info.compact_bytes, s.compact_bytes);
    let spans: Vec<_> = info.spans.iter().filter(|s| s.tier() == v1::Tier::Quantised).collect();
    assert_eq!(spans.len() as u64, HEADS);
    assert!(spans.iter().all(|s| s.compact_bytes > 0 && s.spilled_bytes == 1800 * ROW && s.recall.is_some()));
    assert_eq!(metric(&n.render_metrics(), "recollect_span_compactions_total{result=\"ok\"}"), HEADS as f64);
    for (was, is) in before.iter().zip(&answers(&n, 1, 2000).await) {
        let [_, quant, est] = masses(is);
        assert!(quant.iter().all(|&l| l > 0.0));
        // Only the sink may be estimated.
        let [_, _, was_est] = masses(was);
        assert!(est.iter().zip(&was_est).all(|(is, was)| is <= was));
        // The selection of the index is one of the few best, its estimate far from this one in a model of noise; the
        // maximum is of a token.
        assert!(floats(&is.m).iter().zip(floats(&was.m)).all(|(a, b)| (a - b).abs() < 0.02));
    }
    assert_counted_once(&n, 2000).await;
    // Rows are what they were; who wants all of them exactly gets that.
    assert_rows(&n, 1, 2000).await;
    let all = row(1, &model(), 0, 0, 2000, false);
    let exact = n.attend(message(&n, vec![all.clone()])).await.unwrap().rows.remove(0);
    assert!(masses(&exact)[1..].iter().flatten().all(|&l| l == 0.0));
    assert_eq!(evict(&n, v1::Tier::Quantised, 0).await.unwrap(), 0, "it is there already");
    assert_eq!(promote(&n).await, rows);
    let back = n.snapshot();
    assert_eq!((back.compact_bytes, back.spilled_bytes), (0, 0));
    assert_eq!((back.kv_bytes, back.index_bytes), (full.kv_bytes, full.index_bytes));
    assert_eq!(answers(&n, 1, 2000).await, before);
    assert_eq!(n.attend(message(&n, vec![all])).await.unwrap().rows.remove(0).o, exact.o);
    close(&n, 1).await.unwrap();
    all_returned(&n).await;
}

#[tokio::test]
async fn a_sketched_session_answers_by_estimate_or_where_that_is_unwelcome_from_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let n = on(path, |_| {});
    filled(&n).await;
    let before = answers(&n, 1, 2000).await;
    evict(&n, v1::Tier::Quantised, 0).await.unwrap();
    let quantised = n.snapshot().compact_bytes;
    // From one form to the other; a percentage of the rows' bytes.
    let rows = 1800 * HEADS * ROW;
    assert!(evict(&n, v1::Tier::Sketched, 30).await.unwrap() > 0);
    let s = n.snapshot();
    assert!(s.compact_bytes <= rows * 3 / 10 && s.compact_bytes < quantised && s.index_bytes == 0);
    let info = told(&n, 1).await;
    assert_eq!(info.spans.iter().filter(|s| s.tier() == v1::Tier::Sketched).count() as u64, HEADS);
    assert_counted_once(&n, 2000).await;
    for answer in answers(&n, 1, 2000).await {
        let [_, quant, est] = masses(&answer);
        assert!(quant.iter().all(|&l| l == 0.0) && est.iter().all(|&l| l > 0.0));
    }
    // Without an estimate: the best of the rows, by scan.
    let mut r = row(1, &model(), 0, 0, 2000, false);
    r.budget = Some(wire::convert::Budget::TopK(60).write());
    let answer = n.attend(message(&n, vec![r])).await.unwrap().rows.remove(0);
    let stats = answer.stats.unwrap();
    assert_eq!((answer.error.clone(), stats.exact_tokens, stats.missing_tokens), (None, 160.0, 0));
    assert!(masses(&answer)[1..].iter().flatten().all(|&l| l == 0.0));
    // Merged, cut and decoded on as any other.
    assert_eq!(truncate(&n, 1, 1700).await, 1700);
    assert_rows(&n, 1, 1700).await;
    decode(&n, 1, 1700..1705).await;
    let e = evict(&n, v1::Tier::Sketched, 51).await.unwrap_err();
    assert!(e.message().contains("sketch_percent is 51, must be 1 to 50"), "{e}");
    let e = evict(&n, v1::Tier::Spilled, 5).await.unwrap_err();
    assert_eq!((e.code(), e.message()), (Code::InvalidArgument, "sketch_percent is for the tier sketched"));
    // A start makes the same form again, without reading the index.
    all_stored(&n).await;
    drop(n);
    let n = on(path, |_| {});
    ready(&n, 1).await;
    assert!(n.snapshot().compact_bytes > 0 && n.snapshot().index_bytes == 0, "{:?}", n.snapshot());
    assert_eq!(metric(&n.render_metrics(), "recollect_indexes_loaded_total"), 0.0);
    assert!(told(&n, 1).await.spans.iter().any(|s| s.tier() == v1::Tier::Sketched && s.recall.is_some()));
    assert_rows(&n, 1, 1700).await;
    assert_eq!(before.len(), answers(&n, 1, 1700).await.len());
    promote(&n).await;
    all_stored(&n).await;
    drop(n);
    let n = on(path, |_| {});
    assert_eq!((n.snapshot().compact_bytes, n.snapshot().builds_pending), (0, 0));
    close(&n, 1).await.unwrap();
    all_returned(&n).await;
}

#[tokio::test]
async fn an_index_leaves_ram_for_want_of_room_and_comes_back_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |c| c.memory_bytes = 6 << 20);
    filled(&n).await;
    let before = answers(&n, 1, 2000).await;
    n.evict(v1::EvictRequest::default()).await.unwrap();
    let index = n.snapshot().index_bytes;
    assert!(index > 0);
    // All but a little of what is left: more than is free while the index is there.
    let s = n.snapshot();
    let wanted = s.budget_bytes - s.granted_bytes + index / 2;
    let other =
        v1::OpenRequest { session: vec![2; 16], index: v1::IndexKind::Flat as i32, ..stored(2, false) };
    let tokens = wanted / (HEADS * ROW);
    n.open(v1::OpenRequest { reserve_tokens: tokens, ..other }).await.unwrap();
    assert!(n.snapshot().index_bytes <= index / 2);
    let left = metric(&n.render_metrics(), "recollect_indexes_left_total");
    assert!(left >= 2.0, "{left}");
    // There is no room for all of them to come back; said by name, and nothing is lost.
    let mut r = row(1, &model(), 0, 0, 2000, false);
    r.budget = Some(wire::convert::Budget::TopK(5).write());
    let answer = n.attend(message(&n, vec![r])).await.unwrap().rows.remove(0);
    let e = answer.error.unwrap();
    assert!(e.code == Code::ResourceExhausted as u32 && e.message.contains("the index of layer 0"), "{e:?}");
    assert_rows(&n, 1, 2000).await;
    close(&n, 2).await.unwrap();
    assert_eq!(answers(&n, 1, 2000).await, before);
    assert_eq!(n.snapshot().index_bytes, index);
    assert!(metric(&n.render_metrics(), "recollect_indexes_loaded_total") >= left);
    close(&n, 1).await.unwrap();
    all_returned(&n).await;
}

#[tokio::test]
async fn what_is_cold_is_compacted_and_archived_by_policy_and_what_may_not_change_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/archive", folder.path().display());
    let n = on(folder.path(), |c| {
        c.archive = Some(crate::ArchiveSettings::new(&url, Duration::ZERO, 0));
        c.cooling.form = Some(crate::Form::Sketched(25));
        c.cooling.archive_after = Some(Duration::from_secs(600));
    });
    filled(&n).await;
    for id in [2, 3] {
        n.open(v1::OpenRequest { deterministic: false, ..stored(id, false) }).await.unwrap();
        prefill(&n, id, &[100, 1900, 2000], &[100, 1900]).await;
        ready(&n, id).await;
    }
    n.pin(v1::PinRequest { session: vec![3; 16] }).await.unwrap();
    all_stored(&n).await;
    let (soon, late, very) = (299_000, 302_000, 602_000);
    let begun = spill::now();
    assert_eq!(n.cool_down(begun.saturating_sub(60_000) + soon), 0, "nothing is cold yet");
    assert_eq!(n.cool_down(begun + late) as u64, HEADS);
    ready(&n, 2).await;
    let tiers = async |id| -> Vec<v1::Tier> { told(&n, id).await.spans.iter().map(|s| s.tier()).collect() };
    let count = |tiers: &[v1::Tier], tier| tiers.iter().filter(|&&t| t == tier).count() as u64;
    assert_eq!(count(&tiers(2).await, v1::Tier::Sketched), HEADS);
    for id in [1, 3] {
        assert_eq!(count(&tiers(id).await, v1::Tier::Full), 2 * HEADS, "deterministic or pinned");
    }
    assert_eq!(n.cool_down(begun + late), 0, "it is there already");
    // All of it goes, and what is left in RAM still answers.
    assert!(n.archive_cold(begun + very));
    let info = told(&n, 2).await;
    assert_eq!((info.archived_bytes, info.spilled_bytes), (1900 * HEADS * ROW, 0));
    assert_eq!(n.snapshot().archived_bytes, info.archived_bytes);
    let mut r = row(2, &model(), 0, 100, 2000, false);
    r.budget = Some(wire::convert::Budget::TopK(60).write());
    r.estimate = true;
    let answer = n.attend(message(&n, vec![r.clone()])).await.unwrap().rows.remove(0);
    assert_eq!(answer.error, None);
    assert!(masses(&answer)[2].iter().all(|&l| l > 0.0));
    assert_eq!(told(&n, 2).await.archived_bytes, info.archived_bytes, "nothing was fetched");
    // Who wants no estimate waits for the rows, which are those of before.
    r.estimate = false;
    let answer = n.attend(message(&n, vec![r])).await.unwrap().rows.remove(0);
    assert_eq!(answer.error, None);
    assert!(told(&n, 2).await.archived_bytes < info.archived_bytes);
    assert_rows(&n, 2, 2000).await;
}

#[tokio::test]
async fn a_start_reads_as_many_indexes_as_there_is_room_for_and_builds_none() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    filled(&n).await;
    all_stored(&n).await;
    let (mut before, index) = (answers(&n, 1, 1900).await, n.snapshot().index_bytes);
    // What was not sealed is not on disk.
    before.iter_mut().for_each(|answer| answer.watermark = 1900);
    drop(n);
    let path = folder.path();
    let scratch = on(path, |_| {}).snapshot().scratch_bytes;
    left(path);
    // A sixteenth is the catalogue's.
    let n = on(path, |c| c.memory_bytes = (scratch + index * 5 / 8) / 15 * 16);
    ready(&n, 1).await;
    let s = n.snapshot();
    assert!(s.index_bytes > 0 && s.index_bytes < index, "{s:?}");
    let built = metric(&n.render_metrics(), "recollect_index_builds_total{result=\"ok\"}");
    assert_eq!(built, 0.0);
    assert!(told(&n, 1).await.spans.iter().filter(|s| s.recall.is_some()).count() as u64 == HEADS);
    drop(n);
    let n = on(path, |_| {});
    assert!(answers(&n, 1, 1900).await == before && n.snapshot().index_bytes == index);
}

#[tokio::test]
async fn a_damaged_index_file_is_put_away_and_the_index_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let n = on(path, |c| {
        c.archive = Some(crate::ArchiveSettings::new(
            &format!("file://{}/archive", path.display()),
            Duration::ZERO,
            0,
        ))
    });
    filled(&n).await;
    evict(&n, v1::Tier::Archived, 0).await.unwrap();
    assert_eq!(n.snapshot().index_bytes, 0);
    let files = files(path, "extents");
    let indexes: Vec<_> = files.iter().filter(|p| p.extension().is_some_and(|e| e == "ix")).collect();
    assert_eq!(indexes.len() as u64, HEADS);
    std::fs::write(indexes[0], b"what is this").unwrap();
    std::fs::remove_file(indexes[1]).unwrap();
    assert_eq!(answers(&n, 1, 2000).await.len(), 4);
    ready(&n, 1).await;
    all_stored(&n).await;
    assert_eq!(metric(&n.render_metrics(), "recollect_store_quarantined_files"), 1.0);
    assert_eq!(metric(&n.render_metrics(), "recollect_indexes_loaded_total"), HEADS as f64 - 2.0);
    let built = told(&n, 1).await.spans.iter().filter(|s| s.index_bytes > 0).count();
    assert_eq!(built as u64, HEADS);
    // Stored again, so that it can go again.
    evict(&n, v1::Tier::Archived, 0).await.unwrap();
    assert_eq!(n.snapshot().index_bytes, 0);
}

/// Flips a bit in the rows of an extent file of a span of 1,800 tokens.
fn hurt(path: &Path) {
    let files = files(path, "extents");
    let large = files.iter().find(|p| {
        p.extension().is_some_and(|e| e == "kv") && std::fs::metadata(p).unwrap().len() > 1800 * ROW
    });
    let mut bytes = std::fs::read(large.unwrap()).unwrap();
    let at = bytes.len() - 5000;
    bytes[at] ^= 1;
    // In place, as a disk would do it: a map shows it.
    use std::io::{Seek, Write};
    let mut file = std::fs::File::options().write(true).open(large.unwrap()).unwrap();
    file.seek(std::io::SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&bytes[at..=at]).unwrap();
}

#[tokio::test]
async fn rows_of_a_damaged_file_never_come_back_as_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    filled(&n).await;
    let before = answers(&n, 1, 2000).await;
    all_stored(&n).await;
    hurt(folder.path());
    // From RAM to the file: the one stays in RAM, and is told.
    let e = evict(&n, v1::Tier::Spilled, 0).await.unwrap_err();
    assert!(e.code() == Code::DataLoss && e.message().contains("stay in RAM"), "{e}");
    assert!(answers(&n, 1, 2000).await == before);
    assert_rows(&n, 1, 2000).await;

    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    filled(&n).await;
    evict(&n, v1::Tier::Spilled, 0).await.unwrap();
    hurt(folder.path());
    let e = n.promote(v1::PromoteRequest { session: vec![1; 16] }).await.unwrap_err();
    assert!(e.code() == Code::DataLoss && e.message().contains("cannot be brought back"), "{e}");
    let e = evict(&n, v1::Tier::Sketched, 30).await.unwrap_err();
    assert!(e.message().contains("checksum"), "{e}");
    assert!(told(&n, 1).await.spans.iter().any(|s| s.tier() == v1::Tier::Spilled));
}

#[tokio::test]
async fn a_sketch_too_small_names_the_least_percentage() {
    let folder = tempfile::tempdir().unwrap();
    let n = on(folder.path(), |_| {});
    filled(&n).await;
    let e = evict(&n, v1::Tier::Sketched, 1).await.unwrap_err();
    let least = e.message().split("at least ").nth(1).and_then(|t| t.split(' ').next()).unwrap();
    let least: u32 = least.parse().unwrap();
    assert!(e.message().contains("sketch_percent") && least > 1, "{e}");
    evict(&n, v1::Tier::Sketched, least).await.unwrap();
}
