//! The remainder: what was not selected, estimated from the slots of the frontier: near groups and far cells.
//!
//! The mass of a slot is that of the members which were scored on the way (`seen`), exactly, and of the others as if
//! they all had one logit: that of the mean, plus `lift` times the spread squared, since a mean of
//! exponentials is above the exponential of the mean; but no more than the worst of the selected has. Its value is the mean value of the members that were neither
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
    /// q . k
    pub score: f32,
    /// The product that was seen on the way.
    pub seen: f32,
}

/// Working memory of [`Remainder::attend`] and [`Remainder::log_mass`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Remainder {
    /// Logits, then masses, then masses per member: [slots].
    mass: Vec<f32>,
    /// Visible members that the slot stands for: [slots].
    counts: Vec<f32>,
    /// Of these the ones that were not selected: [slots].
    left: Vec<f32>,
    /// Of these the ones of which nothing is known: [slots].
    unknown: Vec<f32>,
    /// [slots].
    spreads: Vec<f32>,
    /// The slot of each selected member.
    taken: Vec<u32>,
    weights: Vec<f32>,
    acc: Vec<f32>,
}

impl Remainder {
    /// The partial over all visible members: those of `selected` exactly, the others by estimate. The values of the
    /// selected are read once for both, since the estimate takes them out of the means of their slots.
    pub fn attend(
        &mut self,
        (k, d): (&Kernels, &Description),
        means: &Means<'_>,
        selected: &[Taken],
        values: &Rows<'_>,
    ) -> Partial {
        let dim = means.summary.value_dim();
        let mut out = Partial::neutral(dim);
        let estimated = self.weigh((k, d), means, selected);
        let total = sum(&self.mass);
        // From the mass of a slot to that of a member.
        for (mass, &left) in self.mass.iter_mut().zip(&self.left) {
            *mass = if left > 0.0 { *mass / left } else { 0.0 };
        }
        self.weights.clear();
        self.weights.extend(selected.iter().map(|t| d.logit(t.score)));
        let exact = k.max(&self.weights);
        let m = if total > 0.0 { exact.max(estimated) } else { exact };
        if m == f32::NEG_INFINITY {
            return out;
        }
        let l = k.exp_sum(&mut self.weights, m);
        let factor = if total > 0.0 { (estimated - m).exp() } else { 0.0 };
        k.scale(factor, &mut self.mass);
        self.sum_values(k, means, selected, values);
        let (l, rest) = (f64::from(l), f64::from(factor) * total);
        (out.m, out.l_exact, out.l_est) = (m, l as f32, rest as f32);
        out.o.iter_mut().zip(&self.acc).for_each(|(o, &a)| *o = (f64::from(a) / (l + rest)) as f32);
        out
    }

    /// Sums the values of all visible members: the selected ones by `weights`, the others by the mass per member.
    fn sum_values(&mut self, k: &Kernels, means: &Means<'_>, selected: &[Taken], values: &Rows<'_>) {
        let Means { summary, cut, frontier, .. } = *means;
        let dim = summary.value_dim();
        let (mass, acc) = (&self.mass, &mut self.acc);
        acc.clear();
        acc.resize(dim, 0.0);
        // Slots of which a part is hidden, with the value sums of the rest.
        let partly = || {
            let cells = cut.cells.changed().filter(|&(cell, _)| !frontier.is_open(cell));
            let groups = cut.groups.changed().filter(|&(group, _)| frontier.is_open(summary.cell_of(group)));
            cells.chain(groups.map(|(group, sum)| (frontier.slot(summary, group), sum)))
        };
        partly().for_each(|(slot, sum)| k.axpy_f32(mass[slot], sum, acc));
        self.weights.iter_mut().zip(&self.taken).for_each(|(w, &slot)| *w -= mass[slot as usize]);
        let rows = selected.iter().map(|t| values.row(t.token as usize));
        k.axpy_gather(&self.weights, dim, rows, acc);
        // Whole slots by their means; of the others the sums above are all there is.
        let weights = &mut self.weights;
        weights.clear();
        weights.extend(mass.iter().zip(&self.counts).map(|(mass, count)| mass * count));
        partly().for_each(|(slot, _)| weights[slot] = 0.0);
        let cells = 0..summary.cells();
        k.axpy_rows(&weights[cells.clone()], dim, summary.cells.value_means(cells), acc);
        for (slots, groups) in frontier.runs(summary) {
            k.axpy_rows(&weights[slots], dim, summary.groups.value_means(groups), acc);
        }
    }

