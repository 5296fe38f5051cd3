//! Fresh tokens from a log: which of its rows the spans of the catalogue do not hold.
//!
//! The spans of a head reflect the truncations up to a number that their record tells, and rows up to their end. A log
//! begins at or before that state, never after it, and goes on beyond it. So all of its records are gone through to find
//! out which rows are left in the end; of those the ones beyond the spans are fresh.

use crate::session::geometry::Geometry;
use crate::session::head;
use crate::store::log::record::{Record, Rows};
use half::f16;
use std::ops::Range;

/// What is left of one record for one head.
#[derive(Debug)]
pub struct Piece<'a> {
    rows: &'a Rows<'a>,
    /// Of the head, among those of the record.
    slot: usize,
    /// Positions that are left.
    pub left: Range<u64>,
}

/// What a log says about one head.
#[derive(Debug, Default)]
pub struct Tail<'a> {
    /// In order, without gaps.
    pub pieces: Vec<Piece<'a>>,
    /// Where the log has come to; None before the first rows.
    end: Option<u64>,
    /// The shortest length of the truncations that the spans do not reflect.
    pub limit: Option<u64>,
    /// Number of the last truncation.
    pub cut: u64,
}

impl<'a> Tail<'a> {
    /// Goes through the records for one head, whose spans reflect truncations up to `cut`. An error says what is missing.
    pub fn read(
        records: impl Iterator<Item = &'a (u64, Record<'a>)>,
        (layer, kv_head): (usize, usize),
        cut: u64,
    ) -> Result<Self, String> {
        let mut tail = Tail { cut, ..Tail::default() };
        for (number, record) in records {
            match record {
                Record::Cut(length) => tail.truncate(*number, *length, cut),
                Record::Rows(rows) if rows.layer == layer && rows.heads().contains(&kv_head) => {
                    if let Some(end) = tail.end.filter(|&end| end != rows.begin) {
                        return Err(format!("its log goes from token {end} to token {}", rows.begin));
                    }
                    let end = rows.begin + rows.tokens;
                    tail.pieces.push(Piece { rows, slot: kv_head - rows.kv_head, left: rows.begin..end });
                    tail.end = Some(end);
                }
                Record::Rows(_) => {}
            }
        }
        Ok(tail)
    }

    /// Position after the last row that is left.
    pub fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |p| p.left.end)
    }

    fn truncate(&mut self, number: u64, length: u64, reflected: u64) {
        self.pieces.retain(|p| p.left.start < length);
        if let Some(last) = self.pieces.last_mut() {
            last.left.end = last.left.end.min(length);
        }
        self.end = self.end.map(|end| end.min(length));
        if number > reflected {
            self.limit = Some(self.limit.map_or(length, |l| l.min(length)));
        }
        self.cut = number.max(self.cut);
    }
}

impl Piece<'_> {
    /// The rows from `from` on as an append of the one head, with the samples of positions that are not in a span; None
    /// when nothing is left.
    pub fn beyond(&self, from: u64, g: &Geometry) -> Option<Append> {
        let begin = self.left.start.max(from);
        if begin >= self.left.end {
            return None;
        }
        let r = self.rows;
        let (heads, slot) = (r.seals.len(), self.slot);
        let within = (begin - r.begin) as usize..(self.left.end - r.begin) as usize;
        let samples = r.q_pos.partition_point(|&p| p < from)..r.q_pos.partition_point(|&p| p < self.left.end);
        let pick = |rows: &[f16], range: &Range<usize>, dim: usize| -> Vec<f16> {
            let of = |i: usize| &rows[(i * heads + slot) * dim..][..dim];
            range.clone().flat_map(of).copied().collect()
        };
        Some(Append {
            tokens: self.left.end - begin,
            k: pick(r.k, &within, g.key_dim),
            v: pick(r.v, &within, g.value_dim),
            q: pick(r.q, &samples, g.group * g.key_dim),
            q_pos: r.q_pos[samples].to_vec(),
            q_window: r.q_window,
            seal_to: Some(r.seals[slot].min(self.left.end)).filter(|&to| to > 0),
        })
    }
}

/// An append of one head.
pub struct Append {
    /// Rows.
    pub tokens: u64,
    k: Vec<f16>,
    v: Vec<f16>,
    q: Vec<f16>,
    /// Positions of the samples.
    pub q_pos: Vec<u64>,
    q_window: u64,
    /// Seal everything below this position.
    pub seal_to: Option<u64>,
}

impl Append {
    /// As a head takes it.
    pub fn rows(&self) -> head::Rows<'_> {
        head::Rows {
            k: &self.k,
            v: &self.v,
            q: &self.q,
            q_pos: &self.q_pos,
            q_window: self.q_window,
            heads: 1,
            slot: 0,
            seal_to: self.seal_to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(range: Range<u64>) -> Record<'static> {
        Record::Rows(Rows {
            layer: 0,
            kv_head: 0,
            begin: range.start,
            tokens: range.end - range.start,
            seals: vec![0],
            k: &[],
            v: &[],
            q: &[],
            q_pos: Vec::new(),
            q_window: 0,
        })
    }

    /// Ranges that are left, the limit, the last truncation.
    type Left = (Vec<(u64, u64)>, Option<u64>, u64);

    fn left(records: &[Record<'static>], cut: u64) -> Left {
        let numbered: Vec<(u64, Record<'_>)> = (1..).zip(records.iter().cloned()).collect();
        let tail = Tail::read(numbered.iter(), (0, 0), cut).unwrap();
        (tail.pieces.iter().map(|p| (p.left.start, p.left.end)).collect(), tail.limit, tail.cut)
    }

    #[test]
    fn truncations_take_back_what_came_before_them() {
        let log = [rows(0..10), Record::Cut(4), rows(4..6), Record::Cut(5), rows(5..9)];
        assert_eq!(left(&log, 0), (vec![(0, 4), (4, 5), (5, 9)], Some(4), 4));
        // What the spans reflect limits them no more.
        assert_eq!(left(&log, 2), (vec![(0, 4), (4, 5), (5, 9)], Some(5), 4));
        assert_eq!(left(&log, 4), (vec![(0, 4), (4, 5), (5, 9)], None, 4));
        // Below where the log begins.
        assert_eq!(
            left(&[rows(700..800), Record::Cut(500), rows(500..501)], 0),
            (vec![(500, 501)], Some(500), 2)
        );
        assert_eq!(left(&[Record::Cut(500)], 7), (vec![], None, 7));
    }

    #[test]
    fn a_gap_is_an_error() {
        let log = [(1, rows(0..10)), (2, rows(11..12))];
        let e = Tail::read(log.iter(), (0, 0), 0).unwrap_err();
        assert_eq!(e, "its log goes from token 10 to token 11");
        // Another head's rows are none of this one's.
        assert!(Tail::read(log.iter(), (1, 0), 0).unwrap().pieces.is_empty());
    }
}
