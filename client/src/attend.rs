//! Rows of queries in, one partial per query head out.
//!
//! The rows of a call are cut at the boundaries of placement, every shard gets one message (more only when it would be
//! over the shard's limit), all at the same time. What comes back is checked against the question before it is folded.

use crate::error::Error;
use crate::fold::{self, Piece, Whole};
use crate::session::{Geometry, Holder, Inner, PlannedRun};
use crate::{Budget, Session, finite};
use attention::Partial;
use futures::future::try_join_all;
use half::f16;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tokio::time::timeout;
use tonic::Status;
use wire::tensor::{self, Dim};
use wire::v1;

/// K and V of the token that is being decoded; stored before the row is attended to.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTokenKv {
    /// Must equal the length held of this layer.
    pub position: u64,
    /// `[kv_heads, key_dim]`, after RoPE.
    pub k: Vec<f16>,
    /// `[kv_heads, value_dim]`.
    pub v: Vec<f16>,
}

/// One query position of one layer, all heads.
#[derive(Debug, Clone, PartialEq)]
pub struct RowAsk {
    /// Layer.
    pub layer: u32,
    /// First token of the range.
    pub begin: u64,
    /// One past its last token; not beyond what is held, the new token included.
    pub end: u64,
    /// How many tokens to attend to exactly.
    pub budget: Budget,
    /// Whether the rest is estimated from the summary.
    pub estimate: bool,
    /// `[q_heads, key_dim]`, after RoPE, not scaled; empty: only store the token.
    pub q: Vec<f32>,
    /// `[q_heads]`: log of the mass that the caller attends to itself at this step, which a coverage budget counts as
    /// reached (-inf: none); empty: unknown.
    pub beside: Vec<f32>,
    /// A token to store first.
    pub token: Option<NewTokenKv>,
}

/// What a row cost: means over its query heads, except where stated.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowStats {
    /// Tokens attended to exactly, fresh ones included.
    pub exact_tokens: f64,
    /// Key rows scored in any precision.
    pub keys_scored: f64,
    /// Summary rows scored.
    pub summary_scored: f64,
    /// Bytes of keys, values and index read.
    pub bytes_read: f64,
    /// Some shard ran out of time.
    pub deadline_hit: bool,
    /// Of the slowest shard, microseconds.
    pub compute_us: u64,
}

/// The answer to a [`RowAsk`].
#[derive(Debug, Clone, PartialEq)]
pub struct RowAnswer {
    /// One per query head over `[begin, end)`; empty when there were no queries.
    pub partials: Vec<Partial>,
    /// What it cost.
    pub stats: RowStats,
    /// Tokens of the range that the answer does not account for, of the head that misses most. More than 0 only when a
    /// shard ran out of time.
    pub missing_tokens: u64,
}

/// A part of a row on one shard, and where it belongs.
struct Part {
    ask: usize,
    kv_heads: Range<u32>,
    row: v1::AttendRow,
}

/// Part of an answer: which row, and what came back for it.
struct Answered {
    ask: usize,
    kv_heads: Range<u32>,
    partials: Vec<Partial>,
    stats: v1::AttendStats,
}

impl Session {
    /// Asks all shards that hold heads of these rows, at the same time, and folds what they answer.
    ///
    /// Errors: [`Error::Input`] before anything is sent; otherwise the first shard that refused, is lost or answered
    /// something else. There is no partial success: tokens of the rows may have been stored on some shards.
    pub async fn attend(&self, asks: Vec<RowAsk>) -> Result<Vec<RowAnswer>, Error> {
        let inner = &*self.inner;
        let mut parts: Vec<Vec<Part>> = inner.holders.iter().map(|_| Vec::new()).collect();
        for (i, ask) in asks.iter().enumerate() {
            check(&inner.geometry, i, ask)?;
            for run in &inner.plan[ask.layer as usize] {
                parts[run.holder].push(inner.part(i, ask, run));
            }
        }
        let busy = inner.holders.iter().zip(parts).filter(|(_, parts)| !parts.is_empty());
        let answers = try_join_all(busy.map(|(holder, parts)| inner.ask_holder(holder, parts))).await?;
        gather(&inner.geometry, &asks, answers.into_iter().flatten())
    }
}

