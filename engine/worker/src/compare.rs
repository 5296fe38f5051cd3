//! How far the logits of one method are from those of full attention.

use serde::Serialize;

/// Per-position differences, pooled over texts.
#[derive(Default)]
pub struct Comparison {
    kl: Vec<f64>,
    agree: usize,
    max_logit_diff: f32,
    nll_delta: Vec<f64>,
}

/// The figures of one method.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Share of positions where both argmax agree.
    pub top1_agreement: f64,
    /// Mean KL(full || method), nats.
    pub kl_mean: f64,
    /// 90th percentile of the same.
    pub kl_p90: f64,
    /// Largest absolute difference of any logit.
    pub max_logit_diff: f32,
    /// Mean negative log-likelihood of the text's next token, method minus full, nats.
    pub nll_delta: Option<f64>,
}

impl Comparison {
    /// Adds positions: `full` and `method` are `[n, vocab]`, `next` the text's next token of each position (fewer than
    /// `n` when the text ends).
    pub fn add(&mut self, full: &[f32], method: &[f32], vocab: usize, next: &[u32]) {
        assert_eq!(full.len(), method.len());
        for (i, (p, q)) in full.chunks(vocab).zip(method.chunks(vocab)).enumerate() {
            let (log_zp, log_zq) = (log_sum_exp(p), log_sum_exp(q));
            let mut kl = 0.0;
            for (&a, &b) in p.iter().zip(q) {
                let (a, b) = (f64::from(a) - log_zp, f64::from(b) - log_zq);
                kl += a.exp() * (a - b);
                self.max_logit_diff = self.max_logit_diff.max((a + log_zp - b - log_zq).abs() as f32);
            }
            self.kl.push(kl.max(0.0));
            self.agree += usize::from(argmax(p) == argmax(q));
            if let Some(&token) = next.get(i) {
                let t = token as usize;
                self.nll_delta.push((log_zq - f64::from(q[t])) - (log_zp - f64::from(p[t])));
            }
        }
    }

    /// The figures so far; `None` before the first position.
    pub fn figures(&self) -> Option<Figures> {
        if self.kl.is_empty() {
            return None;
        }
        let mut sorted = self.kl.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Figures {
            top1_agreement: self.agree as f64 / self.kl.len() as f64,
            kl_mean: mean(&self.kl),
            kl_p90: sorted[(sorted.len() - 1) * 9 / 10],
            max_logit_diff: self.max_logit_diff,
            nll_delta: (!self.nll_delta.is_empty()).then(|| mean(&self.nll_delta)),
        })
    }
}

/// Index of the largest logit; the lowest index wins a tie.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &x) in logits.iter().enumerate() {
        if x > logits[best] {
            best = i;
        }
    }
    best as u32
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let m = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(m) + logits.iter().map(|&x| f64::from(x - m).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_differ_by_nothing() {
        let logits = [0.5, -1.0, 3.0, 0.0, 2.0, 1.0];
        let mut comparison = Comparison::default();
        comparison.add(&logits, &logits, 3, &[2, 1]);
        let figures = comparison.figures().unwrap();
        assert_eq!((figures.top1_agreement, figures.kl_mean, figures.max_logit_diff), (1.0, 0.0, 0.0));
        assert_eq!(figures.nll_delta, Some(0.0));
    }

    #[test]
    fn kl_matches_the_closed_form_and_ignores_a_shift() {
        // p = (1/2, 1/2), q = (3/4, 1/4): KL = ln 2 - (ln 3) / 2.
        let mut comparison = Comparison::default();
        comparison.add(&[0.0, 0.0], &[3f32.ln() + 7.0, 7.0], 2, &[1]);
        let figures = comparison.figures().unwrap();
        assert!((figures.kl_mean - (2f64.ln() - 3f64.ln() / 2.0)).abs() < 1e-6);
        assert!((figures.nll_delta.unwrap() - (4f64.ln() - 2f64.ln())).abs() < 1e-6);
        assert_eq!(figures.top1_agreement, 1.0);
    }

    #[test]
    fn nothing_compared_is_no_figure() {
        assert!(Comparison::default().figures().is_none());
    }
}
