//! The index of one span of one KV head.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::graph::Graph;
use crate::hnsw::Hnsw;
use crate::lift;
use crate::params::Kind;
use crate::summary::{Codes, Summary};

/// How a span is searched beyond its summary.
#[derive(Debug)]
pub(crate) enum Finder {
    Flat,
    Summary(Codes),
    Graph(Graph),
    Hnsw(Box<Hnsw>),
}

/// What a build did and cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildStats {
    /// Wall time of the summary.
    pub summary: Duration,
    /// Wall time of the exact rows of the build queries.
    pub rows: Duration,
    /// Wall time of the graph from these rows.
    pub graph: Duration,
    /// Wall time of everything after the rows of the held-back queries: building (`graph` included) and calibration.
    pub search: Duration,
    /// Query rows (positions x query heads) that the graph was built from.
    pub rows_used: usize,
    /// Query rows that were held back for the calibration.
    pub rows_held_back: usize,
}

/// Groups that are looked at for each that is read.
const OPENED: usize = 5;
/// Groups that are looked at even for the narrowest search: the estimate of the remainder is finer with them.
const FEWEST_OPENED: usize = 352;

/// Numbers that identify an index within this process, so that scratch memory can keep what it computed for it.
static NEXT_UID: AtomicU64 = AtomicU64::new(1);

/// An immutable index. It refers to keys and values by span-local row number and holds none of them.
#[derive(Debug)]
pub struct SpanIndex {
    pub(crate) uid: u64,
    pub(crate) tokens: usize,
    pub(crate) summary: Summary,
    pub(crate) finder: Finder,
    pub(crate) width: usize,
    pub(crate) calibrate_k: usize,
    pub(crate) recall: Option<f32>,
    /// See [`lift`].
    pub(crate) lift: f32,
    pub(crate) stats: BuildStats,
}

impl SpanIndex {
    pub(crate) fn new(tokens: usize, summary: Summary, finder: Finder, calibrate_k: usize) -> SpanIndex {
        let mut index = SpanIndex {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            tokens,
            summary,
            finder: Finder::Flat,
            width: 1,
            calibrate_k,
            recall: None,
            lift: lift::UNFITTED,
            stats: BuildStats::default(),
        };
        index.set_finder(finder);
        index
    }

    /// The same index in memory of its own; None for hnsw_rs, whose graph cannot be copied.
    pub fn copied(&self) -> Option<SpanIndex> {
        let finder = match &self.finder {
            Finder::Flat => Finder::Flat,
            Finder::Summary(codes) => Finder::Summary(codes.clone()),
            Finder::Graph(graph) => Finder::Graph(graph.clone()),
            Finder::Hnsw(_) => return None,
        };
        Some(SpanIndex {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            tokens: self.tokens,
            summary: self.summary.clone(),
            finder,
            width: self.width,
            calibrate_k: self.calibrate_k,
            recall: self.recall,
            lift: self.lift,
            stats: self.stats.clone(),
        })
    }

    /// Changes how it searches, at a width that stands until a calibration finds a better one.
    pub(crate) fn set_finder(&mut self, finder: Finder) {
        self.width = match &finder {
            Finder::Flat => 1,
            Finder::Summary(_) => self.summary.groups().div_ceil(8),
            Finder::Graph(_) => self.calibrate_k.max(32) * 2,
            Finder::Hnsw(_) => self.calibrate_k.max(32) * 4,
        };
        self.finder = finder;
    }

    /// How it searches; never `Auto`.
    pub fn kind(&self) -> Kind {
        match self.finder {
            Finder::Flat => Kind::Flat,
            Finder::Summary(_) => Kind::Summary,
            Finder::Graph(_) => Kind::Graph,
            Finder::Hnsw(_) => Kind::Hnsw,
        }
    }

    /// Tokens of the span.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The calibrated search width: pool entries of the walk, groups of the summary scan, ef of hnsw.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Recall of the true best `calibrate_k` on the held-back build queries at the calibrated width. None when there
    /// were too few queries to tell.
    pub fn recall_estimate(&self) -> Option<f32> {
        self.recall
    }

    /// What the build did and cost.
    pub fn build_stats(&self) -> &BuildStats {
        &self.stats
    }

    /// Whether the scores that a search reports are those of codes.
    pub(crate) fn is_coded(&self) -> bool {
        matches!(self.finder, Finder::Summary(_))
    }

    /// Bytes held beside keys and values.
    pub fn bytes(&self) -> usize {
        let finder = match &self.finder {
            Finder::Flat => 0,
            Finder::Summary(codes) => codes.bytes(),
            Finder::Graph(graph) => graph.bytes(),
            Finder::Hnsw(hnsw) => hnsw.bytes(),
        };
        self.summary.bytes() + finder
    }

    /// How many groups are looked at one by one in a search of `width`.
    pub(crate) fn opened(&self, width: usize) -> usize {
        match self.finder {
            Finder::Summary(_) => {
                let fewest = width.saturating_add(2).saturating_mul(16).min(FEWEST_OPENED);
                width.saturating_mul(OPENED).max(fewest)
            }
            Finder::Flat | Finder::Graph(_) | Finder::Hnsw(_) => FEWEST_OPENED,
        }
    }

    /// What a walk may pass through to find the visible. Keys beyond the visible end are close to the query in position,
    /// which draws the walk away from what it may return, so they are left out; unless so much is hidden that what is
    /// left may fall apart.
    pub(crate) fn walked(&self, visible: &Range<usize>) -> Range<usize> {
        if visible.len() * 2 >= self.tokens { visible.clone() } else { 0..self.tokens }
    }

    /// The width for the best `k`. More wanted, or more hidden keys on the way, widens in proportion; fewer wanted
    /// narrows with the square root, since the best few need as good an entry.
    pub(crate) fn width_for(&self, k: usize, visible: &Range<usize>, base: Option<usize>) -> usize {
        let base = base.unwrap_or(self.width) as f64;
        let wanted = k as f64 / self.calibrate_k.max(1) as f64;
        let wanted = match self.finder {
            _ if wanted < 1.0 => wanted.sqrt(),
            // The best groups hold most of the wider selection too: measured 0.5 at recall 0.95.
            Finder::Summary(_) => wanted.powf(0.6),
            _ => wanted,
        };
        let hidden = match self.finder {
            Finder::Graph(_) => self.walked(visible).len() as f64 / visible.len().max(1) as f64,
            Finder::Hnsw(_) => self.tokens as f64 / visible.len().max(1) as f64,
            Finder::Flat | Finder::Summary(_) => 1.0,
        };
        ((base * wanted * hidden).ceil() as usize).clamp(1, self.tokens)
    }
}
