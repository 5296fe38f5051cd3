//! The remainder: what was not selected, estimated from the slots of the frontier: near groups and far cells.
//!
//! The mass of a slot is that of the members which were scored on the way (`seen`), exactly, and of the others as if
//! they all had one logit: that of the mean, plus `lift` times the spread squared, since a mean of
//! exponentials is above the exponential of the mean. Its value is the mean value of the members that were neither
//! selected nor hidden. With all logits equal this is exact: counts are integers, a spread is 0, and a slot that is
//! wholly selected leaves exactly nothing.

use attention::{Description, Partial, Rows};
use kernels::Kernels;

use super::{Cut, Frontier, Seen, Summary};

/// What one query head knows of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means<'a> {
    pub summary: &'a Summary,
    pub cut: &'a Cut,
    pub frontier: &'a Frontier,
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
    /// Logits, then masses, then masses per member: [slots].
    mass: Vec<f32>,
    /// Visible members that the slot stands for: [slots].
    counts: Vec<u32>,
    /// [slots].
    spreads: Vec<f32>,
    /// Selected members: [slots].
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
        let dim = means.summary.value_dim();
        let mut out = Partial::neutral(dim);
        let m = self.weigh((k, d), means, selected);
        let total = sum(&self.mass);
        if total > 0.0 {
            // From the mass of a slot to that of a member.
            for ((mass, &count), &taken) in self.mass.iter_mut().zip(&self.counts).zip(&self.taken) {
                let left = difference(count, taken);
                *mass = if left > 0.0 { *mass / left } else { 0.0 };
            }
            self.sum_values(k, means, selected, values);
            (out.m, out.l_est) = (m, total as f32);
            out.o.iter_mut().zip(&self.acc).for_each(|(o, &a)| *o = (f64::from(a) / total) as f32);
        }
        out
    }

    /// Sums the values of all visible members that are not in `selected`, weighted with the mass per member.
    fn sum_values(&mut self, k: &Kernels, means: &Means<'_>, selected: &[Taken], values: &Rows<'_>) {
        let Means { summary, cut, frontier, .. } = *means;
        let dim = summary.value_dim();
        let (mass, acc) = (&self.mass, &mut self.acc);
        acc.clear();
        acc.resize(dim, 0.0);
        for (cell, sum) in cut.cells.changed().filter(|&(cell, _)| !frontier.is_open(cell)) {
            k.axpy_f32(mass[cell], sum, acc);
        }
        for (group, sum) in
            cut.groups.changed().filter(|&(group, _)| frontier.is_open(summary.cell_of(group)))
        {
            k.axpy_f32(mass[frontier.slot(summary, group)], sum, acc);
        }
        let whole =
            |slot: usize, size: u32| if self.counts[slot] == size { mass[slot] * size as f32 } else { 0.0 };
        let weights = &mut self.weights;
        weights.clear();
        weights.extend((0..summary.cells()).map(|cell| whole(cell, summary.cell_size(cell))));
        k.axpy_rows(weights, dim, summary.cells.value_means(0..summary.cells()), acc);
        for (slots, groups) in frontier.runs(summary) {
            weights.clear();
            weights.extend(slots.zip(groups.clone()).map(|(slot, group)| whole(slot, summary.size(group))));
            k.axpy_rows(weights, dim, summary.groups.value_means(groups), acc);
        }
        let slot = |t: &Taken| frontier.slot(summary, summary.group_of(t.token as usize));
        weights.clear();
        weights.extend(selected.iter().map(|t| -mass[slot(t)]));
        k.axpy_gather(weights, dim, selected.iter().map(|t| values.row(t.token as usize)), acc);
    }

    /// Log of the estimated mass of all visible members; -inf when there are none.
    pub fn log_mass(&mut self, numbers: (&Kernels, &Description), means: &Means<'_>) -> f64 {
        let m = self.weigh(numbers, means, &[]);
        let total = sum(&self.mass);
        if total > 0.0 { f64::from(m) + total.ln() } else { f64::NEG_INFINITY }
    }

    /// Fills `mass` with the mass of each slot that is neither hidden nor selected, relative to the returned maximum, and
    /// `counts` and `taken`.
    fn weigh(&mut self, (k, d): (&Kernels, &Description), means: &Means<'_>, selected: &[Taken]) -> f32 {
        let Means { summary, lift, seen, frontier, .. } = *means;
        self.describe(means);
        let slot = |t: &Taken| frontier.slot(summary, summary.group_of(t.token as usize));
        self.taken.clear();
        self.taken.resize(frontier.slots(), 0);
        for t in selected {
            self.taken[slot(t)] += 1;
        }
        // What is known of a slot: the members that were seen, else those that were selected.
        let known = if seen.noted { &seen.count } else { &self.taken };
        self.mass.clear();
        self.mass.extend_from_slice(frontier.scores());
        d.logits(&mut self.mass);
        let others = self.counts.iter().zip(known);
        for ((z, &spread), (&count, &known)) in self.mass.iter_mut().zip(&self.spreads).zip(others.clone()) {
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
                self.mass[slot(t)] -= factor * w;
            }
            // A difference of sums: nothing is left of a slot that was selected as a whole, and never less.
            for slot in selected.iter().map(slot) {
                let left = self.counts[slot] > self.taken[slot];
                self.mass[slot] = if left { self.mass[slot].max(0.0) } else { 0.0 };
            }
        }
        m
    }

    /// Fills `counts` and `spreads`; nothing is left for the slot of an opened cell.
    fn describe(&mut self, means: &Means<'_>) {
        let Means { summary, cut, frontier, .. } = *means;
        self.counts.clear();
        self.counts.extend_from_slice(&cut.cells.counts);
        frontier.spreads(summary, &mut self.spreads);
        for &cell in frontier.opened() {
            self.counts[cell as usize] = 0;
        }
        for (_, groups) in frontier.runs(summary) {
            self.counts.extend_from_slice(&cut.groups.counts[groups]);
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
