//! Spans that are brought into a compact form in the background: rows into maps of their files, the form into RAM, the index
//! to its file; one swap. What goes wrong leaves the span as it is.

use crate::admission::Charges;
use crate::recipe::Recipe;
use crate::session::Session;
use crate::session::compact::{Compacted, Failure, Form};
use crate::session::span::{Core, Span};
use crate::spill;
use crate::telemetry::Metrics;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;
use wire::names;

/// What to do.
pub struct Compaction {
    /// Whose; gone when it was closed.
    pub session: Weak<Session>,
    /// Of the span.
    pub core: Weak<Core>,
    /// Into what.
    pub form: Form,
    /// Who waits for the bytes that left RAM, or why none did; None: the policy has asked, which takes no room from others.
    pub reply: Option<oneshot::Sender<Result<u64, String>>>,
}

/// Runs one compaction and counts how it ended.
pub fn run(pool: &rayon::ThreadPool, work: Compaction, recipe: &Recipe, metrics: &Metrics) {
    let (layer, kv_head) = recipe.at;
    let _span = tracing::debug_span!(names::SPAN_COMPACT, layer, kv_head).entered();
    let charges = if work.reply.is_some() { Charges::Patient } else { Charges::Now };
    let done = pool.install(|| compact(&work, recipe, metrics, charges));
    match &done {
        Ok(freed) => {
            metrics.compactions.increment(1);
            tracing::debug!(freed, "span compacted");
        }
        Err(reason) => {
            metrics.compactions_refused.increment(1);
            tracing::debug!(reason, "a span is not compacted; it stays as it is");
        }
    }
    if let Some(reply) = work.reply {
        // Nobody waits any more: the caller is gone.
        let _ = reply.send(done);
    }
}

/// Bytes that left RAM; 0 where the span is gone.
fn compact(work: &Compaction, recipe: &Recipe, metrics: &Metrics, charges: Charges) -> Result<u64, String> {
    let (Some(session), Some(core), Some(store)) =
        (work.session.upgrade(), work.core.upgrade(), &recipe.store)
    else {
        return Ok(0);
    };
    let (Ok(head), Some(kept)) = (session.head(recipe.at.0, recipe.at.1), &session.kept) else {
        return Ok(0);
    };
    let Some(span) = head.current(&core) else { return Ok(0) };
    if span.compact().is_some_and(|c| c.kind == work.form) {
        return Ok(0);
    }
    if !span.can_spill() || !span.ready() || span.rows.archived() > 0 {
        return Err("its rows are not on disk yet".to_owned());
    }
    let open = store.files_of(kept, recipe.at, &span);
    // Who was there first has moved the rows.
    let moved = || !head.holds(&span) || kept.has_ended();
    // What was in a file may not be any more what it was when that was mapped.
    if let Err(e) = span.rows.mapped_again(&open) {
        return if moved() { Ok(0) } else { Err(e.to_string()) };
    }
    let built = Compacted::build(work.form, (head, &span), recipe, charges);
    let form = built.map_err(|e| {
        // What somebody has asked for may be too small; what the policy asks for is the same each time.
        if matches!(e, Failure::Build(_)) && charges == Charges::Now {
            span.set_shapeless();
        }
        e.to_string()
    })?;
    let before = in_ram(&span);
    let rows = match span.rows.spilled(&session.purse, &open) {
        Ok(rows) => rows,
        Err(e) => return if moved() { Ok(0) } else { Err(e.to_string()) },
    };
    let spilled = span.rows.tiers().0;
    let new = Arc::new(span.over(rows).without_index().with_form(Some(Arc::new(form))));
    let after = in_ram(&new);
    if !head.overlay(&span, new) {
        return Ok(0);
    }
    session.purse.shrink(spilled);
    metrics.spills.increment(u64::from(spilled > 0));
    store.keeper().submit(&session, recipe.at);
    span.history().leave(spill::now());
    Ok(before.saturating_sub(after))
}

/// Bytes of a span in RAM: rows, index, form.
fn in_ram(span: &Span) -> u64 {
    span.rows.tiers().0 + span.index_bytes() + span.compact_bytes()
}
