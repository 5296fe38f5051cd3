use super::*;
use crate::admission::{Budget, Kind, Purse};
use crate::session::extent::SealedRows;
use crate::session::geometry::Geometry;
use crate::session::head::{Rows, Sealing};
use crate::session::samples::Samples;
use crate::session::span::Indexed;
use crate::testing::fingerprint;
use half::f16;

/// A head whose keys and values tell their positions.
struct Bench {
    g: Geometry,
    purse: Arc<Purse>,
    head: Head,
}

impl Bench {
    fn new() -> Self {
        let g = Geometry::read(&fingerprint(1, 1, 1, 1, 1)).unwrap();
        let purse = Budget::new(1 << 30).purse(0).unwrap();
        let head = Head::new(&g, &purse).unwrap();
        Self { g, purse, head }
    }

    /// Appends tokens and seals them; returns the version of the merge that this asks for.
    fn seal(&self, tokens: u64) -> Option<u64> {
        let end = self.head.len() + tokens;
        let rows: Vec<f16> = (self.head.len()..end).map(|p| f16::from_f32(p as f32)).collect();
        let grant = self.head.grant(&self.g, &self.purse, tokens, 0, Some(end)).unwrap();
        let rows = Rows {
            k: &rows,
            v: &rows,
            q: &[],
            q_pos: &[],
            q_window: 0,
            heads: 1,
            slot: 0,
            seal_to: Some(end),
        };
        let sealing = Sealing { index_from: Some(8), merge: true, stored: false };
        self.head.push(&self.g, rows, grant, sealing).wants_merge
    }

    /// What the builder makes of the parts.
    fn merged(&self, parts: &[Part], version: u64) -> Arc<Span> {
        let pieces: Vec<_> = parts.iter().map(|(s, end)| (&s.rows, (end - s.begin) as usize)).collect();
        let charge = self.purse.charge(Kind::Kv, SealedRows::copied(&pieces) * 4).unwrap();
        let rows = SealedRows::join(&pieces, charge);
        let params = index::BuildParams { kind: index::Kind::Flat, ..index::BuildParams::default() };
        let index = index::build(&rows.keys(), &rows.values(), None, &params).unwrap();
        let charge = self.purse.charge(Kind::Index, 0).unwrap();
        let queries = Samples::new(1, self.purse.charge(Kind::Scratch, 0).unwrap());
        let indexed = Indexed { index, recall_target: 0.95, build_us: 0, charge };
        Arc::new(Span::merged(parts[0].0.begin, version, rows, Some(queries), indexed))
    }

    /// (begin, visible end, version) of every span; checks that each row tells its position.
    fn layout(&self) -> Vec<(u64, u64, u64)> {
        let state = self.head.read();
        let (k, v) = state.copy(0, state.end());
        let want: Vec<f16> = (0..state.end()).map(|p| f16::from_f32(p as f32)).collect();
        assert!(k == want && v == want);
        state.spans().map(|(s, end)| (s.begin, end, s.version)).collect()
    }
}

#[test]
fn the_sink_stays_apart_and_what_would_have_no_index_does_not_merge() {
    let bench = Bench::new();
    assert_eq!([bench.seal(4), bench.seal(3), bench.seal(4), bench.seal(9)], [None, None, None, Some(2)]);
    let parts = bench.head.parts(2);
    let ends: Vec<u64> = parts.iter().map(|p| p.1).collect();
    assert_eq!(ends, [7, 11, 20]);
    assert!(bench.head.replace(&parts, bench.merged(&parts, 2)));
    assert_eq!(bench.layout(), [(0, 4, 1), (4, 20, 2)]);
}

