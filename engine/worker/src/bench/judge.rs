//! What the answers of a head are worth, against dense attention in f64.

use attention::Partial;
use index::{Budget, Stats};
use rayon::prelude::*;

use super::head::{Answers, Head, Setting, Setup};
use super::truth::{Reference, Truth, error};
use crate::capture_file::Capture;

/// One decode query of one query head.
pub struct Outcome {
    /// Capture tokens attended to exactly within the indexed range, ascending.
    pub ids: Vec<u32>,
    /// The shard's partial.
    pub partial: Partial,
    pub stats: Stats,
    pub recall: Option<f64>,
    pub error: f64,
    pub oracle_error: Option<f64>,
    pub oracle_tokens: Option<f64>,
    pub coverage_true: f64,
    pub coverage_estimated: f64,
    pub search_us: f64,
}

/// What one setting gave.
pub struct Judged {
    /// Query by query, head by head of the group.
    pub outcomes: Vec<Outcome>,
    /// Wall time of the fastest pass over the number of queries and heads, all threads at work.
    pub wall_us: f64,
}

/// Asks every decode query at every setting and judges the answers. The truth of a query is worked out once.
pub fn evaluate(capture: &Capture, setup: &Setup, head: &Head, settings: &[Setting]) -> Vec<Judged> {
    let decode: Vec<usize> = capture.decode_queries().collect();
    let asked: Vec<_> = settings.iter().map(|s| head.ask_all(capture, setup, s, &decode)).collect();
    let dims = (capture.dim, capture.value_dim);
    let reference = Reference::new(&head.keys, &head.values, dims, capture.meta.scale, capture.indexed());
    let judge = Judge { capture, setup, head, reference };
    let heads = (decode.len() * capture.group()).max(1) as f64;
    let mut judged: Vec<Judged> = asked
        .iter()
        .map(|a| Judged { outcomes: Vec::new(), wall_us: a.wall.as_secs_f64() * 1e6 / heads })
        .collect();
    let all: Vec<Vec<Vec<Outcome>>> = decode
        .par_iter()
        .enumerate()
        .map(|(at, &j)| {
            let truths = judge.truths(j);
            let each = settings.iter().zip(&asked);
            each.map(|(setting, asked)| judge.judge(setting, j, &truths, &asked.answers[at])).collect()
        })
        .collect();
    for of_query in all {
        for (judged, outcomes) in judged.iter_mut().zip(of_query) {
            judged.outcomes.extend(outcomes);
        }
    }
    judged
}

struct Judge<'a> {
    capture: &'a Capture,
    setup: &'a Setup,
    head: &'a Head,
    reference: Reference,
}

impl Judge<'_> {
    /// The full softmax of a position, head by head of the group.
    fn truths(&self, j: usize) -> Vec<Truth> {
        let (dim, width) = (self.capture.dim, self.capture.group() * self.capture.dim);
        let position = self.capture.q_pos[j] as usize;
        let q = &self.head.queries[j * width..(j + 1) * width];
        q.chunks(dim).map(|q| self.reference.attend(q, position)).collect()
    }

    fn judge(&self, setting: &Setting, j: usize, truths: &[Truth], answers: &Answers) -> Vec<Outcome> {
        let indexed = self.capture.indexed().len();
        let search_us = answers.time.as_secs_f64() * 1e6 / self.capture.group() as f64;
        let k = match setting.budget {
            Budget::TopK(k) => Some(k.min(indexed)),
            Budget::All => Some(indexed),
            Budget::Coverage(_) => None,
        };
        let merged = self.head.merged(self.capture, self.setup, j, answers);
        let heads = answers.partials.iter().zip(&answers.ids).zip(merged).zip(truths);
        heads
            .map(|(((partial, ids), merged), truth)| {
                let spans = self.head.spans();
                let ids: Vec<u32> = ids.iter().map(|&(s, id)| spans[s as usize].begin as u32 + id).collect();
                let outside = self.reference.outside_share(truth);
                let o: Vec<f64> = merged.o.iter().map(|&x| f64::from(x)).collect();
                Outcome {
                    recall: k.map(|k| truth.found(&ids, k) as f64 / k as f64),
                    error: error(&o, &truth.output),
                    oracle_error: k.map(|k| error(&self.reference.top_k_output(truth, k), &truth.output)),
                    oracle_tokens: match setting.budget {
                        Budget::Coverage(c) => Some(truth.tokens_for(f64::from(c), outside) as f64),
                        _ => None,
                    },
                    coverage_true: (truth.share(&ids) + outside).min(1.0),
                    coverage_estimated: f64::from(merged.coverage()),
                    search_us,
                    stats: answers.stats,
                    partial: partial.clone(),
                    ids,
                }
            })
            .collect()
    }
}
