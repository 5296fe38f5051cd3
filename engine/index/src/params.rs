//! What a build is told.

use std::fmt;
use std::str::FromStr;

use attention::Description;
use half::f16;

/// How an index finds the keys of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The cheapest of the others that meets the target, by the counts of a trial on held-back build queries.
    Auto,
    /// Every visible key is scored.
    Flat,
    /// The members of the best groups of the summary are scored.
    Summary,
    /// A walk over the attention-aware graph, entered through the summary.
    Graph,
    /// hnsw_rs over the keys: the conventional index, for comparison.
    Hnsw,
}

impl Kind {
    /// All of them, in the order of the command line.
    pub const ALL: [Kind; 5] = [Kind::Auto, Kind::Flat, Kind::Summary, Kind::Graph, Kind::Hnsw];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Auto => "auto",
            Kind::Flat => "flat",
            Kind::Summary => "summary",
            Kind::Graph => "graph",
            Kind::Hnsw => "hnsw",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(s: &str) -> Result<Kind, String> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == s)
            .ok_or_else(|| format!("unknown method '{s}' (auto, flat, summary, graph, hnsw)"))
    }
}

/// Queries of the prefill, a sample: what the index learns from and is calibrated on.
#[derive(Clone, Debug, Default)]
pub struct BuildQueries {
    /// [m, group, dim]: all query heads of the KV group at m positions.
    pub q: Vec<f16>,
    /// [m], not descending: query j sees the span-local keys below `visible[j]`. At decode the worker attends to its
    /// window itself, so a good caller leaves the window before the query's position out here too.
    pub visible: Vec<u32>,
    /// Query heads per KV head.
    pub group: usize,
}

/// How to build.
#[derive(Clone, Debug)]
pub struct BuildParams {
    /// What to build.
    pub kind: Kind,
    /// The attention description; the order of scores does not depend on it, the summary's estimate does.
    pub description: Description,
    /// Seeds whatever is random (hnsw_rs's levels are not).
    pub seed: u64,
    /// The recall of the true best `calibrate_k` that the search width is calibrated for, on held-back queries.
    pub target_recall: f32,
    /// The number of tokens that the width is calibrated for.
    pub calibrate_k: usize,
    /// Keys per mean of the summary.
    pub keys_per_mean: usize,
    /// Query-derived edges per node before reverse edges are pruned to the same number.
    pub projected_degree: usize,
    /// Edges to the nearest keys per node.
    pub near_degree: usize,
    /// Exact nearest keys kept per build query.
    pub row_length: usize,
}

impl Default for BuildParams {
    fn default() -> BuildParams {
        BuildParams {
            kind: Kind::Auto,
            description: Description::scaled(1.0),
            seed: 0,
            target_recall: 0.95,
            calibrate_k: 100,
            keys_per_mean: 16,
            projected_degree: 16,
            near_degree: 20,
            row_length: 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse::<Kind>(), Ok(kind));
        }
        assert!("faiss".parse::<Kind>().unwrap_err().contains("faiss"));
    }
}
