//! What each span adds to the exact mass of a step, and what share of all mass that comes to: what a cache policy needs.

use attention::Partial;

/// Of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    added: Vec<Added>,
    /// One for each span.
    spans: Vec<f32>,
}

/// Exact mass of one span for one head, relative to exp(m).
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
        // A difference of sums in f32: a share, not an account.
        let old = if before.1 > 0.0 { before.1 * (before.0 - after.m).exp() } else { 0.0 };
        let l = after.l_exact - old;
        if l > 0.0 {
            self.added.push(Added { span, head, m: after.m, l });
        }
    }

    /// All spans have been attended to: shares are means over the heads' partials.
    pub fn settle(&mut self, out: &[Partial]) {
        for added in &self.added {
            let all = &out[added.head];
            let total = all.l_exact + all.l_quant + all.l_est;
            let share = added.l * (added.m - all.m).exp() / total;
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
