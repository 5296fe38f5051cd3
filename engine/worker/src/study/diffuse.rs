//! What the rows of all heads say together: how the error falls with the budget, which heads are diffuse, and what
//! budget each of them needs.

use serde::Serialize;

use super::head_rows::Row;
use super::spread::Spread;

/// What counts as diffuse, and as good enough.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A head is diffuse when it needs more tokens than this, on average, for 0.95 of the mass.
    pub diffuse: f64,
    /// The mean output error that a budget must reach.
    pub tolerance: f64,
}

/// Over all heads at one budget.
#[derive(Clone, Debug, Serialize)]
pub struct AtBudget {
    /// The budget.
    pub budget: String,
    /// Spread of the heads' mean errors with the estimate.
    pub output_error_estimate: Spread,
    /// Without it.
    pub output_error: Spread,
    /// Of the exact best tokens.
    pub oracle_topk_error: Spread,
    /// Spread of the heads' mean recovery.
    pub recovery: Spread,
    /// Heads whose mean error with the estimate is within the tolerance.
    pub heads_within_tolerance: usize,
    /// The same for the exact best tokens without an estimate.
    pub heads_within_tolerance_oracle: usize,
}

/// A head that spreads its attention over many tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diffuse {
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// Mean number of tokens for 0.95 of the mass.
    pub tokens_for_95: f64,
    /// The smallest measured budget whose mean error with the estimate is within the tolerance.
    pub budget_needed: Option<String>,
    /// The same for the exact best tokens without an estimate.
    pub budget_needed_oracle: Option<String>,
}

/// `rows` are those of each head, budget by budget, budgets ascending.
pub fn by_budget(heads: &[Vec<Row>], limits: Limits) -> Vec<AtBudget> {
    let budgets = heads.first().map_or(0, Vec::len);
    let all = (0..budgets).filter_map(|i| {
        let spread = |f: fn(&Row) -> f64| Spread::of(heads.iter().map(|rows| f(&rows[i])));
        let within = |f: fn(&Row) -> f64| heads.iter().filter(|r| f(&r[i]) <= limits.tolerance).count();
        Some(AtBudget {
            budget: heads[0][i].budget.clone(),
            output_error_estimate: spread(|r| r.output_error_estimate_mean)?,
            output_error: spread(|r| r.output_error_mean)?,
            oracle_topk_error: spread(|r| r.oracle_topk_error_mean)?,
            recovery: spread(|r| r.recovery)?,
            heads_within_tolerance: within(|r| r.output_error_estimate_mean),
            heads_within_tolerance_oracle: within(|r| r.oracle_topk_error_mean),
        })
    });
    all.collect()
}

/// The diffuse heads, the worst first.
pub fn diffuse(heads: &[Vec<Row>], limits: Limits) -> Vec<Diffuse> {
    let needed = |rows: &[Row], f: fn(&Row) -> f64| {
        rows.iter().find(|row| f(row) <= limits.tolerance).map(|row| row.budget.clone())
    };
    let mut found: Vec<Diffuse> = heads
        .iter()
        .filter(|rows| rows.first().is_some_and(|row| row.tokens_for_95 > limits.diffuse))
        .map(|rows| Diffuse {
            layer: rows[0].layer,
            kv_head: rows[0].kv_head,
            tokens_for_95: rows[0].tokens_for_95,
            budget_needed: needed(rows, |r| r.output_error_estimate_mean),
            budget_needed_oracle: needed(rows, |r| r.oracle_topk_error_mean),
        })
        .collect();
    found.sort_by(|a, b| b.tokens_for_95.total_cmp(&a.tokens_for_95));
    found
}
