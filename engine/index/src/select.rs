//! One decode step over all spans of a KV head: search, selection, exact attention over it, the estimate of the rest.
//!
//! The finalists of all spans compete for the budget of a query head. Fresh tokens are attended to exactly in addition, and
//! spans in a compact form as a whole.

use std::ops::Range;
use std::time::Instant;

use attention::{Partial, attend_ids, attend_range};
use kernels::{Kernels, topk::TopK};

use crate::ask::{Ask, Budget, Chosen, SpanView, Stats};
use crate::compact;
use crate::coverage;
use crate::find::{self, Reach};
use crate::flat;
use crate::scratch::Scratch;
use crate::shares;
use crate::span::{Finder, SpanIndex};
use crate::summary::{Cut, Means, Taken};

/// Up to this many visible tokens a scan is cheaper than a walk.
const SHORT: usize = 1024;
/// Candidates beyond the wanted number where codes rank them: so many, and so large a part of the wanted.
const SLACK: usize = 8;
const SLACK_PART: usize = 16;
/// A search for more than this part of the visible tokens scores most of them anyway.
const LARGE_PART: usize = 8;

/// Attends to `spans` within the budget and to `fresh` exactly, for `ask.group` query heads, and merges the result into
/// `out`, one partial per head. `ids` receives what of `spans` was attended to exactly. Panics when shapes do not fit.
pub fn attend_spans(
    kernels: &Kernels,
    spans: &[SpanView<'_>],
    fresh: &[SpanView<'_>],
    ask: &Ask<'_>,
    scratch: &mut Scratch,
    out: &mut [Partial],
    ids: Option<&mut Chosen>,
) -> Stats {
    assert!(ask.group > 0 && out.len() == ask.group, "{} partials for {} query heads", out.len(), ask.group);
    assert!(
        ask.outside.is_none_or(|o| o.len() == ask.group),
        "masses for other than {} query heads",
        ask.group
    );
    let searched = compact::searched(spans, ask);
    let mut step =
        Step { k: kernels, spans: searched.as_deref().unwrap_or(spans), ask, stats: Stats::default(), ids };
    if let Some(ids) = step.ids.as_deref_mut() {
        ids.clear();
        ids.resize(ask.group, Vec::new());
    }
    scratch.shares.begin(spans.len());
    for view in fresh {
        step.attend_all(view, scratch, out);
    }
    step.attend_compact(spans, scratch, out);
    match ask.budget {
        Budget::TopK(n) if n < step.visible() => step.top(n, scratch, out),
        Budget::Coverage(share) if share < 1.0 => coverage::attend(&mut step, share, scratch, out),
        _ => step.everything(scratch, out),
    }
    scratch.shares.settle(out);
    step.stats.per_head(ask.group)
}

/// A call in progress. Stats are sums over heads.
pub(crate) struct Step<'a, 'b> {
    pub k: &'a Kernels,
    pub spans: &'a [SpanView<'b>],
    pub ask: &'a Ask<'b>,
    pub stats: Stats,
    ids: Option<&'a mut Chosen>,
}

impl Step<'_, '_> {
    /// Visible tokens of all spans.
    pub fn visible(&self) -> usize {
        self.spans.iter().map(|view| view.visible.len()).sum()
    }

    /// The query of a head.
    pub fn query(&self, head: usize) -> &[f32] {
        let dim = self.ask.q.len() / self.ask.group;
        &self.ask.q[head * dim..(head + 1) * dim]
    }

    /// Attends to the spans that answer in a compact form.
    fn attend_compact(&mut self, spans: &[SpanView<'_>], scratch: &mut Scratch, out: &mut [Partial]) {
        let ask = self.ask;
        for (s, view) in spans.iter().enumerate().filter(|(_, view)| !view.visible.is_empty()) {
            let Some(form) = compact::form(view.compact, ask) else { continue };
            scratch.before.clear();
            scratch.before.extend(out.iter().map(shares::before_all));
            form.attend((self.k, &ask.description), ask.q, view.visible.clone(), &mut scratch.compact, out);
            for (head, (out, &before)) in out.iter().zip(&scratch.before).enumerate() {
                scratch.shares.note_all((s, head), before, out);
            }
            let n = (view.visible.len() * ask.group) as f64;
            self.stats.compact_tokens += n;
            self.stats.keys_scored += n;
            self.stats.bytes_read += (form.bytes() * view.visible.len() / form.tokens().max(1)) as f64;
        }
    }

    fn top(&mut self, n: usize, scratch: &mut Scratch, out: &mut [Partial]) {
        self.prepare(n, scratch);
        self.search(0..self.ask.group, n, scratch);
        for (head, out) in out.iter_mut().enumerate() {
            self.finalists(head, n, scratch);
            self.attend(head, scratch, out);
        }
    }

    pub fn everything(&mut self, scratch: &mut Scratch, out: &mut [Partial]) {
        for (s, view) in self.spans.iter().enumerate() {
            scratch.before.clear();
            scratch.before.extend(out.iter().map(shares::before));
            self.attend_all(view, scratch, out);
            for (head, (out, &before)) in out.iter().zip(&scratch.before).enumerate() {
                scratch.shares.note((s, head), before, out);
            }
            for ids in self.ids.as_deref_mut().into_iter().flatten() {
                ids.extend(view.visible.clone().map(|id| (s as u32, id as u32)));
            }
        }
    }

    /// All visible tokens of a span or a fresh range, exactly.
    fn attend_all(&mut self, view: &SpanView<'_>, scratch: &mut Scratch, out: &mut [Partial]) {
        let (n, ask) = (view.visible.len(), self.ask);
        let range = view.visible.clone();
        let memory = &mut scratch.attention;
        attend_range(self.k, &ask.description, ask.q, &view.keys, &view.values, range, memory, out);
        let n = n as f64;
        self.stats.exact_tokens += n * ask.group as f64;
        self.stats.keys_scored += n * ask.group as f64;
        self.stats.bytes_read += n * 2.0 * (view.keys.dim() + view.values.dim()) as f64;
    }

    /// Numbers the tokens of all spans and scores the cells that will be needed.
    pub fn prepare(&mut self, n: usize, scratch: &mut Scratch) {
        scratch.base.clear();
        let mut next = 0usize;
        for view in self.spans {
            scratch.base.push(next as u32);
            next += view.keys.len();
        }
        assert!(u32::try_from(next).is_ok(), "{next} tokens in the spans of one call");
        let heads = self.spans.len() * self.ask.group;
        scratch.tops.resize_with(scratch.tops.len().max(self.ask.group), || TopK::new(0));
        scratch.cell_scores.resize_with(scratch.cell_scores.len().max(self.spans.len()), Vec::new);
        scratch.findings.resize_with(scratch.findings.len().max(heads), Default::default);
        scratch.seen.resize_with(scratch.seen.len().max(heads), Default::default);
        for (view, scores) in self.spans.iter().zip(&mut scratch.cell_scores) {
            let Some(index) = view.index.filter(|_| !is_scanned(view, n)) else { continue };
            let cells = index.summary.cells();
            scores.resize(self.ask.group * cells, 0.0);
            index.summary.cell_scores(self.k, self.ask.q, scores);
            self.stats.summary_scored += (cells * self.ask.group) as f64;
            self.stats.bytes_read += (cells * view.keys.dim() * 2) as f64;
        }
    }

    /// Looks for the best `n` of the given heads in all spans; the candidates are left in `scratch.tops`.
    pub fn search(&mut self, heads: Range<usize>, n: usize, scratch: &mut Scratch) {
        let coded = self.spans.iter().any(|view| is_coded(view, n));
        let candidates = if coded { n.saturating_add(n / SLACK_PART + SLACK) } else { n };
        for top in &mut scratch.tops[heads.clone()] {
            top.reset(candidates);
        }
        for (s, view) in self.spans.iter().enumerate() {
            for head in heads.clone() {
                scratch.seen[s * self.ask.group + head].clear();
            }
            match view.index {
                Some(index) if !is_scanned(view, n) => {
                    self.search_index((s, view, index), heads.clone(), n, scratch);
                }
                _ => self.scan((s, view), heads.clone(), scratch),
            }
        }
    }

    /// Offers every visible key of a span.
    pub fn scan(&mut self, (s, view): (usize, &SpanView<'_>), heads: Range<usize>, scratch: &mut Scratch) {
        let dim = view.keys.dim();
        let q = &self.ask.q[heads.start * dim..heads.end * dim];
        let n = view.visible.len() as f64;
        self.stats.keys_scored += n * heads.len() as f64;
        self.stats.bytes_read += n * 2.0 * dim as f64;
        let tops = &mut scratch.tops[heads.clone()];
        let keys = (&view.keys, view.visible.clone());
        let numbers = (self.k, &self.ask.description);
        let noting = view.index.filter(|_| self.ask.wants_mass());
        let first = s * self.ask.group + heads.start;
        let (seen, findings) = (&mut scratch.seen[first..], &mut scratch.findings[first..]);
        if let Some(index) = noting {
            findings[..heads.len()].iter_mut().for_each(|f| f.frontier.open_all(&index.summary));
        }
        flat::scan(self.k, keys, q, scratch.base[s], &mut scratch.flat, tops, |row, first, scores| {
            if let Some(index) = noting {
                seen[row].note(numbers, (&index.summary, &findings[row].frontier), (first.., scores));
            }
        });
    }

    fn search_index(
        &mut self,
        (s, view, index): (usize, &SpanView<'_>, &SpanIndex),
        heads: Range<usize>,
        n: usize,
        scratch: &mut Scratch,
    ) {
        let (cells, dim, ask) = (index.summary.cells(), view.keys.dim(), self.ask);
        let late = ask.deadline.is_some_and(|at| Instant::now() >= at);
        let width = match late {
            true => 1,
            false => index.width_for(n, &view.visible, ask.width),
        };
        let reach = Reach { width, visible: &view.visible, deadline: ask.deadline };
        let q = &ask.q[heads.start * dim..heads.end * dim];
        let scores = &scratch.cell_scores[s][heads.start * cells..heads.end * cells];
        let findings = &mut scratch.findings[s * ask.group..][heads.clone()];
        find::search(self.k, (index, &view.keys), (q, scores), &reach, findings);
        let all = view.visible == (0..index.tokens);
        for (head, finding) in heads.zip(findings) {
            let (top, base) = (&mut scratch.tops[head], scratch.base[s]);
            if index.is_coded() && all {
                let mut id = finding.ids_of_codes(&index.summary);
                top.push_each(&finding.walk.scores, |i| base + id(i));
            } else {
                finding.list(index);
                if !all {
                    finding.walk.hide(&view.visible);
                }
                top.push_all(&finding.walk.scores, &finding.walk.ids, base);
            }
            if ask.wants_mass() {
                let seen = &mut scratch.seen[s * ask.group + head];
                let numbers = (self.k, &ask.description);
                let find::Finding { frontier, walk, slots, reader, .. } = &mut *finding;
                if index.is_coded() {
                    seen.note_groups(numbers, frontier, (slots, &reader.runs), (&mut walk.scores, all));
                } else {
                    seen.note(numbers, (&index.summary, frontier), (walk.ids.iter().copied(), &walk.scores));
                }
            }
            let found = &finding.walk;
            self.stats.deadline_hit |= found.late || late;
            self.stats.keys_scored += finding.keys_scored as f64;
            self.stats.summary_scored += finding.frontier.groups() as f64;
            let (groups, keys) = (finding.frontier.groups(), finding.keys_scored);
            let key_bytes = if index.is_coded() { dim } else { 2 * dim };
            self.stats.bytes_read += (groups * dim + keys * key_bytes + finding.edge_bytes) as f64;
        }
    }

    /// Exact attention over `scratch.best`, and the estimate of the rest.
    pub fn attend(&mut self, head: usize, scratch: &mut Scratch, out: &mut Partial) {
        for (s, view) in self.spans.iter().enumerate() {
            let base = scratch.base[s];
            let range = base..base + view.keys.len() as u32;
            scratch.taken.clear();
            let found = scratch.best.iter().filter(|c| range.contains(&c.id));
            scratch.taken.extend(found.map(|c| Taken { token: c.id - base, score: c.score, seen: c.seen }));
            let n = scratch.taken.len();
            self.stats.exact_tokens += n as f64;
            self.stats.bytes_read += (n * view.values.dim() * 2) as f64;
            if let Some(ids) = self.ids.as_deref_mut() {
                let from = ids[head].len();
                ids[head].extend(scratch.taken.iter().map(|t| (s as u32, t.token)));
                ids[head][from..].sort_unstable();
            }
            let before = shares::before(out);
            match view.index.filter(|_| self.ask.estimate) {
                Some(index) => self.attend_and_estimate((s, view, index), head, scratch, out),
                None => self.attend_exactly(view, head, scratch, out),
            }
            scratch.shares.note((s, head), before, out);
        }
    }

    /// Attends to what was selected of a span, `scratch.taken`; the rest of a span without an index is computed.
    fn attend_exactly(&mut self, view: &SpanView<'_>, head: usize, scratch: &mut Scratch, out: &mut Partial) {
        let numbers = (self.k, &self.ask.description);
        scratch.local.clear();
        scratch.local.extend(scratch.taken.iter().map(|t| (t.token, t.score)));
        attend_ids(self.k, numbers.1, &scratch.local, &view.values, &mut scratch.attention, out);
        if self.ask.estimate && !view.visible.is_empty() {
            scratch.local.sort_unstable_by_key(|c| c.0);
            let rows = (&view.keys, &view.values);
            let (visible, q) = (&view.visible, self.query(head));
            out.merge(&flat::remainder(numbers, rows, visible, q, &scratch.local, &mut scratch.flat));
            self.stats.bytes_read += (visible.len() * 2 * (view.keys.dim() + view.values.dim())) as f64;
        }
    }

    /// Attends to what was selected of a span and estimates the rest.
    fn attend_and_estimate(
        &mut self,
        (s, view, index): (usize, &SpanView<'_>, &SpanIndex),
        head: usize,
        scratch: &mut Scratch,
        out: &mut Partial,
    ) {
        let mut remainder = std::mem::take(&mut scratch.remainder);
        let taken = std::mem::take(&mut scratch.taken);
        let means = self.means((s, view, index), head, scratch);
        out.merge(&remainder.attend((self.k, &self.ask.description), &means, &taken, &view.values));
        let slots = scratch.findings[s * self.ask.group + head].frontier.slots();
        self.stats.bytes_read += (slots * view.values.dim() * 2) as f64;
        (scratch.taken, scratch.remainder) = (taken, remainder);
    }

    /// What a head knows of a span.
    pub fn means<'s>(
        &self,
        (s, view, index): (usize, &SpanView<'_>, &'s SpanIndex),
        head: usize,
        scratch: &'s mut Scratch,
    ) -> Means<'s> {
        let summary = &index.summary;
        scratch
            .bring_cut((index.uid, view.visible.clone()), || Cut::new(summary, &view.values, &view.visible));
        let d = &self.ask.description;
        let square: f32 = self.query(head).iter().map(|x| x * x).sum();
        Means {
            summary,
            cut: scratch.cut(),
            frontier: &scratch.findings[s * self.ask.group + head].frontier,
            // A soft-cap bends the variance too; without knowing how, nothing is added.
            lift: if d.softcap.is_some() { 0.0 } else { index.lift * d.scale * d.scale * square },
            seen: &scratch.seen[s * self.ask.group + head],
        }
    }
}

/// Whether a search for `n` reads the codes of a span in place of its keys.
pub(crate) fn is_coded(view: &SpanView<'_>, n: usize) -> bool {
    !is_scanned(view, n) && view.index.is_some_and(SpanIndex::is_coded)
}

/// Whether a search for `n` scans the visible range rather than using the index.
pub(crate) fn is_scanned(view: &SpanView<'_>, n: usize) -> bool {
    let visible = view.visible.len();
    match view.index.map(|index| &index.finder) {
        None | Some(Finder::Flat) => true,
        Some(_) => visible <= SHORT || n.saturating_mul(LARGE_PART) >= visible,
    }
}