#[test]
fn a_larger_plan_supersedes_one_that_waits_and_takes_in_one_that_runs() {
    for first_ends_before in [true, false] {
        let bench = Bench::new();
        assert_eq!([bench.seal(4), bench.seal(8), bench.seal(8)], [None, None, Some(2)]);
        // The builder has read its parts when the next seal plans over them.
        let running = bench.head.parts(2);
        let planned = if first_ends_before {
            assert!(bench.head.replace(&running, bench.merged(&running, 2)));
            [bench.seal(8), bench.seal(8)]
        } else {
            let planned = [bench.seal(8), bench.seal(8)];
            assert!(bench.head.replace(&running, bench.merged(&running, 2)));
            planned
        };
        assert_eq!(planned, [None, Some(3)]);
        assert!(bench.head.parts(2).is_empty(), "a job for it that still waits has nothing to do");
        let parts = bench.head.parts(3);
        assert_eq!(parts.iter().map(|p| p.0.version).collect::<Vec<_>>(), [2, 1, 1]);
        assert!(bench.head.replace(&parts, bench.merged(&parts, 3)));
        assert_eq!(bench.layout(), [(0, 4, 1), (4, 36, 3)]);
    }
}

#[test]
fn a_truncation_meanwhile_makes_a_merge_void_or_hides_its_end() {
    // (cut, layout at the end): 4, 8 and 8 tokens are held when the merge of the last two begins.
    for (cut, want) in [
        (20, vec![(0, 4, 1), (4, 20, 2)]),
        (15, vec![(0, 4, 1), (4, 15, 2)]),
        (13, vec![(0, 4, 1), (4, 13, 2)]),
        (12, vec![(0, 4, 1), (4, 12, 1)]),
        (7, vec![(0, 4, 1), (4, 7, 1)]),
        (2, vec![(0, 2, 1)]),
        (0, vec![]),
    ] {
        let bench = Bench::new();
        assert_eq!([bench.seal(4), bench.seal(8), bench.seal(8)], [None, None, Some(2)]);
        let parts = bench.head.parts(2);
        bench.head.truncate(cut, &bench.g, 0);
        let swapped = bench.head.replace(&parts, bench.merged(&parts, 2));
        assert_eq!((swapped, bench.layout()), (want.iter().any(|w| w.2 == 2), want), "cut at {cut}");
        drop(parts);
        // What is appended now takes the places of what was cut.
        bench.head.unplan(2);
        if let Some(version) = bench.seal(30) {
            let parts = bench.head.parts(version);
            assert!(bench.head.replace(&parts, bench.merged(&parts, version)));
        }
        let layout = bench.layout();
        assert_eq!(layout.last().unwrap().1, cut + 30);
        let held = layout.iter().map(|l| l.1 - l.0).sum::<u64>();
        assert_eq!(held, cut + 30, "{layout:?}");
    }
}

#[test]
fn a_cut_that_was_filled_again_is_not_taken_for_the_old_rows() {
    let bench = Bench::new();
    assert_eq!([bench.seal(4), bench.seal(8), bench.seal(8)], [None, None, Some(2)]);
    let parts = bench.head.parts(2);
    let stale = bench.merged(&parts, 2);
    // The last part goes, another of the same place and length comes.
    bench.head.truncate(12, &bench.g, 0);
    bench.seal(8);
    assert!(!bench.head.replace(&parts, stale));
    bench.layout();
}

#[test]
fn readers_keep_what_they_hold_and_memory_returns_with_the_last() {
    let bench = Bench::new();
    assert_eq!([bench.seal(4), bench.seal(8), bench.seal(8)], [None, None, Some(2)]);
    let rows = |n: u64| n * 4;
    let parts = bench.head.parts(2);
    assert_eq!(bench.purse.usage().kv, rows(20));
    assert!(bench.head.replace(&parts, bench.merged(&parts, 2)));
    assert_eq!(bench.purse.usage().kv, rows(36));
    let (mut k, mut v) = (Vec::new(), Vec::new());
    parts[1].0.copy(12, 20, 20, &mut k, &mut v);
    assert_eq!(
        k.iter().map(|x| x.to_f32()).collect::<Vec<_>>(),
        (12..20).map(|p| p as f32).collect::<Vec<_>>()
    );
    drop(parts);
    assert_eq!(bench.purse.usage().kv, rows(20));
}
