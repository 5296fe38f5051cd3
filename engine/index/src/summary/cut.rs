//! What a visible range leaves of the groups.

use std::ops::Range;

use attention::Rows;

use super::Summary;

/// Counts and value sums of the groups within a visible range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    /// Visible members of each group.
    pub counts: Vec<u32>,
    /// Groups of which a part is hidden, ascending.
    changed: Vec<u32>,
    /// Value sums of what is visible of them: [changed, value_dim].
    sums: Vec<f32>,
}

impl Cut {
    /// Counts what `visible` leaves of each group; reads the values of the groups of which a part is hidden.
    pub fn new(summary: &Summary, values: &Rows<'_>, visible: &Range<usize>) -> Cut {
        let mut cut = Cut::default();
        cut.counts.extend((0..summary.groups()).map(|group| summary.size(group)));
        for (groups, tokens) in summary.segments() {
            let seen = tokens.start.max(visible.start)..tokens.end.min(visible.end);
            if seen.is_empty() {
                cut.counts[groups].fill(0);
                continue;
            }
            for hidden in (tokens.start..seen.start).chain(seen.end..tokens.end) {
                cut.counts[summary.group_of(hidden)] -= 1;
            }
            for group in groups {
                if (1..summary.size(group)).contains(&cut.counts[group]) {
                    cut.changed.push(group as u32);
                    let mut sum = vec![0f64; summary.value_dim];
                    for &id in summary.members(group).iter().filter(|&&id| seen.contains(&(id as usize))) {
                        super::add(&mut sum, values.row(id as usize));
                    }
                    cut.sums.extend(sum.into_iter().map(|s| s as f32));
                }
            }
        }
        cut
    }

    /// The groups of which a part is hidden, with the value sums of the rest.
    pub fn changed(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let dim = self.sums.len() / self.changed.len().max(1);
        self.changed.iter().map(|&g| g as usize).zip(self.sums.chunks(dim.max(1)))
    }
}
