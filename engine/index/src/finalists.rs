//! From the candidates of a search to the finalists of a head: scored exactly, the best of all spans.

use crate::ask::SpanView;
use crate::scratch::{Finalist, Scratch};
use crate::select::{Step, is_coded};

impl Step<'_, '_> {
    /// The finalists of a head, in no particular order, into `scratch.best`. Where a search over crowded or hidden
    /// neighbourhoods came home with fewer than there are, everything is scanned.
    pub fn finalists(&mut self, head: usize, n: usize, scratch: &mut Scratch) {
        let coded = self.spans.iter().any(|view| is_coded(view, n));
        self.drain(head, n, coded, scratch);
        if scratch.best.len() < n.min(self.visible()) && !self.stats.deadline_hit {
            scratch.tops[head].reset(n);
            for (s, view) in self.spans.iter().enumerate() {
                scratch.seen[s * self.ask.group + head].clear();
                self.scan((s, view), head..head + 1, scratch);
            }
            self.drain(head, n, false, scratch);
        }
    }

    /// The candidates of a head, scored exactly, the best `n` of them. `coded`: those of coded spans are not yet.
    fn drain(&mut self, head: usize, n: usize, coded: bool, scratch: &mut Scratch) {
        scratch.drained.clear();
        scratch.tops[head].drain(&mut scratch.drained);
        scratch.best.clear();
        let visible = scratch.drained.iter().filter(|c| c.0 > f32::NEG_INFINITY);
        scratch.best.extend(visible.map(|&(score, id)| Finalist { id, score, seen: score }));
        if coded {
            for (s, view) in self.spans.iter().enumerate().filter(|(_, view)| is_coded(view, n)) {
                self.rescore((s, view), head, scratch);
            }
            if n < scratch.best.len() {
                let Scratch { flat, sieve, picked, best, .. } = scratch;
                flat.scores.clear();
                flat.scores.extend(best.iter().map(|c| c.score));
                sieve.best(&flat.scores, n, picked);
                for (to, &from) in picked.iter().enumerate() {
                    best[to] = best[from as usize];
                }
                best.truncate(n);
            }
        }
    }

    /// Exact scores for the finalists of a coded span.
    fn rescore(&mut self, (s, view): (usize, &SpanView<'_>), head: usize, scratch: &mut Scratch) {
        let base = scratch.base[s];
        let range = base..base + view.keys.len() as u32;
        let best = &mut scratch.best;
        scratch.picked.clear();
        scratch.picked.extend((0..best.len() as u32).filter(|&i| range.contains(&best[i as usize].id)));
        let scores = &mut scratch.flat.scores;
        scores.resize(scratch.picked.len(), 0.0);
        let row = |&i: &u32| view.keys.row((best[i as usize].id - base) as usize);
        self.k.dot_gather(self.query(head), view.keys.dim(), scratch.picked.iter().map(row), scores);
        for (&i, &score) in scratch.picked.iter().zip(scores.iter()) {
            best[i as usize].score = score;
        }
        self.stats.bytes_read += (scratch.picked.len() * view.keys.dim() * 2) as f64;
    }
}