    /// Log of the estimated mass of all visible members; -inf when there are none.
    pub fn log_mass(&mut self, numbers: (&Kernels, &Description), means: &Means<'_>) -> f64 {
        let m = self.weigh(numbers, means, &[]);
        let total = sum(&self.mass);
        if total > 0.0 { f64::from(m) + total.ln() } else { f64::NEG_INFINITY }
    }

    /// Fills `mass` with the mass of each slot that is neither hidden nor selected, relative to the returned maximum, and
    /// `counts`, `left` and `taken`.
    fn weigh(&mut self, (k, d): (&Kernels, &Description), means: &Means<'_>, selected: &[Taken]) -> f32 {
        let Means { summary, lift, seen, frontier, .. } = *means;
        self.describe(means);
        self.taken.clear();
        self.taken.extend(
            selected.iter().map(|t| frontier.slot(summary, summary.group_of(t.token as usize)) as u32),
        );
        self.left.clear();
        self.left.extend_from_slice(&self.counts);
        self.taken.iter().for_each(|&slot| self.left[slot as usize] -= 1.0);
        // What is known of a slot: the members that were seen, else those that were selected.
        self.unknown.clear();
        match seen.noted {
            true => self.unknown.extend(self.counts.iter().zip(&seen.count).map(|(c, s)| positive(c - s))),
            false => self.unknown.extend(self.left.iter().map(|&left| positive(left))),
        }
        self.mass.clear();
        self.mass.extend_from_slice(frontier.scores());
        let scale = match d.softcap {
            None => d.scale,
            Some(_) => {
                d.logits(&mut self.mass);
                1.0
            }
        };
        let most = most(d, seen, selected);
        k.lift(&mut self.mass, scale, &self.spreads, (lift.min(f32::MAX), most), &self.unknown);
        let mut m = k.max(&self.mass);
        if !seen.noted {
            k.exp_sum(&mut self.mass, m);
            self.mass.iter_mut().zip(&self.unknown).for_each(|(mass, unknown)| *mass *= unknown);
            return m;
        }
        m = m.max(seen.m);
        k.exp_sum(&mut self.mass, m);
        let factor = if seen.m > f32::NEG_INFINITY { (seen.m - m).exp() } else { 0.0 };
        k.blend(&mut self.mass, &self.unknown, factor, &seen.mass);
        if factor > 0.0 {
            self.weights.clear();
            self.weights.extend(selected.iter().map(|t| d.logit(t.seen)));
            k.exp_sum(&mut self.weights, seen.m);
            for (&slot, w) in self.taken.iter().zip(&self.weights) {
                self.mass[slot as usize] -= factor * w;
            }
            // A difference of sums: nothing is left of a slot that was selected as a whole, and never less.
            for &slot in &self.taken {
                let mass = &mut self.mass[slot as usize];
                *mass = if self.left[slot as usize] > 0.0 { positive(*mass) } else { 0.0 };
            }
        }
        m
    }

    /// Fills `counts` and `spreads`; nothing is left for the slot of an opened cell.
    fn describe(&mut self, means: &Means<'_>) {
        let Means { summary, cut, frontier, .. } = *means;
        self.counts.clear();
        self.counts.extend(cut.cells.counts.iter().map(|&count| count as f32));
        frontier.spreads(summary, &mut self.spreads);
        for &cell in frontier.opened() {
            self.counts[cell as usize] = 0.0;
        }
        for (_, groups) in frontier.runs(summary) {
            self.counts.extend(cut.groups.counts[groups].iter().map(|&count| count as f32));
        }
    }
}

/// The largest logit that is given to a member of which nothing is known: that of the worst selected, as far as the search is
/// right, and in any case that of the best seen. Where keys of a group are far apart, a variance says much more.
fn most(d: &Description, seen: &Seen, selected: &[Taken]) -> f32 {
    let of_selected = selected.iter().map(|t| t.score).reduce(f32::min).map(|score| d.logit(score));
    let of_seen = (seen.noted && seen.m > f32::NEG_INFINITY).then_some(seen.m);
    of_selected.or(of_seen).unwrap_or(f32::MAX)
}

/// `x`, but 0 where it is negative, without a branch.
fn positive(x: f32) -> f32 {
    if x > 0.0 { x } else { 0.0 }
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
