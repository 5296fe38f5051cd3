//! Which tokens a query selects: for measurements and tests. No message carries it, no step needs it.

use crate::node::Node;
use crate::session::span::Want;
use attention::{Description, Partial};
use index::{Ask, Budget, Scratch, Stats, attend_spans};
use std::ops::Range;
use tonic::Status;

/// What one KV head selected.
#[derive(Debug, Clone)]
pub struct Selection {
    /// For each query head of the group the positions selected from spans, ascending.
    pub positions: Vec<Vec<u64>>,
    /// What the search did.
    pub stats: Stats,
}

impl Node {
    /// Attends as a row over `range` would, with `k` tokens from the spans, and tells which. `q` is `[group, key_dim]`.
    pub fn select(
        &self,
        session: &[u8],
        (layer, kv_head): (usize, usize),
        range: Range<u64>,
        q: &[f32],
        k: usize,
    ) -> Result<Selection, Status> {
        let session = self.session(session, "session")?;
        let g = session.terms.geometry;
        if q.len() != g.group * g.key_dim {
            return Err(Status::invalid_argument(format!(
                "q has {} elements, must be {} x {}",
                q.len(),
                g.group,
                g.key_dim
            )));
        }
        let want = Want::Answer { budget: Budget::TopK(k), estimate: false };
        let state = session.head(layer, kv_head)?.read();
        let end = state.end();
        if range.end > end {
            return Err(Status::out_of_range(format!(
                "range ends at {}, but {end} tokens are held",
                range.end
            )));
        }
        state.at_hand(range.start, range.end, want)?;
        let (views, fresh) = state.views(range.start, range.end);
        let seen = state.spans().filter(|(s, end)| s.view(range.start, range.end, *end).is_some());
        let begins: Vec<u64> = seen.map(|(span, _)| span.begin).collect();
        let ask = Ask {
            q,
            group: g.group,
            description: Description { scale: session.terms.fingerprint.scale, softcap: None },
            budget: Budget::TopK(k),
            estimate: false,
            width: None,
            deadline: None,
            outside: None,
        };
        let mut partials = vec![Partial::neutral(g.value_dim); g.group];
        let (mut scratch, mut chosen) = (Scratch::new(), Vec::new());
        let stats = attend_spans(
            &self.kernels,
            &views,
            fresh.as_slice(),
            &ask,
            &mut scratch,
            &mut partials,
            Some(&mut chosen),
        );
        let position = |&(span, id): &(u32, u32)| begins[span as usize] + u64::from(id);
        let positions = chosen.iter().map(|ids| ids.iter().map(position).collect()).collect();
        Ok(Selection { positions, stats })
    }
}
