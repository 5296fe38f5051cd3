//! The remainder: what was not selected, estimated from the groups.
//!
//! The mass of a group is that of the members which were scored on the way (`seen`), exactly, and of the others as if
//! they all had one logit: that of the mean, plus `lift` times the spread of the group squared, since a mean of
//! exponentials is above the exponential of the mean. Its value is the mean value of the members that were neither
//! selected nor hidden. With all logits equal this is exact: counts are integers, a spread is 0, and a group that is
//! wholly selected leaves exactly nothing.

use attention::{Description, Partial, Rows};
use kernels::Kernels;

use super::{Cut, Seen, Summary};

/// What one query head knows of the groups of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means<'a> {
    pub summary: &'a Summary,
    pub cut: &'a Cut,
    /// q . mean: [groups].
    pub scores: &'a [f32],
    /// Logits per squared spread that are added to the mean's.
    pub lift: f32,
    pub seen: &'a Seen,
}

/// A selected member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Span-local.
    pub token: u32,
    /// The product that was seen on the way.
    pub seen: f32,
}

/// Working memory of [`Remainder::estimate`] and [`Remainder::log_mass`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Remainder {
    /// Logits, then masses, then masses per member of the groups.
    mass: Vec<f32>,
    /// Selected members of each group: [groups], all 0 between calls.
    taken: Vec<u32>,
    weights: Vec<f32>,
    acc: Vec<f32>,
}

impl Remainder {
    /// The partial over all visible members that are not in `selected`: m, l_est and o.
    pub fn estimate(
        &mut self,
        (k, d): (&Kernels, &Description),
        means: &Means<'_>,
        selected: &[Taken],
        values: &Rows<'_>,
    ) -> Partial {
        let (summary, cut) = (means.summary, means.cut);
        let dim = summary.value_dim;
        let mut out = Partial::neutral(dim);
        let m = self.weigh((k, d), means, selected);
        let total = sum(&self.mass);
        if total > 0.0 {
            // From the mass of a group to that of a member.
            for ((mass, &count), &taken) in self.mass.iter_mut().zip(&cut.counts).zip(&self.taken) {
                let left = difference(count, taken);
                *mass = if left > 0.0 { *mass / left } else { 0.0 };
            }
            self.acc.clear();
            self.acc.resize(dim, 0.0);
            for (group, sum) in cut.changed() {
                k.axpy_f32(self.mass[group], sum, &mut self.acc);
            }
            let whole = |(group, &mass): (usize, &f32)| {
                let size = summary.size(group);
                if cut.counts[group] == size { mass * size as f32 } else { 0.0 }
            };
            self.weights.clear();
            self.weights.extend(self.mass.iter().enumerate().map(whole));
            k.axpy_rows(&self.weights, dim, &summary.value_means, &mut self.acc);
            self.weights.clear();
            self.weights.extend(selected.iter().map(|t| -self.mass[summary.group_of(t.token as usize)]));
            let rows = selected.iter().map(|t| values.row(t.token as usize));
            k.axpy_gather(&self.weights, dim, rows, &mut self.acc);
            (out.m, out.l_est) = (m, total as f32);
            out.o.iter_mut().zip(&self.acc).for_each(|(o, &a)| *o = (f64::from(a) / total) as f32);
        }
        self.clear(summary, selected);
        out
    }

    /// Log of the estimated mass of all visible members; -inf when there are none.
    pub fn log_mass(&mut self, numbers: (&Kernels, &Description), means: &Means<'_>) -> f64 {
        let m = self.weigh(numbers, means, &[]);
        let total = sum(&self.mass);
        if total > 0.0 { f64::from(m) + total.ln() } else { f64::NEG_INFINITY }
    }

    /// Fills `mass` with the mass of each group that is neither hidden nor selected, relative to the returned maximum, and
    /// `taken`.
    fn weigh(&mut self, (k, d): (&Kernels, &Description), means: &Means<'_>, selected: &[Taken]) -> f32 {
        let Means { summary, cut, scores, lift, seen } = *means;
        self.taken.resize(summary.groups().max(self.taken.len()), 0);
        for t in selected {
            self.taken[summary.group_of(t.token as usize)] += 1;
        }
        // What is known of a group: the members that were seen, else those that were selected.
        let known = if seen.noted { &seen.count } else { &self.taken };
        self.mass.clear();
        self.mass.extend_from_slice(scores);
        d.logits(&mut self.mass);
        let others = cut.counts.iter().zip(known);
        for ((z, &spread), (&count, &known)) in self.mass.iter_mut().zip(&summary.spreads).zip(others.clone())
        {
            let lifted = *z + lift * spread * spread;
            *z = if difference(count, known) > 0.0 { lifted } else { f32::NEG_INFINITY };
        }
        let mut m = k.max(&self.mass);
        if seen.noted {
            m = m.max(seen.m);
        }
        k.exp_sum(&mut self.mass, m);
        for (mass, (&count, &known)) in self.mass.iter_mut().zip(others) {
            *mass *= difference(count, known).max(0.0);
        }
        if seen.noted && seen.m > f32::NEG_INFINITY {
            let factor = (seen.m - m).exp();
            self.mass.iter_mut().zip(&seen.mass).for_each(|(mass, &s)| *mass += factor * s);
            self.weights.clear();
            self.weights.extend(selected.iter().map(|t| d.logit(t.seen)));
            k.exp_sum(&mut self.weights, seen.m);
            for (t, w) in selected.iter().zip(&self.weights) {
                self.mass[summary.group_of(t.token as usize)] -= factor * w;
            }
            // A difference of sums: nothing is left of a group that was selected as a whole, and never less.
            for t in selected {
                let group = summary.group_of(t.token as usize);
                let left = cut.counts[group] > self.taken[group];
                self.mass[group] = if left { self.mass[group].max(0.0) } else { 0.0 };
            }
        }
        m
    }

    fn clear(&mut self, summary: &Summary, selected: &[Taken]) {
        for t in selected {
            self.taken[summary.group_of(t.token as usize)] = 0;
        }
    }
}

/// `a - b` of counts, in f32 and without a branch, so that loops over groups stay vector loops. A group has far fewer
/// members than f32 counts exactly.
fn difference(a: u32, b: u32) -> f32 {
    (a as i32 - b as i32) as f32
}

/// The sum, in f64 in eight lanes.
fn sum(x: &[f32]) -> f64 {
    let (whole, rest) = x.as_chunks::<8>();
    let mut lanes = [0f64; 8];
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += f64::from(x));
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
}