impl Inner {
    fn part(&self, ask: usize, row: &RowAsk, run: &PlannedRun) -> Part {
        let Geometry { key_dim, value_dim, .. } = self.geometry;
        let group = self.geometry.group();
        let (first, count) = (run.kv_heads.start as usize, run.kv_heads.len());
        let q = (!row.q.is_empty()).then(|| {
            let width = group * key_dim;
            tensor::from_f32(&[count * group, key_dim], &row.q[first * width..][..count * width])
        });
        let beside = (!row.beside.is_empty()).then(|| &row.beside[first * group..][..count * group]);
        let token = row.token.as_ref().map(|token| v1::NewToken {
            position: token.position,
            k: Some(tensor::from_f16(&[count, key_dim], &token.k[first * key_dim..][..count * key_dim])),
            v: Some(tensor::from_f16(
                &[count, value_dim],
                &token.v[first * value_dim..][..count * value_dim],
            )),
        });
        let attention = v1::AttentionDesc {
            scale: self.description.scale,
            logit_softcap: self.description.softcap,
            sliding_window: None,
        };
        let row = v1::AttendRow {
            session: self.id.clone(),
            layer: row.layer,
            kv_head_begin: run.kv_heads.start,
            kv_head_count: count as u32,
            begin: row.begin,
            end: row.end,
            budget: Some(row.budget.write()),
            estimate: row.estimate,
            attention: Some(attention),
            q,
            token,
            hint_m: beside.map(|m| tensor::from_f32(&[count * group], m)),
            hint_l: beside.map(|m| tensor::from_f32(&[count * group], &vec![1.0; m.len()])),
        };
        Part { ask, kv_heads: run.kv_heads.clone(), row }
    }

    /// Sends the parts of one shard in as few messages as its limit allows, in order.
    async fn ask_holder(&self, holder: &Holder, parts: Vec<Part>) -> Result<Vec<Answered>, Error> {
        let mut answered = Vec::with_capacity(parts.len());
        let mut rest = parts.into_iter().peekable();
        while rest.peek().is_some() {
            let mut room = holder.max_message_bytes;
            let mut message = Vec::new();
            while let Some(part) = rest.next_if(|part| message.is_empty() || self.row_bytes(part) <= room) {
                room = room.saturating_sub(self.row_bytes(&part));
                message.push(part);
            }
            self.exchange(holder, message, &mut answered).await?;
        }
        Ok(answered)
    }

    /// An upper bound of what a part takes in the question and in the answer, whichever is more.
    fn row_bytes(&self, part: &Part) -> u64 {
        let Geometry { key_dim, value_dim, .. } = self.geometry;
        let (heads, group) = (part.kv_heads.len(), self.geometry.group());
        let question = heads * group * key_dim * 4 + heads * (key_dim + value_dim) * 2;
        let answer = heads * group * (value_dim + 4) * 4;
        question.max(answer) as u64 + 256
    }

    /// Four fifths of the time, so that the answer is here when the time is over. A deterministic answer is whole or
    /// none: its shard gets no deadline, only this side has one.
    fn shard_deadline_us(&self) -> u64 {
        match self.deterministic {
            true => 0,
            false => u64::try_from((self.deadline * 4 / 5).as_micros()).unwrap_or(u64::MAX).max(1),
        }
    }

    async fn exchange(
        &self,
        holder: &Holder,
        parts: Vec<Part>,
        into: &mut Vec<Answered>,
    ) -> Result<(), Error> {
        let mut places = Vec::with_capacity(parts.len());
        let mut rows = Vec::with_capacity(parts.len());
        for part in parts {
            places.push((part.ask, part.kv_heads, part.row.end - part.row.begin, part.row.q.is_some()));
            rows.push(part.row);
        }
        let request = v1::AttendRequest {
            id: 0,
            deadline_us: self.shard_deadline_us(),
            instance: holder.instance.clone(),
            rows,
        };
        let response = match timeout(self.deadline, holder.shard.attend(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => return Err(holder.explain(&status).await),
            Err(_) => {
                let status = Status::deadline_exceeded(format!("no answer within {:?}", self.deadline));
                return Err(holder.explain(&status).await);
            }
        };
        if let Some(refused) = response.error {
            return Err(holder.explain(&Status::from(refused)).await);
        }
        if response.rows.len() != places.len() {
            return Err(holder.bad(format!("{} rows for {}", response.rows.len(), places.len())));
        }
        for ((ask, kv_heads, tokens, asked), result) in places.into_iter().zip(response.rows) {
            if let Some(refused) = result.error {
                return Err(holder.explain(&Status::from(refused)).await);
            }
            holder.watermark.fetch_max(result.watermark, Ordering::AcqRel);
            let stats = result.stats.unwrap_or_default();
            let partials = if asked {
                if stats.visible_tokens != tokens {
                    return Err(
                        holder.bad(format!("{} visible tokens, asked for {tokens}", stats.visible_tokens))
                    );
                }
                let q_heads = kv_heads.len() * self.geometry.group();
                read_partials(&result, q_heads, self.geometry.value_dim).map_err(|what| holder.bad(what))?
            } else {
                Vec::new()
            };
            into.push(Answered { ask, kv_heads, partials, stats });
        }
        Ok(())
    }
}

impl Holder {
    pub(crate) fn bad(&self, what: impl ToString) -> Error {
        Error::Answer { shard: self.shard.name().to_owned(), what: what.to_string() }
    }
}

/// Lengths, ranges and numbers.
fn check(geometry: &Geometry, i: usize, ask: &RowAsk) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::Input(format!("row {i}: {what}")));
    let length = |field: &str, got: usize, want: usize| -> Result<(), Error> {
        if got == want { Ok(()) } else { refuse(format!("{field} has {got} elements, must have {want}")) }
    };
    if ask.layer >= geometry.layers {
        return refuse(format!("layer {} of {}", ask.layer, geometry.layers));
    }
    if ask.begin > ask.end {
        return refuse(format!("range [{}, {}) ends before it begins", ask.begin, ask.end));
    }
    if ask.q.is_empty() && ask.token.is_none() {
        return refuse("neither queries nor a token".into());
    }
    let Geometry { q_heads, kv_heads, key_dim, value_dim, .. } = *geometry;
    // Numbers are checked here too, or the shards of the other heads would store their part of a bad token.
    if !ask.q.is_empty() {
        length("q", ask.q.len(), q_heads * key_dim)?;
        finite::singles("q", &[q_heads, key_dim], &ask.q).or_else(|what| refuse(what.to_string()))?;
    }
    if !ask.beside.is_empty() {
        length("beside", ask.beside.len(), q_heads)?;
        if let Some(m) = ask.beside.iter().find(|m| m.is_nan() || **m == f32::INFINITY) {
            return refuse(format!("beside: {m} is neither finite nor -inf"));
        }
    }
    if let Some(token) = &ask.token {
        for (field, data, dim) in [("token.k", &token.k, key_dim), ("token.v", &token.v, value_dim)] {
            length(field, data.len(), kv_heads * dim)?;
            finite::halves(field, &[kv_heads, dim], data).or_else(|what| refuse(what.to_string()))?;
        }
    }
    Ok(())
}

