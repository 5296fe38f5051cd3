//! How far one query head looks into a summary: cells that it is far from as a whole, the best ones group by group.
//!
//! The frontier numbers what it looks at in slots: first all cells (those that were opened stand empty), then the groups
//! of the opened cells in the order of memory. Selection, what was seen, and the estimate all count by slot, so the work
//! for a query does not grow with the number of groups.

use std::ops::Range;

use kernels::{CodeRun, Kernels, topk::Sieve};

use super::{Reader, Summary};
use crate::graph::ENTRY_MEMBERS;

/// Slots of one query head in one span.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frontier {
    /// The slot of each cell, of an opened one that of its first group: [cells].
    base: Vec<u32>,
    /// Opened cells, ascending.
    open: Vec<u32>,
    /// The group of each slot beyond the cells.
    groups: Vec<u32>,
    /// q . mean: [slots]; of an opened cell its own.
    scores: Vec<f32>,
    /// Scores the groups of opened cells.
    reader: Reader,
    sieve: Sieve,
    /// Scores of what may be chosen, -inf for the rest, where not all may.
    eligible: Vec<f32>,
}

impl Frontier {
    /// Opens the best cells that may hold visible keys, until they hold about `wanted` groups. `cells` are the products of
    /// `q` with the means of the cells.
    pub fn open(
        &mut self,
        k: &Kernels,
        summary: &Summary,
        (q, cells): (&[f32], &[f32]),
        (wanted, visible): (usize, &Range<usize>),
    ) {
        let count = wanted.saturating_mul(summary.cells()).div_ceil(summary.groups()).max(1);
        if *visible == (0..summary.tokens()) {
            self.sieve.best(cells, count, &mut self.open);
        } else {
            self.eligible.clear();
            self.eligible.extend_from_slice(cells);
            let mut segments = 0;
            for segment in summary.segments() {
                match segment.seen(visible).is_empty() {
                    true => self.eligible[segment.cells].fill(f32::NEG_INFINITY),
                    false => segments += segment.cells.len(),
                }
            }
            self.sieve.best(&self.eligible, count.min(segments), &mut self.open);
        }
        self.number(summary);
        self.scores.clear();
        self.scores.extend_from_slice(cells);
        self.reader.runs.clear();
        self.reader.runs.extend(self.open.iter().map(|&cell| {
            let groups = summary.groups_of(cell as usize);
            CodeRun { first: groups.start as u32, len: groups.len() as u32, parent: cells[cell as usize] }
        }));
        summary.group_means().prepare(q, &mut self.reader);
        summary.group_means().read(k, &mut self.reader);
        self.scores.extend_from_slice(&self.reader.scores);
    }

    /// Opens every cell without scoring anything: for a search that sees every key.
    pub fn open_all(&mut self, summary: &Summary) {
        self.open.clear();
        self.open.extend(0..summary.cells() as u32);
        self.number(summary);
        self.scores.clear();
        self.scores.resize(self.slots(), f32::NEG_INFINITY);
    }

    fn number(&mut self, summary: &Summary) {
        self.base.clear();
        self.base.extend(0..summary.cells() as u32);
        self.groups.clear();
        for &cell in &self.open {
            self.base[cell as usize] = (summary.cells() + self.groups.len()) as u32;
            let groups = summary.groups_of(cell as usize);
            self.groups.extend(groups.start as u32..groups.end as u32);
        }
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.base.len() + self.groups.len()
    }

    /// The number of groups looked at one by one.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// q . mean of every slot.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// Whether a cell was opened.
    pub fn is_open(&self, cell: usize) -> bool {
        self.base[cell] as usize != cell
    }

    /// Opened cells, ascending.
    pub fn opened(&self) -> &[u32] {
        &self.open
    }

    /// The slot of a group, or of the cell that it lies in.
    pub fn slot(&self, summary: &Summary, group: usize) -> usize {
        let cell = summary.cell_of(group);
        match self.is_open(cell) {
            true => self.base[cell] as usize + group - summary.groups_of(cell).start,
            false => cell,
        }
    }

    /// The group of a slot beyond the cells.
    pub fn group(&self, slot: usize) -> u32 {
        self.groups[slot - self.base.len()]
    }

    /// A product with q that a member of a slot rarely exceeds: `factor` spreads above the mean's, for each slot.
    pub fn bounds(&self, summary: &Summary, q: &[f32], factor: f32, out: &mut Vec<f32>) {
        let reach = factor * q.iter().map(|x| x * x).sum::<f32>().sqrt();
        self.spreads(summary, out);
        out.iter_mut().zip(&self.scores).for_each(|(bound, score)| *bound = score + reach * *bound);
    }

    /// The spread of every slot, replacing what `out` held.
    pub fn spreads(&self, summary: &Summary, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(summary.cells.spreads());
        for (_, groups) in self.runs(summary) {
            out.extend_from_slice(&summary.groups.spreads()[groups]);
        }
    }

    /// Slots of opened cells that follow each other, with their groups.
    pub fn runs<'a>(
        &'a self,
        summary: &'a Summary,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + 'a {
        self.open.chunk_by(|a, b| a + 1 == *b).map(|cells| {
            let (first, last) = (cells[0] as usize, cells[cells.len() - 1] as usize);
            let groups = summary.groups_of(first).start..summary.groups_of(last).end;
            let slot = self.base[first] as usize;
            (slot..slot + groups.len(), groups)
        })
    }

    /// The slots of the best `count` groups with an entry within `visible`, ascending.
    pub fn best(&mut self, summary: &Summary, count: usize, visible: &Range<usize>, out: &mut Vec<u32>) {
        let cells = self.base.len();
        if *visible == (0..summary.tokens()) {
            self.sieve.best(&self.scores[cells..], count, out);
        } else {
            self.eligible.clear();
            let mut eligible = 0;
            for (&group, &score) in self.groups.iter().zip(&self.scores[cells..]) {
                let mut entries = summary.members(group as usize).iter().take(ENTRY_MEMBERS);
                let enters = entries.any(|&id| visible.contains(&(id as usize)));
                eligible += usize::from(enters);
                self.eligible.push(if enters { score } else { f32::NEG_INFINITY });
            }
            self.sieve.best(&self.eligible, count.min(eligible), out);
        }
        out.iter_mut().for_each(|slot| *slot += cells as u32);
    }
}
