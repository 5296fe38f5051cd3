//! Reading an attend message: every check that needs no lock, so that a bad row costs its neighbours nothing.

use crate::node::Node;
use crate::session::span::Want;
use crate::session::{Reading, Session};
use attention::Description;
use half::f16;
use std::ops::Range;
use std::sync::Arc;
use tonic::Status;
use wire::tensor::{Dim, read_f16, read_f32, read_f32_max};
use wire::{WireError, convert, v1};

/// A row that may be served, positions apart.
pub struct Row {
    /// Whose it is.
    pub session: Arc<Session>,
    /// Its layer.
    pub layer: usize,
    /// Its KV heads.
    pub heads: Range<usize>,
    /// Stored first.
    pub token: Option<Token>,
    /// Then attended.
    pub ask: Option<RowAsk>,
    /// Its token is stored only once what it asks for is back from the archive or from files.
    pub parked: bool,
    /// What was brought back stays until this row is answered.
    _reading: Reading,
}

/// The token that is being decoded.
pub struct Token {
    /// Must be the length held.
    pub position: u64,
    /// `[heads, key_dim]`.
    pub k: Vec<f16>,
    /// `[heads, value_dim]`.
    pub v: Vec<f16>,
}

/// What to attend to and how.
pub struct RowAsk {
    /// First position.
    pub begin: u64,
    /// Position after the last.
    pub end: u64,
    /// Exactly attended tokens.
    pub budget: index::Budget,
    /// Whether the remainder is estimated.
    pub estimate: bool,
    /// Logits from products.
    pub description: Description,
    /// `[heads * group, key_dim]`.
    pub q: Vec<f32>,
    /// `[heads * group]`: log of the mass that the caller attends to itself, where it says so.
    pub outside: Option<Vec<f32>>,
}

impl RowAsk {
    /// What it wants of spans.
    pub fn want(&self) -> Want {
        Want::Answer { budget: self.budget, estimate: self.estimate }
    }
}

impl Row {
    /// Tasks that this row becomes.
    pub fn tasks(&self) -> usize {
        self.ask.as_ref().map_or(0, |_| self.heads.len())
    }
}

impl Node {
    /// Checks one row; `i` names it in errors.
    pub(crate) fn read_row(&self, i: usize, row: v1::AttendRow) -> Result<Row, Status> {
        let name = |field: &str| format!("rows[{i}].{field}");
        let session = self.session(&row.session, &name("session"))?;
        let reading = Reading::begin(&session);
        let g = &session.terms.geometry;
        let count = row.kv_head_count as usize;
        let (layer, heads) = g.heads(&name(""), row.layer, row.kv_head_begin, count)?;
        session.heads_of(layer, heads.clone())?;
        let token = match &row.token {
            None => None,
            Some(t) => {
                let (kd, vd) = ([count, g.key_dim], [count, g.value_dim]);
                let (k, _) = read_f16(t.k.as_ref(), &name("token.k"), &kd.map(Dim::Is))?;
                let (v, _) = read_f16(t.v.as_ref(), &name("token.v"), &vd.map(Dim::Is))?;
                Some(Token { position: t.position, k, v })
            }
        };
        let ask = match &row.q {
            None if token.is_some() => None,
            q => {
                let dims = [count * g.group, g.key_dim].map(Dim::Is);
                let (q, _) = read_f32(q.as_ref(), &name("q"), &dims)?;
                if let Some(x) = q.iter().find(|x| x.abs() > Description::MAX_QUERY) {
                    let limit = format!("at most {:e} in magnitude", Description::MAX_QUERY);
                    return Err(WireError::range(&name("q"), x, limit).into());
                }
                if row.begin > row.end {
                    return Err(WireError::range(
                        &name("begin"),
                        row.begin,
                        format!("at most end = {}", row.end),
                    )
                    .into());
                }
                Some(RowAsk {
                    begin: row.begin,
                    end: row.end,
                    budget: budget(convert::Budget::read(row.budget.as_ref(), &name("budget"))?),
                    estimate: row.estimate,
                    description: description(
                        row.attention.as_ref(),
                        &name("attention"),
                        session.terms.fingerprint.scale,
                    )?,
                    q,
                    outside: outside(&row, count * g.group, &name)?,
                })
            }
        };
        session.lease.renew(None);
        let parked = token.is_some()
            && ask
                .as_ref()
                .is_some_and(|a| self.lacks(&session, layer, heads.clone(), (&(a.begin..a.end), a.want())));
        Ok(Row { session, layer, heads, token, ask, parked, _reading: reading })
    }
}

/// Log masses from the hints: both or neither.
fn outside(
    row: &v1::AttendRow,
    heads: usize,
    name: &impl Fn(&str) -> String,
) -> Result<Option<Vec<f32>>, WireError> {
    if row.hint_m.is_none() && row.hint_l.is_none() {
        return Ok(None);
    }
    let (m, _) = read_f32_max(row.hint_m.as_ref(), &name("hint_m"), &[Dim::Is(heads)])?;
    let (l, _) = read_f32(row.hint_l.as_ref(), &name("hint_l"), &[Dim::Is(heads)])?;
    if let Some(l) = l.iter().find(|&&l| l < 0.0) {
        return Err(WireError::range(&name("hint_l"), l, "0 or more"));
    }
    Ok(Some(m.iter().zip(&l).map(|(m, l)| m + l.ln()).collect()))
}

fn budget(b: convert::Budget) -> index::Budget {
    match b {
        convert::Budget::TopK(k) => index::Budget::TopK(k as usize),
        convert::Budget::Coverage(c) => index::Budget::Coverage(c),
        convert::Budget::All => index::Budget::All,
    }
}

/// The range of the row already reflects a sliding window, so that part of the description has no effect here.
fn description(d: Option<&v1::AttentionDesc>, field: &str, scale: f32) -> Result<Description, WireError> {
    let d = d.ok_or_else(|| WireError::missing(field))?;
    // Indexes are built, and their estimates fitted, with the session's.
    if d.scale != scale {
        return Err(WireError::range(&format!("{field}.scale"), d.scale, format!("the session's, {scale}")));
    }
    if let Some(cap) = d.logit_softcap.filter(|c| !(c.is_finite() && *c > 0.0)) {
        return Err(WireError::range(&format!("{field}.logit_softcap"), cap, "finite and above 0"));
    }
    Ok(Description { scale: d.scale, softcap: d.logit_softcap })
}
