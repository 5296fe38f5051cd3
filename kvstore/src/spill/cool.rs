//! What becomes of spans that nobody asks for (a compact form that answers in the place of their rows, the archive), and whether
//! what is used again and again returns.
//!
//! Both are opt-in. A compact form takes memory only while there is some: it pushes out nothing. Sessions that are pinned, or
//! deterministic, whose answers may not depend on what is cold, keep their rows.

use super::{Place, now, places};
use crate::node::Node;
use crate::session::Session;
use crate::session::compact::Form;
use crate::session::span::Span;
use crate::store::millis;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Compactions queued at each look, if none is left of the look before.
const AT_ONCE: usize = 8;
/// Until the next look after one in which the archive failed.
const BACK_OFF: Duration = Duration::from_secs(60);

/// When spans are cold, and what then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooling {
    /// The form that answers for cold spans; None: their rows do, wherever they lie.
    pub form: Option<Form>,
    /// Unused for so long a span is cold.
    pub after: Duration,
    /// Unused for so long a session goes to the archive; None: never.
    pub archive_after: Option<Duration>,
    /// Whether what left RAM returns when it is used again and again. What is pinned returns in any case.
    pub bring_back: bool,
}

impl Default for Cooling {
    fn default() -> Self {
        Self { form: None, after: Duration::from_secs(300), archive_after: None, bring_back: true }
    }
}

impl Node {
    /// Queues compact forms for the coldest spans that have none; returns how many.
    pub(crate) fn cool_down(&self, now: u64) -> usize {
        let Some(form) = self.config().cooling.form.filter(|_| self.builder.waiting() == 0) else { return 0 };
        let after = millis(self.config().cooling.after);
        let cold = |span: &Span| {
            span.compact().is_none()
                && span.about().is_some()
                && span.ready()
                && span.can_spill()
                && span.may_be_compacted()
                && span.rows.archived() == 0
                && span.history().idle(now) >= after
        };
        let mut found: Vec<Place> = self.cooling_sessions().iter().flat_map(|s| places(s, cold)).collect();
        found.sort_by_key(|place| place.span.history().rank(now));
        found.truncate(AT_ONCE);
        found.iter().for_each(|place| self.queue_compaction(place, form, None));
        found.len()
    }

    /// Archives sessions of which no span was used for long; false when the archive failed.
    pub(crate) fn archive_cold(&self, now: u64) -> bool {
        let (Some(store), Some(after)) = (&self.store, self.config().cooling.archive_after.map(millis))
        else {
            return true;
        };
        let cold = |session: &Arc<Session>| {
            let here = |span: &Span| span.rows.archived() == 0;
            let used = |span: &Span| span.history().idle(now) < after;
            !session.is_read() && places(session, used).is_empty() && !places(session, here).is_empty()
        };
        let sessions = self.cooling_sessions().into_iter().filter(cold);
        sessions.into_iter().all(|session| match self.archive_now(store, &[session]) {
            Ok(_) => true,
            Err(e) => {
                tracing::warn!(reason = e.message(), "a cold session is not archived; it stays as it is");
                false
            }
        })
    }

    fn cooling_sessions(&self) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions();
        sessions.retain(|s| s.kept.is_some() && !s.terms.deterministic && !s.pinned.load(Ordering::Acquire));
        sessions
    }
}

/// Looks once a second for sessions to archive, until the node is gone.
pub fn start(node: Weak<Node>) -> std::io::Result<()> {
    std::thread::Builder::new().name("archivist".into()).spawn(move || {
        let mut pause = LOOK;
        loop {
            std::thread::sleep(pause);
            match node.upgrade() {
                Some(node) => pause = if node.archive_cold(now()) { LOOK } else { BACK_OFF },
                None => return,
            };
        }
    })?;
    Ok(())
}
