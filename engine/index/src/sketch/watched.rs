//! What decode paid attention to, and with what queries: all that a sketch learns from.

use super::error::SketchError;

/// Rows of attention that the prior is worth, where a token was seen by few. From 0.1 to 5 the errors hardly
/// differ.
const PRIOR_ROWS: f64 = 0.25;
/// Share of the mean variance of the queries that is added to every direction: later queries are not quite like these.
const RIDGE: f64 = 0.2;

/// Attention that the tokens of a span received, fed by the decode path row by row.
#[derive(Clone, Debug)]
pub struct Watched {
    dim: usize,
    /// Sums of softmax weights: [tokens].
    attention: Vec<f64>,
    /// How many rows saw the tokens before this one and not this one: [tokens + 1].
    ends: Vec<u32>,
    /// Sum of q q^T: [dim, dim].
    moment: Vec<f64>,
    queries: usize,
}

impl Watched {
    /// Nothing yet, over `tokens` tokens with keys of `dim` elements.
    pub fn new(tokens: usize, dim: usize) -> Watched {
        Watched {
            dim,
            attention: vec![0.0; tokens],
            ends: vec![0; tokens + 1],
            moment: vec![0.0; dim * dim],
            queries: 0,
        }
    }

    /// Notes one row of one query head: it saw the tokens before `visible`, and paid `weights` (shares of its whole
    /// softmax) to `ids`, to the others next to nothing.
    ///
    /// # Errors
    /// A token that does not exist, a query of the wrong length, or a weight that is negative or not finite; nothing is
    /// noted then.
    pub fn observe(
        &mut self,
        q: &[f32],
        visible: usize,
        ids: &[u32],
        weights: &[f32],
    ) -> Result<(), SketchError> {
        assert!(ids.len() == weights.len(), "{} ids and {} weights", ids.len(), weights.len());
        if q.len() != self.dim {
            return Err(SketchError::Dim { what: "query", elements: q.len(), dim: self.dim });
        }
        let tokens = self.tokens();
        for (&token, weight) in ids.iter().zip(weights) {
            if token as usize >= tokens {
                return Err(SketchError::Unknown { token, tokens });
            }
            if !weight.is_finite() || *weight < 0.0 {
                return Err(SketchError::Weight { token, weight: weight.to_string() });
            }
        }
        for (&token, &weight) in ids.iter().zip(weights) {
            self.attention[token as usize] += f64::from(weight);
        }
        self.ends[visible.min(tokens)] += 1;
        for (row, &a) in self.moment.chunks_exact_mut(self.dim).zip(q) {
            row.iter_mut().zip(q).for_each(|(m, &b)| *m += f64::from(a) * f64::from(b));
        }
        self.queries += 1;
        Ok(())
    }

    /// Tokens that are watched.
    pub fn tokens(&self) -> usize {
        self.attention.len()
    }

    /// Elements of a query.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Accumulated attention: [tokens].
    pub fn attention(&self) -> &[f64] {
        &self.attention
    }

    /// The square of the weight that each token is expected to have for a later query: [tokens].
    ///
    /// A token that many rows saw has the mean weight they paid. One that few or none saw may be any: it has the mean
    /// square over the tokens that were seen, which in a head with a few heavy tokens is far above the square of the
    /// mean. This keeps recent and never seen tokens from being squeezed on no evidence.
    pub(super) fn expected_squares(&self) -> Vec<f64> {
        // How many rows saw each token: those whose end lies beyond it.
        let mut rows = 0.0;
        let mut seen: Vec<f64> = self.ends[1..]
            .iter()
            .rev()
            .map(|&ended| {
                rows += f64::from(ended);
                rows
            })
            .collect();
        seen.reverse();
        let mean = |(&attention, &seen): (&f64, &f64)| if seen > 0.0 { attention / seen } else { 0.0 };
        let squares: Vec<f64> = self.attention.iter().zip(&seen).map(|pair| mean(pair).powi(2)).collect();
        let known = seen.iter().filter(|&&seen| seen > 0.0).count();
        let prior = squares.iter().sum::<f64>() / known.max(1) as f64;
        if prior == 0.0 {
            return vec![1.0; self.tokens()];
        }
        let shrunk =
            |(&square, &seen): (&f64, &f64)| (seen * square + PRIOR_ROWS * prior) / (seen + PRIOR_ROWS);
        squares.iter().zip(&seen).map(shrunk).collect()
    }

    /// The second moment of the logits' queries, scale^2 E[q q^T], with a ridge: [dim, dim]. The identity where no query
    /// was watched.
    pub(super) fn metric(&self, scale: f32) -> Vec<f64> {
        let dim = self.dim;
        let factor = f64::from(scale).powi(2) / self.queries.max(1) as f64;
        let mut metric: Vec<f64> = self.moment.iter().map(|m| m * factor).collect();
        let ridge = RIDGE * (0..dim).map(|i| metric[i * dim + i]).sum::<f64>() / dim as f64;
        let ridge = if ridge > 0.0 { ridge } else { 1.0 };
        (0..dim).for_each(|i| metric[i * dim + i] += ridge);
        metric
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_few_rows_saw_may_be_anything_and_what_many_ignored_is_little() {
        let mut watched = Watched::new(4, 2);
        for _ in 0..100 {
            watched.observe(&[1.0, 0.0], 3, &[0, 1], &[0.9, 0.01]).unwrap();
        }
        let squares = watched.expected_squares();
        assert!((squares[0] - 0.81).abs() < 0.01, "{squares:?}");
        assert!(squares[0] > squares[3] && squares[3] > 100.0 * squares[2], "{squares:?}");
        assert!(squares[1] > squares[2]);
        assert_eq!(Watched::new(3, 2).expected_squares(), [1.0; 3]);
    }

    #[test]
    fn the_metric_is_that_of_the_queries_with_a_ridge() {
        let mut watched = Watched::new(1, 2);
        assert_eq!(watched.metric(0.5), [1.0, 0.0, 0.0, 1.0]);
        watched.observe(&[2.0, 0.0], 1, &[], &[]).unwrap();
        watched.observe(&[0.0, 4.0], 1, &[], &[]).unwrap();
        // 0.25 * (diag(4, 16) / 2), and a fifth of its mean.
        let ridge = 0.2 * 1.25;
        assert_eq!(watched.metric(0.5), [0.5 + ridge, 0.0, 0.0, 2.0 + ridge]);
    }

    #[test]
    fn wrong_observations_change_nothing() {
        let mut watched = Watched::new(2, 2);
        assert!(watched.observe(&[1.0], 2, &[0], &[0.5]).is_err());
        assert!(watched.observe(&[1.0, 1.0], 2, &[0, 2], &[0.5, 0.5]).is_err());
        assert!(watched.observe(&[1.0, 1.0], 2, &[0, 1], &[0.5, -0.5]).is_err());
        assert_eq!((watched.attention(), watched.queries), (&[0.0, 0.0][..], 0));
    }
}
