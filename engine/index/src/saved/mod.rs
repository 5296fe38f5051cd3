//! An index as bytes, so that it survives a restart or travels to a replica without being built again: the same index
//! gives the same bits wherever it is read.
//!
//! Layout, version 1, little-endian, arrays with their length (u64) before them:
//!
//! ```text
//! version u32 | kind u8 | tokens u64 | key dim u32 | value dim u32
//! width u64 | calibrate_k u64 | recall f32 (NaN: not known) | lift f32
//! build: 4 times in ns u64 | rows used u64 | rows held back u64
//! summary | codes, or graph, or nothing
//! ```
//!
//! There is no checksum here: whoever stores the bytes has one. What is read is checked all the same, so that no bytes
//! make a search read beyond an array.

mod bytes;

use std::time::Duration;

pub(crate) use bytes::{Reader, Writer, check_finite, check_offsets};

use crate::graph::Graph;
use crate::params::Kind;
use crate::span::{BuildStats, Finder, SpanIndex};
use crate::summary::{Codes, Summary};

/// The layout that is written, and the only one that is read so far.
const VERSION: u32 = 1;

/// Why bytes are not an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// They end too early.
    #[error("a saved index ends too early")]
    Short,
    /// They go on after the end.
    #[error("{0} bytes follow a saved index")]
    Beyond(usize),
    /// A layout of another version.
    #[error("a saved index of version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// It belongs to other rows.
    #[error("a saved index with {what} {found}, not {expected}")]
    Length {
        /// What was counted.
        what: &'static str,
        /// How many it says.
        found: u64,
        /// How many there must be.
        expected: u64,
    },
    /// A part contradicts itself.
    #[error("a saved index is damaged: {0}")]
    Damaged(&'static str),
}

/// The rows that an index is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub tokens: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

/// What a saved index tells of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// How it searches.
    pub kind: Kind,
    /// The calibrated search width.
    pub width: usize,
    /// See [`SpanIndex::recall_estimate`].
    pub recall: Option<f32>,
}

/// The fixed part before the summary.
struct Head {
    told: Told,
    calibrate_k: usize,
    lift: f32,
    stats: BuildStats,
}

impl SpanIndex {
    /// The index as bytes; None for hnsw_rs, whose graph cannot be taken apart.
    pub fn save(&self) -> Option<Vec<u8>> {
        let mut w = Writer::default();
        w.number(VERSION);
        w.number(match self.finder {
            Finder::Flat => 0u8,
            Finder::Summary(_) => 1,
            Finder::Graph(_) => 2,
            Finder::Hnsw(_) => return None,
        });
        w.number(self.tokens as u64);
        w.number(self.summary.dim() as u32);
        w.number(self.summary.value_dim() as u32);
        w.number(self.width as u64);
        w.number(self.calibrate_k as u64);
        w.number(self.recall.unwrap_or(f32::NAN));
        w.number(self.lift);
        let s = &self.stats;
        for time in [s.summary, s.rows, s.graph, s.search] {
            w.number(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        w.number(s.rows_used as u64);
        w.number(s.rows_held_back as u64);
        self.summary.save(&mut w);
        match &self.finder {
            Finder::Summary(codes) => codes.save(&mut w),
            Finder::Graph(graph) => graph.save(&mut w),
            Finder::Flat | Finder::Hnsw(_) => {}
        }
        Some(w.finish())
    }

    /// What an index that was saved for rows of this shape tells of itself; the rest of the bytes is not looked at.
    pub fn told(bytes: &[u8], shape: Shape) -> Result<Told, SavedError> {
        Ok(Head::read(&mut Reader::new(bytes), shape)?.told)
    }

    /// The index that was saved for rows of this shape.
    pub fn load(bytes: &[u8], shape: Shape) -> Result<SpanIndex, SavedError> {
        let mut r = Reader::new(bytes);
        let Head { told, calibrate_k, lift, stats } = Head::read(&mut r, shape)?;
        let summary = Summary::load(&mut r, shape)?;
        let finder = match told.kind {
            Kind::Summary => Finder::Summary(Codes::load(&mut r, shape.tokens, shape.key_dim)?),
            Kind::Graph => Finder::Graph(Graph::load(&mut r, shape.tokens)?),
            _ => Finder::Flat,
        };
        r.end()?;
        let mut index = SpanIndex::new(shape.tokens, summary, finder, calibrate_k);
        (index.width, index.recall) = (told.width, told.recall);
        (index.lift, index.stats) = (lift, stats);
        Ok(index)
    }
}

impl Head {
    fn read(r: &mut Reader<'_>, shape: Shape) -> Result<Head, SavedError> {
        match r.number::<u32>()? {
            VERSION => {}
            other => return Err(SavedError::Version(other)),
        }
        let kind = match r.number::<u8>()? {
            0 => Kind::Flat,
            1 => Kind::Summary,
            2 => Kind::Graph,
            _ => return Err(SavedError::Damaged("its kind")),
        };
        let same = |what, found: u64, expected: usize| match found == expected as u64 {
            true => Ok(()),
            false => Err(SavedError::Length { what, found, expected: expected as u64 }),
        };
        same("tokens", r.number()?, shape.tokens)?;
        same("key dim", r.number::<u32>()?.into(), shape.key_dim)?;
        same("value dim", r.number::<u32>()?.into(), shape.value_dim)?;
        let (width, calibrate_k) = (r.number::<u64>()?, r.number::<u64>()?);
        let (recall, lift) = (r.number::<f32>()?, r.number::<f32>()?);
        let mut time = || r.number::<u64>().map(Duration::from_nanos);
        let (summary, rows, graph, search) = (time()?, time()?, time()?, time()?);
        let (used, held_back) = (r.number::<u64>()?, r.number::<u64>()?);
        let stats = BuildStats {
            summary,
            rows,
            graph,
            search,
            rows_used: used as usize,
            rows_held_back: held_back as usize,
        };
        let in_range = (1..=shape.tokens as u64).contains(&width)
            && calibrate_k <= 1 << 40
            && (recall.is_nan() || (0.0..=1.0).contains(&recall))
            && (0.0..=1.0).contains(&lift);
        if !in_range {
            return Err(SavedError::Damaged("its calibration"));
        }
        let told = Told { kind, width: width as usize, recall: Some(recall).filter(|r| !r.is_nan()) };
        Ok(Head { told, calibrate_k: calibrate_k as usize, lift, stats })
    }
}
