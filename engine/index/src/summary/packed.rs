//! Keys in the order of their groups: what a summary scan reads.

use attention::Rows;
use half::f16;
use kernels::Kernels;

use super::Summary;

/// Elements at the head of the next group that are fetched ahead; the hardware follows from there.
const AHEAD: usize = 512;

/// A copy of the keys, group after group, so that a group is one run of memory: a scan of scattered rows waits for
/// each of them, which cost four times as much a key.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    /// [tokens, dim].
    rows: Vec<f16>,
    dim: usize,
}

impl Packed {
    /// Copies every key once.
    pub fn new(summary: &Summary, keys: &Rows<'_>) -> Packed {
        let mut rows = Vec::with_capacity(keys.len() * keys.dim());
        for &id in &summary.members {
            rows.extend_from_slice(keys.row(id as usize));
        }
        Packed { rows, dim: keys.dim() }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.rows.len() * size_of::<f16>()
    }

    fn group(&self, summary: &Summary, group: u32) -> &[f16] {
        let (from, to) = (summary.first[group as usize], summary.first[group as usize + 1]);
        &self.rows[from as usize * self.dim..to as usize * self.dim]
    }

    /// The members of `groups` and their products with `q`, replacing what `ids` and `scores` held.
    pub fn scan(
        &self,
        k: &Kernels,
        summary: &Summary,
        q: &[f32],
        groups: &[(f32, u32)],
        (ids, scores): (&mut Vec<u32>, &mut Vec<f32>),
    ) {
        ids.clear();
        scores.clear();
        for (i, &(_, group)) in groups.iter().enumerate() {
            if let Some(&(_, next)) = groups.get(i + 1) {
                let next = self.group(summary, next);
                k.prefetch(&next[..next.len().min(AHEAD)]);
            }
            let from = ids.len();
            ids.extend_from_slice(summary.members(group as usize));
            scores.resize(ids.len(), 0.0);
            k.dot_rows(q, self.dim, self.group(summary, group), &mut scores[from..]);
        }
    }
}
