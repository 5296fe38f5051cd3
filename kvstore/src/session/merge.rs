//! Merging the spans of a head: the plan, made at a seal; the parts, read by the builder; the swap.
//!
//! A plan depends on the lengths of the spans alone, and counts a planned merge as done. So the layout after a given
//! sequence of appends, seals and truncations is the same however long the builder takes.

use crate::session::head::{Head, Held, State};
use crate::session::size_tiered;
use crate::session::span::Span;
use std::sync::Arc;

/// A span with its visible end.
pub type Part = (Arc<Span>, u64);

impl State {
    /// Plans the next merge, if one is due, and returns the version of the span it will make. `wants_index` decides from
    /// a length whether a span gets an index: without one a merge gains nothing. The sink, a span at position 0 without
    /// an index, stays apart.
    pub(super) fn plan(&mut self, wants_index: impl Fn(u64) -> bool) -> Option<u64> {
        let sink = self.spans.first().is_some_and(|h| h.span.begin == 0 && !wants_index(h.span.len()));
        let mergeable = &mut self.spans[usize::from(sink)..];
        let mut lengths: Vec<u64> = Vec::new();
        let mut firsts: Vec<usize> = Vec::new();
        let mut last = None;
        for (i, held) in mergeable.iter().enumerate() {
            match lengths.last_mut() {
                Some(length) if held.plan.is_some() && held.plan == last => *length += held.len(),
                _ => {
                    lengths.push(held.len());
                    firsts.push(i);
                }
            }
            last = held.plan;
        }
        let run = size_tiered::first_of_run(&lengths)?;
        if !wants_index(lengths[run..].iter().sum()) {
            return None;
        }
        self.version += 1;
        mergeable[firsts[run]..].iter_mut().for_each(|h| h.plan = Some(self.version));
        Some(self.version)
    }

    /// Puts `merged` in the place of the parts it was made of. None when a truncation or a larger plan's merge took one
    /// of them away meanwhile; a truncation within the last part hides as much of the new span. Returns what was
    /// replaced, to be let go outside the lock.
    fn replace(&mut self, parts: &[Part], version: u64, merged: Arc<Span>) -> Option<Vec<Held>> {
        let (first, last) = (parts.first()?, parts.last()?);
        // A part may have gone to another tier meanwhile.
        let at = self.spans.iter().position(|h| h.span.has(first.0.core()))?;
        let held = self.spans.get(at..at + parts.len())?;
        let same = held.iter().zip(parts).all(|(h, (span, end))| {
            h.span.has(span.core()) && (h.visible_end == *end || Arc::ptr_eq(span, &last.0))
        });
        let visible_end = held.last().filter(|_| same)?.visible_end;
        let plan = held[0].plan.filter(|&p| p != version);
        let new = Held { span: merged, visible_end, plan };
        Some(self.spans.splice(at..at + parts.len(), [new]).collect())
    }
}

impl Head {
    /// The spans that are planned to become this version; empty when a larger plan has superseded it or they are gone.
    pub fn parts(&self, version: u64) -> Vec<Part> {
        let state = self.read();
        let planned = state.spans.iter().filter(|h| h.plan == Some(version));
        planned.map(|h| (h.span.clone(), h.visible_end)).collect()
    }

    /// Swaps the parts for what was made of them. False: they are not all there any more.
    pub fn replace(&self, parts: &[Part], merged: Arc<Span>) -> bool {
        let version = merged.version;
        let replaced = self.write().replace(parts, version, merged);
        replaced.is_some()
    }

    /// Takes a plan back, so that the next one counts the spans as they are.
    pub fn unplan(&self, version: u64) {
        let mut state = self.write();
        state.spans.iter_mut().filter(|h| h.plan == Some(version)).for_each(|h| h.plan = None);
    }
}

#[cfg(test)]
mod tests;
