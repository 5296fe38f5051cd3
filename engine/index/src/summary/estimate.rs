//! The remainder: what was not selected, estimated from the groups.
//!
//! For a group with mean q . mean = s, the members that were neither selected nor hidden are taken as if all had the
//! logit of the mean: mass exp(z(s)) times their count, and the sum of their values. With all logits equal this is
//! exact: counts are integers, and a group that is wholly selected leaves exactly nothing.

use std::ops::Range;

use attention::{Description, Partial, Rows};
use half::f16;
use kernels::Kernels;

use super::{SEGMENT, Summary};

/// Counts and value sums of the groups within a visible range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    /// Visible members of each group.
    counts: Vec<u32>,
    /// Value sums of the groups of segments that the range cuts: [groups, value_dim] from the first such group on.
    sums: Vec<(Range<usize>, Vec<f32>)>,
}

impl Cut {
    /// Counts what `visible` leaves of each group; reads values only in the at most two segments that it cuts.
    pub fn new(summary: &Summary, values: &Rows<'_>, visible: &Range<usize>) -> Cut {
        let tokens = summary.group_of.len();
        let mut cut = Cut { counts: vec![0; summary.groups()], sums: Vec::new() };
        for (s, start) in (0..tokens).step_by(SEGMENT).enumerate() {
            let groups = summary.segments[s] as usize..summary.segments[s + 1] as usize;
            let seen = start.max(visible.start)..(start + SEGMENT).min(tokens).min(visible.end);
            if seen.len() == (start + SEGMENT).min(tokens) - start {
                for group in groups {
                    cut.counts[group] = summary.first[group + 1] - summary.first[group];
                }
            } else if seen.start < seen.end {
                let mut sums = vec![0f64; groups.len() * summary.value_dim];
                for token in seen {
                    let group = summary.group_of(token);
                    cut.counts[group] += 1;
                    let at = (group - groups.start) * summary.value_dim;
                    super::add(&mut sums[at..at + summary.value_dim], values.row(token));
                }
                cut.sums.push((groups, sums.into_iter().map(|s| s as f32).collect()));
            }
        }
        cut
    }

    fn sum<'a>(&'a self, summary: &'a Summary, group: usize) -> &'a [f32] {
        let dim = summary.value_dim;
        match self.sums.iter().find(|(groups, _)| groups.contains(&group)) {
            Some((groups, sums)) => &sums[(group - groups.start) * dim..][..dim],
            None => &summary.value_sums[group * dim..][..dim],
        }
    }
}

/// Working memory of [`Remainder::estimate`] and [`Remainder::mass`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Remainder {
    /// Logits of the groups' means, then weights.
    weights: Vec<f32>,
    /// Selected members of each touched group.
    taken: Vec<u32>,
    acc: Vec<f32>,
}

impl Remainder {
    /// The partial over all visible members that are not in `selected`: m, l_est and o.
    pub fn estimate(
        &mut self,
        (k, d): (&Kernels, &Description),
        (summary, cut): (&Summary, &Cut),
        scores: &[f32],
        selected: &[(u32, f32)],
        values: &Rows<'_>,
    ) -> Partial {
        let dim = summary.value_dim;
        let mut out = Partial::neutral(dim);
        let Some(m) = self.weigh(k, d, (summary, cut), scores, selected) else { return out };
        self.acc.clear();
        self.acc.resize(dim, 0.0);
        let mut mass = 0f64;
        for (group, &w) in self.weights.iter().enumerate() {
            let left = cut.counts[group] - self.taken[group];
            if left > 0 && w > 0.0 {
                mass += f64::from(w) * f64::from(left);
                k.axpy_f32(w, cut.sum(summary, group), &mut self.acc);
            }
        }
        for &(token, _) in selected {
            let group = summary.group_of(token as usize);
            // A group that is wholly selected was not added above.
            if cut.counts[group] > self.taken[group] && self.weights[group] > 0.0 {
                subtract(k, self.weights[group], values.row(token as usize), &mut self.acc);
            }
        }
        self.clear(summary, selected);
        if mass > 0.0 {
            (out.m, out.l_est) = (m, mass as f32);
            out.o.iter_mut().zip(&self.acc).for_each(|(o, &a)| *o = (f64::from(a) / mass) as f32);
        }
        out
    }

    /// Log of the estimated mass of the visible members that are not in `selected`; -inf when there are none.
    pub fn log_mass(
        &mut self,
        (k, d): (&Kernels, &Description),
        (summary, cut): (&Summary, &Cut),
        scores: &[f32],
    ) -> f64 {
        let Some(m) = self.weigh(k, d, (summary, cut), scores, &[]) else { return f64::NEG_INFINITY };
        let mass: f64 =
            self.weights.iter().zip(&cut.counts).map(|(&w, &c)| f64::from(w) * f64::from(c)).sum();
        f64::from(m) + mass.ln()
    }

    /// Weights of the groups that are not wholly selected, relative to the returned maximum.
    fn weigh(
        &mut self,
        k: &Kernels,
        d: &Description,
        (summary, cut): (&Summary, &Cut),
        scores: &[f32],
        selected: &[(u32, f32)],
    ) -> Option<f32> {
        self.taken.resize(summary.groups().max(self.taken.len()), 0);
        for &(token, _) in selected {
            self.taken[summary.group_of(token as usize)] += 1;
        }
        self.weights.clear();
        let left = cut.counts.iter().zip(&self.taken);
        self.weights.extend(
            scores.iter().zip(left).map(|(&s, (&c, &t))| if c > t { d.logit(s) } else { f32::NEG_INFINITY }),
        );
        let m = k.max(&self.weights);
        if m == f32::NEG_INFINITY {
            self.clear(summary, selected);
            return None;
        }
        k.exp_sum(&mut self.weights, m);
        Some(m)
    }

    fn clear(&mut self, summary: &Summary, selected: &[(u32, f32)]) {
        for &(token, _) in selected {
            self.taken[summary.group_of(token as usize)] = 0;
        }
    }
}

fn subtract(k: &Kernels, w: f32, row: &[f16], acc: &mut [f32]) {
    k.axpy_group(&[-w], row, acc);
}
