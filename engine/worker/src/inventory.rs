//! What shards say of their spans, judged and counted: which kinds of index were chosen, and which heads are below their
//! recall target.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use wire::v1;

/// Whether a span finds what its queries attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every key is scored, so nothing can be missed.
    Exact,
    /// The recall estimate reaches the target.
    Met,
    /// The recall estimate is below the target.
    Below,
    /// The search is approximate, and there were too few queries to estimate its recall.
    Unknown,
    /// The index is being built; until then every key is scored.
    Building,
}

impl Verdict {
    /// Of one span.
    pub fn of(span: &v1::SpanInfo) -> Verdict {
        if !span.ready {
            return Verdict::Building;
        }
        match (span.recall, span.recall_target) {
            _ if span.index() == v1::IndexKind::Flat => Verdict::Exact,
            (Some(recall), Some(target)) if recall >= target => Verdict::Met,
            (Some(_), Some(_)) => Verdict::Below,
            _ => Verdict::Unknown,
        }
    }

    /// As it is written for people: what needs attention is in capitals.
    pub fn mark(self) -> &'static str {
        match self {
            Verdict::Exact => "exact",
            Verdict::Met => "met",
            Verdict::Below => "BELOW TARGET",
            Verdict::Unknown => "UNKNOWN",
            Verdict::Building => "building",
        }
    }
}

/// How a span is searched, by the name that `--index` takes.
pub fn kind_name(span: &v1::SpanInfo) -> &'static str {
    match span.index() {
        v1::IndexKind::Unspecified | v1::IndexKind::Auto => index::Kind::Auto.name(),
        v1::IndexKind::Flat => index::Kind::Flat.name(),
        v1::IndexKind::Summary => index::Kind::Summary.name(),
        v1::IndexKind::Graph => index::Kind::Graph.name(),
        v1::IndexKind::Hnsw => index::Kind::Hnsw.name(),
    }
}

/// Totals of one kind of index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindTotals {
    /// Spans searched this way.
    pub spans: u64,
    /// Their tokens, each counted for its head.
    pub head_tokens: u64,
    /// Bytes of their indexes.
    pub index_bytes: u64,
}

/// Totals over spans.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inventory {
    /// Spans of all heads.
    pub spans: u64,
    /// Those whose index is being built.
    pub building: u64,
    /// The others, by how they are searched.
    pub index_kinds: BTreeMap<&'static str, KindTotals>,
    /// Lowest recall estimate of any span that has one.
    pub recall_estimate_min: Option<f32>,
    /// (Layer, KV head) pairs with a span below its target.
    pub heads_below_target: u64,
    /// (Layer, KV head) pairs with a span whose recall nobody could estimate.
    pub heads_unknown: u64,
}

impl Inventory {
    /// Counts the spans of one session. The parts of one session on several shards have no head in common.
    pub fn add(&mut self, spans: &[v1::SpanInfo]) {
        let (mut below, mut unknown) = (BTreeSet::new(), BTreeSet::new());
        for span in spans {
            self.spans += 1;
            match Verdict::of(span) {
                Verdict::Building => {
                    self.building += 1;
                    continue;
                }
                Verdict::Below => _ = below.insert((span.layer, span.kv_head)),
                Verdict::Unknown => _ = unknown.insert((span.layer, span.kv_head)),
                Verdict::Exact | Verdict::Met => {}
            }
            let totals = self.index_kinds.entry(kind_name(span)).or_default();
            totals.spans += 1;
            totals.head_tokens += span.end - span.begin;
            totals.index_bytes += span.index_bytes;
            if let Some(recall) = span.recall {
                self.recall_estimate_min = Some(self.recall_estimate_min.map_or(recall, |r| r.min(recall)));
            }
        }
        self.heads_below_target += below.len() as u64;
        self.heads_unknown += unknown.len() as u64;
    }

    /// For people, on one line: `90 flat, 90 summary; lowest recall estimate 0.951; every head meets its target`.
    pub fn line(&self) -> String {
        let kinds = self.index_kinds.iter().map(|(kind, totals)| format!("{} {kind}", totals.spans));
        let building = (self.building > 0).then(|| format!("{} building", self.building));
        let mut line = kinds.chain(building).collect::<Vec<_>>().join(", ");
        if line.is_empty() {
            line.push_str("none");
        }
        if let Some(recall) = self.recall_estimate_min {
            line.push_str(&format!("; lowest recall estimate {recall:.3}"));
        }
        if self.heads_below_target > 0 {
            line.push_str(&format!("; {} heads BELOW TARGET", self.heads_below_target));
        }
        if self.heads_unknown > 0 {
            line.push_str(&format!("; {} heads of UNKNOWN recall", self.heads_unknown));
        }
        if self.recall_estimate_min.is_some() && self.heads_below_target + self.heads_unknown == 0 {
            line.push_str("; every head meets its target");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(kv_head: u32, kind: v1::IndexKind, recall: Option<f32>) -> v1::SpanInfo {
        v1::SpanInfo {
            kv_head,
            begin: 10,
            end: 30,
            index: kind.into(),
            ready: true,
            index_bytes: 5,
            recall,
            recall_target: Some(0.95),
            ..v1::SpanInfo::default()
        }
    }

    #[test]
    fn no_head_is_below_its_target_in_silence() {
        use v1::IndexKind::{Flat, Graph, Summary};
        let building = v1::SpanInfo { ready: false, ..span(4, Flat, None) };
        let spans = [
            span(0, Flat, None),
            span(0, Summary, Some(0.95)),
            span(1, Summary, Some(0.949)),
            span(1, Summary, Some(0.2)),
            span(2, Graph, None),
            building,
        ];
        let verdicts = spans.each_ref().map(Verdict::of);
        use Verdict::{Below, Building, Exact, Met, Unknown};
        assert_eq!(verdicts, [Exact, Met, Below, Below, Unknown, Building]);
        let mut inventory = Inventory::default();
        inventory.add(&spans);
        assert_eq!((inventory.spans, inventory.building), (6, 1));
        assert_eq!((inventory.heads_below_target, inventory.heads_unknown), (1, 1));
        assert_eq!(inventory.recall_estimate_min, Some(0.2));
        let summary = KindTotals { spans: 3, head_tokens: 60, index_bytes: 15 };
        assert_eq!(inventory.index_kinds["summary"], summary);
        let line = inventory.line();
        assert_eq!(
            line,
            "1 flat, 1 graph, 3 summary, 1 building; lowest recall estimate 0.200; 1 heads BELOW TARGET; 1 heads of UNKNOWN recall"
        );
        assert_eq!(Inventory::default().line(), "none");
    }
}
