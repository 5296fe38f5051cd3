//! The partial result of attention over a set of tokens.

/// (m, l, o) over a set of tokens: m = max z, l = sum exp(z - m), o = (sum exp(z - m) v) / l.
///
/// l is kept in three parts, by how the tokens were accounted for; o and m are over all three. Over no token at all it
/// is the neutral partial: m = -inf, l = 0, o = 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// The largest logit, -inf over no token.
    pub m: f32,
    /// Mass of tokens attended to at stored precision, relative to exp(m).
    pub l_exact: f32,
    /// Mass of tokens attended to in a quantised tier, relative to exp(m).
    pub l_quant: f32,
    /// Mass that was estimated from a summary or a sketch, relative to exp(m).
    pub l_est: f32,
    /// The weighted mean of the values: [value_dim].
    pub o: Vec<f32>,
}

impl Partial {
    /// Attention over no token.
    pub fn neutral(value_dim: usize) -> Partial {
        Partial { m: f32::NEG_INFINITY, l_exact: 0.0, l_quant: 0.0, l_est: 0.0, o: vec![0.0; value_dim] }
    }

    /// All of the mass.
    pub fn l(&self) -> f32 {
        self.l_exact + self.l_quant + self.l_est
    }

    /// Over no token, or over tokens without any mass.
    pub fn is_neutral(&self) -> bool {
        self.m == f32::NEG_INFINITY || self.l() <= 0.0
    }

    /// m + ln l, -inf for the neutral partial: what masses of different partials are compared by.
    pub fn log_sum_exp(&self) -> f32 {
        if self.is_neutral() { f32::NEG_INFINITY } else { self.m + self.l().ln() }
    }

    /// Makes this the partial over both sets, which must be disjoint. Commutative to the bit, associative up to
    /// rounding. Panics when the value dims differ.
    pub fn merge(&mut self, other: &Partial) {
        assert!(self.o.len() == other.o.len(), "merge: value dims {} and {}", self.o.len(), other.o.len());
        if other.is_neutral() {
            if self.is_neutral() {
                *self = Partial::neutral(self.o.len());
            }
            return;
        }
        if self.is_neutral() {
            self.clone_from(other);
            return;
        }
        let m = self.m.max(other.m);
        // exp(0) for the one with the larger m, so the sum below is never 0.
        let (a, b) = ((self.m - m).exp(), (other.m - m).exp());
        let (mass_a, mass_b) = (a * self.l(), b * other.l());
        let (share_a, share_b) = (mass_a / (mass_a + mass_b), mass_b / (mass_a + mass_b));
        for (x, y) in self.o.iter_mut().zip(&other.o) {
            *x = share_a * *x + share_b * y;
        }
        self.m = m;
        self.l_exact = a * self.l_exact + b * other.l_exact;
        self.l_quant = a * self.l_quant + b * other.l_quant;
        self.l_est = a * self.l_est + b * other.l_est;
    }

    /// Merges partials in the order given, starting from the neutral one.
    pub fn fold<'a>(value_dim: usize, partials: impl IntoIterator<Item = &'a Partial>) -> Partial {
        let mut all = Partial::neutral(value_dim);
        for partial in partials {
            all.merge(partial);
        }
        all
    }

    /// The share of the mass that is exact, in 0..=1; 1 for the neutral partial, which leaves nothing out.
    pub fn coverage(&self) -> f32 {
        if self.is_neutral() { 1.0 } else { self.l_exact / self.l() }
    }

    /// Adds a learned sink: a logit `z` that takes mass (exactly known) and has no value. To be called once, by the
    /// worker, on the merged partial. -inf adds nothing.
    pub fn add_sink_logit(&mut self, z: f32) {
        if z > f32::NEG_INFINITY {
            let mut sink = Partial::neutral(self.o.len());
            (sink.m, sink.l_exact) = (z, 1.0);
            self.merge(&sink);
        }
    }
}
