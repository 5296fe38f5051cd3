//! Rows of the study of heads: means over positions, query heads and texts.

use index::Budget;
use serde::Serialize;

use super::measure::{AtBudget, Measured, Query, SHARES};
use super::spread::{Spread, mean};

/// One (layer, KV head), measured on one text or several.
pub struct HeadFigures {
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// One for each text.
    pub texts: Vec<Measured>,
}

/// One line of output: a head at a budget.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    record: &'static str,
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// A count or `all`.
    pub budget: String,
    /// Queries: positions x query heads x texts.
    pub queries: usize,
    /// Tokens that the index covers.
    pub indexed_tokens: usize,
    /// Kinds chosen, one for each text unless they agree.
    pub index: String,
    /// Calibrated widths, as for `index`; a scan of every key has 1.
    pub width: String,
    /// Lowest of the texts.
    pub recall_estimate: Option<f32>,
    /// Share of the best tokens that were selected.
    pub recall_at_k: f64,
    /// Mean mass of sink and window.
    pub local_share: f64,
    /// Mass held by sink, window and selection.
    pub recovery: f64,
    /// The same with as many best tokens.
    pub recovery_oracle: f64,
    /// Of the mass between sink and window, all queries together, the part held by the selection. None where there is
    /// no such mass.
    pub recovery_indexed: Option<f64>,
    /// The same with as many best tokens.
    pub recovery_indexed_oracle: Option<f64>,
    /// |o - o_full| / |o_full| with the estimate of what was not selected.
    pub output_error_estimate_mean: f64,
    /// A tenth of the queries is above.
    pub output_error_estimate_p90: f64,
    /// Without the estimate.
    pub output_error_mean: f64,
    /// A tenth of the queries is above.
    pub output_error_p90: f64,
    /// Of the exact best tokens, without an estimate.
    pub oracle_topk_error_mean: f64,
    /// Of sink and window alone.
    pub local_error_mean: f64,
    /// Fewest indexed tokens for 0.90, 0.95 and 0.99 of the whole mass: mean.
    pub tokens_for_90: f64,
    /// See `tokens_for_90`.
    pub tokens_for_95: f64,
    /// See `tokens_for_90`.
    pub tokens_for_99: f64,
    /// A tenth of the queries needs more for 0.95.
    pub tokens_for_95_p90: f64,
}

/// How a budget is written.
pub fn budget_text(budget: Budget) -> String {
    match budget {
        Budget::TopK(k) => k.to_string(),
        Budget::Coverage(share) => format!("coverage={share}"),
        Budget::All => "all".into(),
    }
}

impl HeadFigures {
    /// A row for each budget; none without a query.
    pub fn rows(&self, budgets: &[Budget]) -> Vec<Row> {
        budgets.iter().enumerate().filter_map(|(i, &budget)| self.row(i, budget)).collect()
    }

    fn queries(&self) -> impl Iterator<Item = &Query> {
        self.texts.iter().flat_map(|text| &text.queries)
    }

    fn row(&self, i: usize, budget: Budget) -> Option<Row> {
        let of = |f: fn(&Query) -> f64| mean(self.queries().map(f));
        let at = |f: fn(&AtBudget) -> f64| mean(self.queries().map(|q| f(&q.at[i])));
        let held = |f: fn(&AtBudget) -> f64| mean(self.queries().map(|q| (q.local + f(&q.at[i])).min(1.0)));
        let tail = |f: fn(&AtBudget) -> f64| Spread::of(self.queries().map(|q| f(&q.at[i]))).map(|s| s.p90);
        let tokens = |s: usize| mean(self.queries().map(|q| q.tokens_for[s] as f64));
        let between: f64 = self.queries().map(|q| 1.0 - q.local).sum();
        let of_between = |f: fn(&AtBudget) -> f64| {
            let mass: f64 = self.queries().map(|q| f(&q.at[i])).sum();
            (between > 0.0).then(|| (mass / between).min(1.0))
        };
        const { assert!(SHARES[0] == 0.90 && SHARES[1] == 0.95 && SHARES[2] == 0.99) };
        Some(Row {
            record: "head",
            layer: self.layer,
            kv_head: self.kv_head,
            budget: budget_text(budget),
            queries: self.queries().count(),
            indexed_tokens: self.texts.first()?.indexed,
            index: agreed(self.texts.iter().map(|text| text.kind.to_string())),
            width: agreed(self.texts.iter().map(|text| text.width.to_string())),
            recall_estimate: self.texts.iter().filter_map(|text| text.recall_estimate).reduce(f32::min),
            recall_at_k: at(|a| a.recall)?,
            local_share: of(|q| q.local)?,
            recovery: held(|a| a.selected)?,
            recovery_oracle: held(|a| a.best)?,
            recovery_indexed: of_between(|a| a.selected),
            recovery_indexed_oracle: of_between(|a| a.best),
            output_error_estimate_mean: at(|a| a.error_estimate)?,
            output_error_estimate_p90: tail(|a| a.error_estimate)?,
            output_error_mean: at(|a| a.error)?,
            output_error_p90: tail(|a| a.error)?,
            oracle_topk_error_mean: at(|a| a.error_oracle)?,
            local_error_mean: of(|q| q.local_error)?,
            tokens_for_90: tokens(0)?,
            tokens_for_95: tokens(1)?,
            tokens_for_99: tokens(2)?,
            tokens_for_95_p90: Spread::of(self.queries().map(|q| q.tokens_for[1] as f64))?.p90,
        })
    }
}

/// One word when all are the same, otherwise all of them.
fn agreed(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    if words.windows(2).all(|pair| pair[0] == pair[1]) {
        words.truncate(1);
    }
    words.join("+")
}
