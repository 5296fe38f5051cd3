//! `Attend`: rows of several sequences. New tokens are stored at admission, in order of receipt; the attention itself
//! fans out over row x KV head on the attend pool.

use crate::node::Node;
use crate::pool::Permit;
use crate::session::Session;
use crate::session::head::{Grant, Head, Rows};
use crate::session::samples;
use crate::session::span::Span;
use crate::shard::plan::{Row, RowAsk};
use crate::spill;
use crate::store::log::record;
use attention::{EXTENT_TOKENS, Partial};
use half::f16;
use index::{Ask, Budget, Scratch, SpanView, Stats, attend_spans};
use rayon::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;
use tracing::Instrument;
use wire::tensor::from_f32;
use wire::{names, v1};

/// A message that was let in: its tokens are stored, its places in the queue are taken.
pub struct Admitted {
    id: u64,
    received: Instant,
    deadline: Option<Instant>,
    rows: Vec<Result<Row, Status>>,
    permit: Permit,
}

/// What one KV head of a row came to.
struct HeadAnswer {
    partials: Vec<Partial>,
    stats: Stats,
    missing: u64,
}

thread_local! {
    /// Buffers of an attend thread, reused from task to task.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

impl Node {
    /// Admits and answers one message.
    pub async fn attend(self: &Arc<Self>, request: v1::AttendRequest) -> Result<v1::AttendResponse, Status> {
        let admitted = self.admit(request)?;
        self.answer(admitted).await
    }

    /// Checks a message, takes its places in the queue and stores its tokens. Messages of one stream are admitted in
    /// order of receipt; their answers may come in any order. An error refuses the message as a whole.
    pub(crate) fn admit(&self, request: v1::AttendRequest) -> Result<Admitted, Status> {
        let received = Instant::now();
        let instance = wire::convert::id(&request.instance, "instance")?;
        if instance != self.instance {
            return Err(Status::failed_precondition(match self.store {
                None => "restarted: the sessions of that instance are gone",
                Some(_) => "restarted: Describe tells the new instance, Renew what a session still holds",
            }));
        }
        let rows = request.rows.into_iter().enumerate();
        let mut rows: Vec<_> = rows.map(|(i, row)| self.read_row(i, row)).collect();
        let tasks: usize = rows.iter().flatten().map(Row::tasks).sum();
        let permit = self.pool.try_enter(tasks.max(1)).inspect_err(|_| {
            self.metrics.attend_refused.increment(1);
        })?;
        for (i, slot) in rows.iter_mut().enumerate() {
            if let Ok(row) = slot
                && !row.parked
                && let Err(status) = self.store_token(i, row)
            {
                *slot = Err(status);
            }
        }
        // A deadline too far away to be written down is none.
        let deadline = (request.deadline_us > 0)
            .then(|| received.checked_add(Duration::from_micros(request.deadline_us)))
            .flatten();
        Ok(Admitted { id: request.id, received, deadline, rows, permit })
    }

    /// Checks what depends on lengths, and stores the new token if there is one.
    fn store_token(&self, i: usize, row: &Row) -> Result<(), Status> {
        let session = &row.session;
        let g = &session.terms.geometry;
        let heads = session.heads_of(row.layer, row.heads.clone())?;
        let _ingest = row.token.as_ref().map(|_| session.ingest(row.layer));
        for (head, number) in heads.iter().zip(row.heads.clone()) {
            let held = head.len();
            let place = format!("layer {}, KV head {number} holds {held} tokens", row.layer);
            let mut end = held;
            if let Some(t) = &row.token {
                if t.position != held {
                    let position = t.position;
                    return Err(Status::out_of_range(format!(
                        "rows[{i}].token.position is {position}, but {place}"
                    )));
                }
                end += 1;
            }
            if let Some(ask) = row.ask.as_ref().filter(|a| a.end > end) {
                return Err(Status::out_of_range(format!("rows[{i}].end is {}, but {place}", ask.end)));
            }
        }
        let Some(token) = &row.token else {
            return Ok(());
        };
        let end = token.position + 1;
        let sample = self.sample(row, token.position, &heads);
        let samples = usize::from(sample.is_some());
        let seals: Vec<Option<u64>> = heads
            .iter()
            .map(|h| (end - h.read().fresh_begin() >= self.config.seal_tokens).then_some(end))
            .collect();
        let grants = heads
            .iter()
            .zip(&seals)
            .map(|(h, &seal)| h.grant(g, &session.purse, 1, samples, seal))
            .collect::<Result<Vec<Grant>, _>>()
            .map_err(|s| self.short(&format!("rows[{i}].token"), s))?;
        let (q, q_window) = sample.unwrap_or_default();
        let q_pos = &[token.position][..samples];
        let record = || record::Rows {
            layer: row.layer,
            kv_head: row.heads.start,
            begin: token.position,
            tokens: 1,
            seals: seals.iter().map(|s| s.unwrap_or(0)).collect(),
            k: &token.k,
            v: &token.v,
            q: &q,
            q_pos: q_pos.to_vec(),
            q_window,
        };
        self.log(session, record)?;
        let places = row.heads.clone().enumerate().zip(seals);
        for (((slot, kv_head), seal_to), (head, grant)) in places.zip(heads.iter().zip(grants)) {
            let rows =
                Rows { k: &token.k, v: &token.v, q: &q, q_pos, q_window, heads: heads.len(), slot, seal_to };
            self.push(session, (row.layer, kv_head), head, rows, grant);
        }
        self.metrics.decoded.increment(heads.len() as u64);
        Ok(())
    }

    /// One decode query in a few is kept as those of the prefill are, for the indexes of the tokens that decode adds:
    /// the query in f16, and how many of the last tokens it does not ask for.
    fn sample(&self, row: &Row, position: u64, heads: &[&Head]) -> Option<(Vec<f16>, u64)> {
        let ask = row.ask.as_ref().filter(|a| a.begin < a.end)?;
        let run = |p: u64| p / samples::DECODE_EVERY;
        let due = heads.iter().all(|h| h.read().last_sample().is_none_or(|last| run(last) < run(position)));
        if !due || row.session.terms.index == index::Kind::Flat {
            return None;
        }
        let q: Vec<f16> = ask.q.iter().map(|&x| f16::from_f32(x)).collect();
        // An element beyond f16 is answered, but nothing is learned from it.
        q.iter().all(|x| x.is_finite()).then_some((q, position + 1 - ask.end))
    }

    /// Computes the answer of an admitted message.
    pub(crate) async fn answer(self: &Arc<Self>, admitted: Admitted) -> Result<v1::AttendResponse, Status> {
        let Admitted { id, received, deadline, mut rows, permit } = admitted;
        self.bring_rows_back(&mut rows, received, deadline).await;
        for row in rows.iter().flatten() {
            if row.session.terms.deterministic {
                row.session.pending.settled(deadline).await;
            }
        }
        let node = self.clone();
        let span = tracing::debug_span!(names::SPAN_ATTEND, id, rows = rows.len());
        let durable: Vec<Option<(Arc<Session>, bool)>> = rows.iter().map(durable).collect();
        let compute = self.pool.run(permit, move || node.compute(rows, deadline)).instrument(span);
        let (computed, settled) = tokio::join!(compute, self.settle(durable));
        let mut rows = computed?;
        for (row, watermark) in rows.iter_mut().zip(settled) {
            match watermark.filter(|_| row.error.is_none()) {
                None => {}
                Some(Ok(watermark)) => row.watermark = watermark,
                Some(Err(status)) => {
                    *row = v1::AttendResult { error: Some(status.into()), ..Default::default() }
                }
            }
        }
        let failed = rows.iter().filter(|r| r.error.is_some()).count() as u64;
        self.metrics.attend_rows_error.increment(failed);
        self.metrics.attend_rows_ok.increment(rows.len() as u64 - failed);
        self.metrics.attend_seconds.record(received.elapsed().as_secs_f64());
        Ok(v1::AttendResponse { id, rows, error: None })
    }

    /// Brings back what the rows ask for from the archive and from files, and stores the tokens that waited for it. A row whose
    /// rows do not come back fails, and nothing of it is stored.
    async fn bring_rows_back(
        self: &Arc<Self>,
        rows: &mut [Result<Row, Status>],
        received: Instant,
        deadline: Option<Instant>,
    ) {
        // The other rows of the message need the rest of the time.
        let until = deadline.map(|d| received + d.saturating_duration_since(received) / 2);
        let bring = rows.iter().enumerate().map(async |(i, row)| {
            let Ok(row) = row else { return Ok(()) };
            let Some(ask) = &row.ask else { return Ok(()) };
            let heads = (row.layer, row.heads.clone());
            let back = self.revive(&row.session, heads, (ask.begin..ask.end, ask.want()), until).await;
            back.map_err(|s| Status::new(s.code(), format!("rows[{i}]: {}", s.message())))
        });
        let back = futures::future::join_all(bring).await;
        for (i, (slot, back)) in rows.iter_mut().zip(back).enumerate() {
            let stored = match slot {
                Ok(row) if row.parked => back.and_then(|()| self.store_token(i, row)),
                _ => back,
            };
            if let Err(status) = stored {
                *slot = Err(status);
            }
        }
    }

    /// For rows of durable sessions, the watermark to tell: where a new token has raised it, once that is on disk.
    async fn settle(&self, rows: Vec<Option<(Arc<Session>, bool)>>) -> Vec<Option<Result<u64, Status>>> {
        let mut told = Vec::with_capacity(rows.len());
        for row in rows {
            let Some((session, token)) = row else {
                told.push(None);
                continue;
            };
            let Some(log) = session.log() else {
                told.push(None);
                continue;
            };
            let durable = log.durable().0;
            told.push(Some(match token && session.watermark() > durable {
                true => self.settled(&session, log).await,
                false => Ok(durable),
            }));
        }
        told
    }

    fn compute(&self, rows: Vec<Result<Row, Status>>, deadline: Option<Instant>) -> Vec<v1::AttendResult> {
        let started = Instant::now();
        let tasks: Vec<(&Row, &RowAsk, usize)> = rows
            .iter()
            .flatten()
            .filter_map(|row| Some((row, row.ask.as_ref()?)))
            .flat_map(|(row, ask)| (0..row.heads.len()).map(move |slot| (row, ask, slot)))
            .collect();
        let answers: Vec<Result<HeadAnswer, Status>> =
            tasks.par_iter().map(|(row, ask, slot)| self.attend_head(row, ask, *slot, deadline)).collect();
        let compute_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut answers = answers.into_iter();
        rows.into_iter()
            .map(|row| {
                let result = row.and_then(|row| {
                    let heads = answers.by_ref().take(row.tasks()).collect::<Result<_, _>>()?;
                    Ok(self.fold_row(&row, heads, compute_us))
                });
                result.unwrap_or_else(|status| v1::AttendResult {
                    error: Some(status.into()),
                    ..Default::default()
                })
            })
            .collect()
    }

    /// One KV head with the query heads of its group.
    fn attend_head(
        &self,
        row: &Row,
        ask: &RowAsk,
        slot: usize,
        deadline: Option<Instant>,
    ) -> Result<HeadAnswer, Status> {
        let g = &row.session.terms.geometry;
        let head: &Head = row.session.head(row.layer, row.heads.start + slot)?;
        let width = g.group * g.key_dim;
        let mut partials = vec![Partial::neutral(g.value_dim); g.group];
        let visible = ask.end - ask.begin;
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Ok(HeadAnswer {
                partials,
                stats: Stats { deadline_hit: true, ..Stats::default() },
                missing: visible,
            });
        }
        let state = head.read();
        if ask.end > state.end() {
            // Truncated between admission and now.
            return Err(Status::aborted(format!(
                "end is {}, but layer {}, KV head {} was cut to {} tokens meanwhile",
                ask.end,
                row.layer,
                row.heads.start + slot,
                state.end()
            )));
        }
        state.at_hand(ask.begin, ask.end, ask.want())?;
        let (spans, fresh) = state.views(ask.begin, ask.end);
        let asked = Ask {
            q: &ask.q[slot * width..(slot + 1) * width],
            group: g.group,
            description: ask.description,
            budget: ask.budget,
            estimate: ask.estimate,
            width: None,
            deadline,
            outside: ask.outside.as_ref().map(|o| &o[slot * g.group..(slot + 1) * g.group]),
        };
        let stats = SCRATCH.with_borrow_mut(|scratch| {
            let (stats, shares) = match (deadline, ask.budget) {
                (Some(deadline), Budget::All) => {
                    // In the order of `attend_spans`.
                    let views = fresh.iter().chain(&spans);
                    // Every token got what it got: nothing was selected that would tell a span from another.
                    (self.attend_pieces(views, deadline, &asked, scratch, &mut partials), &[][..])
                }
                _ => {
                    let fresh = fresh.as_slice();
                    let stats =
                        attend_spans(&self.kernels, &spans, fresh, &asked, scratch, &mut partials, None);
                    (stats, scratch.span_shares())
                }
            };
            // Without a store nothing is ever spilled, and nobody asks how spans are used.
            if self.store.is_some() {
                refer(state.seen(ask.begin, ask.end), shares);
            }
            stats
        });
        // Out of time: what was not attended to exactly is missing unless an estimate stands in for it.
        let estimated = ask.estimate && ask.budget != Budget::All;
        let missing = if stats.deadline_hit && !estimated {
            visible.saturating_sub((stats.exact_tokens + stats.compact_tokens) as u64)
        } else {
            0
        };
        Ok(HeadAnswer { partials, stats, missing })
    }

    /// Budget all under a deadline: in pieces, with a look at the clock before each. The same bits as in one go.
    fn attend_pieces<'v>(
        &self,
        views: impl Iterator<Item = &'v SpanView<'v>>,
        deadline: Instant,
        asked: &Ask<'_>,
        scratch: &mut Scratch,
        partials: &mut [Partial],
    ) -> Stats {
        let mut sum = Stats::default();
        for view in views {
            let mut at = view.visible.start;
            while at < view.visible.end {
                if Instant::now() >= deadline {
                    sum.deadline_hit = true;
                    return sum;
                }
                let end = view.visible.end.min((at / EXTENT_TOKENS + 1) * EXTENT_TOKENS);
                let piece = SpanView { visible: at..end, ..view.clone() };
                let s = attend_spans(&self.kernels, &[], &[piece], asked, scratch, partials, None);
                sum.exact_tokens += s.exact_tokens;
                sum.keys_scored += s.keys_scored;
                sum.bytes_read += s.bytes_read;
                at = end;
            }
        }
        sum
    }

    fn fold_row(&self, row: &Row, heads: Vec<HeadAnswer>, compute_us: u64) -> v1::AttendResult {
        let watermark = row.session.watermark();
        let Some(ask) = &row.ask else {
            return v1::AttendResult { watermark, ..Default::default() };
        };
        let g = &row.session.terms.geometry;
        let partials = || heads.iter().flat_map(|h| &h.partials);
        let n = row.heads.len() * g.group;
        let o: Vec<f32> = partials().flat_map(|p| p.o.iter().copied()).collect();
        let per_head = |f: fn(&Partial) -> f32| {
            let values: Vec<f32> = partials().map(f).collect();
            Some(from_f32(&[n], &values))
        };
        let mean = |f: fn(&Stats) -> f64| heads.iter().map(|h| f(&h.stats)).sum::<f64>() / heads.len() as f64;
        let missing = heads.iter().map(|h| h.missing).max().unwrap_or(0);
        self.metrics.attend_missing.increment(missing);
        v1::AttendResult {
            error: None,
            o: Some(from_f32(&[n, g.value_dim], &o)),
            m: per_head(|p| p.m),
            l_exact: per_head(|p| p.l_exact),
            l_quant: per_head(|p| p.l_quant),
            l_est: per_head(|p| p.l_est),
            stats: Some(v1::AttendStats {
                visible_tokens: ask.end - ask.begin,
                exact_tokens: mean(|s| s.exact_tokens),
                keys_scored: mean(|s| s.keys_scored),
                summary_scored: mean(|s| s.summary_scored),
                bytes_read: mean(|s| s.bytes_read),
                missing_tokens: missing,
                deadline_hit: heads.iter().any(|h| h.stats.deadline_hit),
                compute_us,
            }),
            watermark,
        }
    }
}

/// Counts a reference to spans, with the share of the attention that each of them got, where that is known.
fn refer<'s>(spans: impl Iterator<Item = &'s Arc<Span>>, shares: &[f32]) {
    let now = spill::now();
    let shares = shares.iter().copied().chain(std::iter::repeat(0.0));
    spans.zip(shares).for_each(|(span, share)| span.history().refer(now, share));
}

/// The durable session of a row, and whether the row brought a token.
fn durable(row: &Result<Row, Status>) -> Option<(Arc<Session>, bool)> {
    let row = row.as_ref().ok()?;
    row.session.log()?;
    Some((row.session.clone(), row.token.is_some()))
}
