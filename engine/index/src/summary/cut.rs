//! What a visible range leaves of the groups and cells.

use std::ops::Range;

use attention::Rows;

use super::Summary;

/// Counts and value sums within a visible range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    pub groups: Left,
    pub cells: Left,
}

/// What is left of the groups, or of the cells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    /// Visible members of each.
    pub counts: Vec<u32>,
    /// Those of which a part is hidden, ascending.
    changed: Vec<u32>,
    /// Value sums of what is visible of them: [changed, value_dim].
    sums: Vec<f32>,
}

impl Cut {
    /// Counts what `visible` leaves; reads the values of the groups of which a part is hidden.
    pub fn new(summary: &Summary, values: &Rows<'_>, visible: &Range<usize>) -> Cut {
        let mut cut = Cut::counts(summary, visible);
        for segment in summary.segments() {
            let seen = segment.seen(visible);
            if !seen.is_empty() && seen != segment.tokens {
                segment.cells.for_each(|cell| cut.sum(summary, values, &seen, cell));
            }
        }
        cut
    }

    /// Counts only: no value sums.
    pub fn counts(summary: &Summary, visible: &Range<usize>) -> Cut {
        let mut cut = Cut::default();
        cut.groups.counts.extend((0..summary.groups()).map(|group| summary.size(group)));
        cut.cells.counts.extend((0..summary.cells()).map(|cell| summary.cell_size(cell)));
        for segment in summary.segments() {
            let (seen, tokens) = (segment.seen(visible), segment.tokens);
            if seen.is_empty() {
                cut.cells.counts[segment.cells.clone()].fill(0);
                for cell in segment.cells {
                    cut.groups.counts[summary.groups_of(cell)].fill(0);
                }
                continue;
            }
            for hidden in (tokens.start..seen.start).chain(seen.end..tokens.end) {
                let group = summary.group_of(hidden);
                cut.groups.counts[group] -= 1;
                cut.cells.counts[summary.cell_of(group)] -= 1;
            }
        }
        cut
    }

    /// Sums the values of what is left of a cell, where a part of it is hidden.
    fn sum(&mut self, summary: &Summary, values: &Rows<'_>, seen: &Range<usize>, cell: usize) {
        let mut total = vec![0f64; summary.value_dim()];
        let left = self.cells.counts[cell];
        if left == 0 || left == summary.cell_size(cell) {
            return;
        }
        for group in summary.groups_of(cell) {
            let count = self.groups.counts[group];
            if count == summary.size(group) {
                for (t, v) in total.iter_mut().zip(summary.groups.value_means(group..group + 1)) {
                    *t += f64::from(v.to_f32()) * f64::from(count);
                }
            } else if count > 0 {
                let mut sum = vec![0f64; summary.value_dim()];
                for &id in summary.members(group).iter().filter(|&&id| seen.contains(&(id as usize))) {
                    super::add(&mut sum, values.row(id as usize));
                }
                total.iter_mut().zip(&sum).for_each(|(t, s)| *t += s);
                self.groups.change(group, &sum);
            }
        }
        self.cells.change(cell, &total);
    }
}

impl Left {
    fn change(&mut self, at: usize, sum: &[f64]) {
        self.changed.push(at as u32);
        self.sums.extend(sum.iter().map(|&s| s as f32));
    }

    /// Those of which a part is hidden, with the value sums of the rest.
    pub fn changed(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let dim = self.sums.len() / self.changed.len().max(1);
        self.changed.iter().map(|&g| g as usize).zip(self.sums.chunks(dim.max(1)))
    }
}
