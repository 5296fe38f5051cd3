//! `Inspect` and `WaitReady`: for operators and tests, never on the path of a step.

use crate::node::Node;
use crate::session::Session;
use crate::session::compact::Form;
use crate::session::span::Span;
use crate::shard::kinds::wire_kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tonic::Status;
use wire::v1;

impl Node {
    /// One session, or all in order of their ids.
    pub async fn inspect(&self, request: v1::InspectRequest) -> Result<v1::InspectResponse, Status> {
        let mut sessions = if request.session.is_empty() {
            self.sessions()
        } else {
            vec![self.session(&request.session, "session")?]
        };
        sessions.sort_unstable_by_key(|s| s.id);
        Ok(v1::InspectResponse {
            sessions: sessions.iter().map(describe).collect(),
            memory_used_bytes: self.budget.granted(),
            memory_budget_bytes: self.budget.limit(),
            quarantined_files: self.store.as_ref().map_or(0, |s| s.directory.quarantined()),
            refused: self.refused_sessions(),
        })
    }

    fn refused_sessions(&self) -> Vec<v1::RefusedSession> {
        let refused = self.refused();
        let told = refused.iter().map(|(id, r)| v1::RefusedSession {
            session: id.to_vec(),
            reason: r.reason.message().to_owned(),
        });
        let mut told: Vec<_> = told.collect();
        told.sort_unstable_by(|a, b| a.session.cmp(&b.session));
        told
    }

    /// Answers when no index build or merge of the session is left, or at the deadline; 0 ms asks for the state now.
    pub async fn wait_ready(&self, request: v1::WaitReadyRequest) -> Result<v1::WaitReadyResponse, Status> {
        let session = self.session(&request.session, "session")?;
        session.lease.renew(None);
        let deadline = Instant::now().checked_add(Duration::from_millis(request.timeout_ms));
        session.pending.settled(deadline).await;
        let (mut spans, mut ready) = (0, 0);
        for (_, _, head) in session.owned() {
            for (span, _) in head.read().spans() {
                spans += 1;
                ready += u64::from(span.ready());
            }
        }
        Ok(v1::WaitReadyResponse { spans, ready })
    }
}

fn describe(session: &Arc<Session>) -> v1::SessionInfo {
    let mut spans = Vec::new();
    let mut fresh_tokens = 0;
    for (layer, kv_head, head) in session.owned() {
        let state = head.read();
        fresh_tokens = fresh_tokens.max(state.end() - state.fresh_begin());
        spans.extend(state.spans().map(|(span, end)| span_info(layer, kv_head, span, end)));
    }
    let usage = session.purse.usage();
    let left = session.lease.left(Instant::now());
    v1::SessionInfo {
        session: session.id.to_vec(),
        fingerprint: Some(session.terms.fingerprint.clone()),
        watermark: session.watermark(),
        kv_bytes: usage.kv,
        index_bytes: usage.index,
        lease_left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        spans,
        fresh_tokens,
        pinned: session.pinned.load(Ordering::Acquire),
        spilled_bytes: usage.spilled,
        archived_bytes: usage.archived,
        compact_bytes: usage.compact,
        durable: session.log().is_some(),
        durable_watermark: match (&session.kept, session.log()) {
            (_, Some(log)) => log.durable().0,
            (Some(kept), None) => kept.sealed(session.owned().map(|(layer, kv_head, _)| (layer, kv_head))),
            (None, None) => 0,
        },
        terms: Some(terms(session)),
    }
}

fn terms(session: &Session) -> v1::SessionTerms {
    let mut owned: Vec<v1::HeadRange> = Vec::new();
    for (layer, kv_head) in session.owned().map(|(layer, kv_head, _)| (layer as u32, kv_head as u32)) {
        match owned.last_mut() {
            Some(last) if last.layer_begin == layer && last.kv_head_end == kv_head => last.kv_head_end += 1,
            _ => owned.push(v1::HeadRange {
                layer_begin: layer,
                layer_end: layer + 1,
                kv_head_begin: kv_head,
                kv_head_end: kv_head + 1,
            }),
        }
    }
    let (truncations, lowest_truncation) = session.cuts.told();
    v1::SessionTerms {
        index: wire_kind(session.terms.index) as i32,
        seed: session.terms.seed,
        deterministic: session.terms.deterministic,
        lease_ms: u64::try_from(session.lease.length().as_millis()).unwrap_or(u64::MAX),
        owned,
        truncations,
        lowest_truncation,
    }
}

fn span_info(layer: usize, kv_head: usize, span: &Span, end: u64) -> v1::SpanInfo {
    let about = span.about();
    let kind = about.map_or(index::Kind::Flat, |a| a.kind);
    let (_, spilled_bytes) = span.rows.tiers();
    let archived_bytes = span.rows.archived();
    let tier = match (span.compact().map(|c| c.kind), archived_bytes, spilled_bytes) {
        (Some(Form::Quantised), ..) => v1::Tier::Quantised,
        (Some(Form::Sketched(_)), ..) => v1::Tier::Sketched,
        (None, 0, 0) => v1::Tier::Full,
        (None, 0, _) => v1::Tier::Spilled,
        (None, ..) => v1::Tier::Archived,
    };
    v1::SpanInfo {
        layer: layer as u32,
        kv_head: kv_head as u32,
        begin: span.begin,
        end,
        version: span.version,
        index: wire_kind(kind) as i32,
        ready: span.ready(),
        index_bytes: span.index_bytes(),
        build_us: about.map_or(0, |a| a.build_us),
        recall: about.and_then(|a| a.recall),
        width: about.map_or(0, |a| u32::try_from(a.width).unwrap_or(u32::MAX)),
        recall_target: about.map(|a| a.recall_target),
        tier: tier.into(),
        spilled_bytes,
        archived_bytes,
        compact_bytes: span.compact_bytes(),
    }
}
