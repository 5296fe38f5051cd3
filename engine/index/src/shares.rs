//! What each span adds to the exact mass of a step, and what share of all mass that comes to: what a cache policy needs.

use attention::Partial;

/// Of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    added: Vec<Added>,
    /// One for each span.
    spans: Vec<f32>,
}

/// Mass of one span for one head, relative to exp(m).
#[derive(Clone, Copy, Debug)]
struct Added {
    span: usize,
    head: usize,
    m: f32,
    l: f32,
}

impl Shares {
    /// Forgets the call before; `spans` are to come.
    pub fn begin(&mut self, spans: usize) {
        self.added.clear();
        self.spans.clear();
        self.spans.resize(spans, 0.0);
    }

    /// A span has been attended to: the maximum and the exact mass of the head's partial were `before`.
    pub fn note(&mut self, (span, head): (usize, usize), before: (f32, f32), after: &Partial) {
        self.add((span, head), before, (after.m, after.l_exact));
    }

    /// The same for all of its mass, of which the maximum and the whole mass were `before`.
    pub fn note_all(&mut self, (span, head): (usize, usize), before: (f32, f32), after: &Partial) {
        self.add((span, head), before, before_all(after));
    }

    fn add(&mut self, (span, head): (usize, usize), before: (f32, f32), (m, after): (f32, f32)) {
        // A difference of sums in f32: a share, not an account.
        let old = if before.1 > 0.0 { before.1 * (before.0 - m).exp() } else { 0.0 };
        let l = after - old;
        if l > 0.0 {
            self.added.push(Added { span, head, m, l });
        }
    }

    /// All spans have been attended to: shares are means over the heads' partials.
    pub fn settle(&mut self, out: &[Partial]) {
        for added in &self.added {
            let all = &out[added.head];
            let share = added.l * (added.m - all.m).exp() / before_all(all).1;
            if share.is_finite() {
                self.spans[added.span] += share / out.len() as f32;
            }
        }
    }

    /// The share of each span.
    pub fn of_spans(&self) -> &[f32] {
        &self.spans
    }
}

/// What [`Shares::note`] wants to know of a partial before a span is attended to.
pub(crate) fn before(out: &Partial) -> (f32, f32) {
    (out.m, out.l_exact)
}

/// The same for [`Shares::note_all`].
pub(crate) fn before_all(out: &Partial) -> (f32, f32) {
    (out.m, out.l_exact + out.l_quant + out.l_est)
}