/// The partials of one result: shapes, finite numbers, and masses that a softmax can have.
fn read_partials(
    result: &v1::AttendResult,
    q_heads: usize,
    value_dim: usize,
) -> Result<Vec<Partial>, String> {
    let say = |error: wire::WireError| error.to_string();
    let heads = [Dim::Is(q_heads)];
    let (o, _) =
        tensor::read_f32(result.o.as_ref(), "o", &[Dim::Is(q_heads), Dim::Is(value_dim)]).map_err(say)?;
    let (m, _) = tensor::read_f32_max(result.m.as_ref(), "m", &heads).map_err(say)?;
    let (l_exact, _) = tensor::read_f32(result.l_exact.as_ref(), "l_exact", &heads).map_err(say)?;
    let (l_quant, _) = tensor::read_f32(result.l_quant.as_ref(), "l_quant", &heads).map_err(say)?;
    let (l_est, _) = tensor::read_f32(result.l_est.as_ref(), "l_est", &heads).map_err(say)?;
    let mut partials = Vec::with_capacity(q_heads);
    for h in 0..q_heads {
        let partial = Partial {
            m: m[h],
            l_exact: l_exact[h],
            l_quant: l_quant[h],
            l_est: l_est[h],
            o: o[h * value_dim..][..value_dim].to_vec(),
        };
        let negative = [partial.l_exact, partial.l_quant, partial.l_est].iter().any(|&l| l < 0.0);
        if negative || (partial.m == f32::NEG_INFINITY) != (partial.l() == 0.0) {
            return Err(format!("m {} with l {} for query head {h} of the row", partial.m, partial.l()));
        }
        partials.push(partial);
    }
    Ok(partials)
}

/// Sorts the parts to their rows and folds each.
fn gather(
    geometry: &Geometry,
    asks: &[RowAsk],
    answers: impl Iterator<Item = Answered>,
) -> Result<Vec<RowAnswer>, Error> {
    let mut pieces: Vec<Vec<Piece>> = asks.iter().map(|_| Vec::new()).collect();
    let mut costs = vec![(RowStats::default(), 0u64); asks.len()];
    for answer in answers {
        let share = answer.kv_heads.len() as f64 / geometry.kv_heads as f64;
        let (stats, missing) = &mut costs[answer.ask];
        stats.exact_tokens += share * answer.stats.exact_tokens;
        stats.keys_scored += share * answer.stats.keys_scored;
        stats.summary_scored += share * answer.stats.summary_scored;
        stats.bytes_read += share * answer.stats.bytes_read;
        stats.deadline_hit |= answer.stats.deadline_hit;
        stats.compute_us = stats.compute_us.max(answer.stats.compute_us);
        *missing = (*missing).max(answer.stats.missing_tokens);
        let ask = &asks[answer.ask];
        pieces[answer.ask].push(Piece {
            kv_heads: answer.kv_heads,
            tokens: ask.begin..ask.end,
            partials: answer.partials,
        });
    }
    let mut rows = Vec::with_capacity(asks.len());
    for ((ask, pieces), (stats, missing_tokens)) in asks.iter().zip(pieces).zip(costs) {
        let partials = if ask.q.is_empty() {
            Vec::new()
        } else {
            let whole = Whole {
                kv_heads: geometry.kv_heads as u32,
                group: geometry.group(),
                value_dim: geometry.value_dim,
                tokens: ask.begin..ask.end,
            };
            fold::fold(&whole, pieces)
                .map_err(|error| Error::Input(format!("layer {}: {error}", ask.layer)))?
        };
        rows.push(RowAnswer { partials, stats, missing_tokens });
    }
    Ok(rows)
}
