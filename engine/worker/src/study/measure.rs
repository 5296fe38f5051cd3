//! One KV head of one text: its index, asked at every budget, against dense attention in f64.

use anyhow::Result;
use index::{Budget, Kind};
use kernels::Kernels;
use rayon::prelude::*;

use crate::bench::head::{Answers, Head, Setting, Setup};
use crate::bench::truth::{Reference, Truth, error};
use crate::capture_file::Capture;

/// Shares of the softmax mass whose price in tokens is asked.
pub const SHARES: [f64; 3] = [0.90, 0.95, 0.99];

/// What the index of a head came to, and what its queries saw.
pub struct Measured {
    /// Which kind `auto` chose.
    pub kind: Kind,
    /// Calibrated search width.
    pub width: usize,
    /// Recall on held-back build queries.
    pub recall_estimate: Option<f32>,
    /// Tokens that the index covers.
    pub indexed: usize,
    /// Position by position, query head by query head.
    pub queries: Vec<Query>,
}

/// One query head at one position. Shares are of the whole softmax.
pub struct Query {
    /// The mass of sink and window.
    pub local: f64,
    /// The fewest indexed tokens that reach each of [`SHARES`] together with sink and window.
    pub tokens_for: [usize; SHARES.len()],
    /// Output error of sink and window alone.
    pub local_error: f64,
    /// At each budget.
    pub at: Vec<AtBudget>,
}

/// The same at one budget.
#[derive(Clone, Copy, Debug)]
pub struct AtBudget {
    /// The mass of the tokens that the index selected.
    pub selected: f64,
    /// The mass of as many best tokens: the most that a selection can hold.
    pub best: f64,
    /// Share of the best tokens that the index selected.
    pub recall: f64,
    /// Output error with the estimate of what was not selected.
    pub error_estimate: f64,
    /// Output error without it.
    pub error: f64,
    /// Output error of the exact best tokens, without an estimate.
    pub error_oracle: f64,
}

/// Builds the index of a capture of one KV head and asks its decode queries at every budget.
///
/// # Errors
/// Of the build.
pub fn measure(capture: &Capture, budgets: &[Budget], (kind, seed): (Kind, u64)) -> Result<Measured> {
    let setup =
        Setup { kernels: Kernels::native(), kind, spans: 1, copies: 1, passes: 0, calibrated: true, seed };
    let head = Head::build(capture, 0, &setup)?;
    let decode: Vec<usize> = capture.decode_queries().collect();
    let ask = |budget: Budget, estimate: bool| {
        head.ask_all(capture, &setup, &Setting { budget, estimate, width: None }, &decode).answers
    };
    let answers: Vec<[Vec<Answers>; 2]> = budgets.iter().map(|&b| [ask(b, false), ask(b, true)]).collect();
    let dims = (capture.dim, capture.value_dim);
    let reference = Reference::new(&head.keys, &head.values, dims, capture.meta.scale, capture.indexed());
    let judge = Judge { capture, setup: &setup, head: &head, reference };
    let queries = decode
        .par_iter()
        .enumerate()
        .flat_map_iter(|(at, &j)| {
            let of_budget = answers.iter().map(|[off, on]| [&off[at], &on[at]]);
            judge.position(j, budgets, &of_budget.collect::<Vec<_>>())
        })
        .collect();
    let index = &head.spans()[0].index;
    Ok(Measured {
        kind: index.kind(),
        width: index.width(),
        recall_estimate: index.recall_estimate(),
        indexed: capture.indexed().len(),
        queries,
    })
}

struct Judge<'a> {
    capture: &'a Capture,
    setup: &'a Setup,
    head: &'a Head,
    reference: Reference,
}

impl Judge<'_> {
    /// All query heads of decode query `j`, with the answers of each budget without and with estimate.
    fn position(&self, j: usize, budgets: &[Budget], answers: &[[&Answers; 2]]) -> Vec<Query> {
        let (dim, width) = (self.capture.dim, self.capture.group() * self.capture.dim);
        let position = self.capture.q_pos[j] as usize;
        let q = &self.head.queries[j * width..(j + 1) * width];
        let outputs: Vec<[Vec<Vec<f64>>; 2]> =
            answers.iter().map(|both| both.map(|answers| self.merged(j, answers))).collect();
        let heads = q.chunks(dim).enumerate().map(|(h, q)| {
            let truth = self.reference.attend(q, position);
            let local = self.reference.outside_share(&truth);
            let each = budgets.iter().zip(answers).zip(&outputs);
            Query {
                local,
                tokens_for: SHARES.map(|share| truth.tokens_for(share, local)),
                local_error: error(&self.reference.top_k_output(&truth, 0), &truth.output),
                at: each
                    .map(|((&budget, both), outputs)| {
                        self.at_budget(budget, &truth, &both[0].ids[h], outputs.each_ref().map(|o| &o[h][..]))
                    })
                    .collect(),
            }
        });
        heads.collect()
    }

    /// The final outputs: the index's partials with exact attention over every visible token outside it.
    fn merged(&self, j: usize, answers: &Answers) -> Vec<Vec<f64>> {
        let merged = self.head.merged(self.capture, self.setup, j, answers);
        merged.iter().map(|partial| partial.o.iter().map(|&x| f64::from(x)).collect()).collect()
    }

    fn at_budget(
        &self,
        budget: Budget,
        truth: &Truth,
        ids: &[(u32, u32)],
        [without, with]: [&[f64]; 2],
    ) -> AtBudget {
        let indexed = self.capture.indexed();
        let k = match budget {
            Budget::TopK(k) => k.min(indexed.len()),
            Budget::All | Budget::Coverage(_) => ids.len(),
        };
        let ids: Vec<u32> = ids.iter().map(|&(_, id)| indexed.start as u32 + id).collect();
        AtBudget {
            selected: truth.share(&ids),
            best: truth.best_share(k),
            recall: truth.found(&ids, k) as f64 / k.max(1) as f64,
            error_estimate: error(with, &truth.output),
            error: error(without, &truth.output),
            error_oracle: error(&self.reference.top_k_output(truth, k), &truth.output),
        }
    }
}
