//! Index builds and merges in the background: one at a time, in order, on a pool of their own, so that they never take
//! attend threads.

use crate::compactor::{self, Compaction};
use crate::merger::{self, Merge};
use crate::recipe::Recipe;
use crate::session::Session;
use crate::session::span::{Core, Span};
use crate::telemetry::Metrics;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Instant;
use tokio::sync::Notify;
use wire::names;

/// Builds and merges of one session that have not ended.
#[derive(Debug, Default)]
pub struct Pending {
    count: AtomicUsize,
    changed: Notify,
}

impl Pending {
    /// Builds queued or running.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Returns when no build is left or the deadline has passed.
    pub async fn settled(&self, deadline: Option<Instant>) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.count() == 0 {
                    return;
                }
                changed.await;
            }
        };
        match deadline {
            None => wait.await,
            Some(at) => {
                // Running out of time is one of the two ways to return.
                let _ = tokio::time::timeout_at(at.into(), wait).await;
            }
        }
    }
}

/// What to do in the background.
pub enum Work {
    /// The index of a span; it is gone when the session was closed or truncated: then there is nothing to do. Which tier
    /// its rows are in is seen when the build begins.
    Index(Weak<Session>, Weak<Core>),
    /// One span out of several.
    Merge(Merge),
    /// Another form of a span.
    Compact(Compaction),
}

/// One piece of work for one head.
pub struct Job {
    /// What.
    pub work: Work,
    /// How, and who pays.
    pub recipe: Recipe,
    /// The session's count, raised when the job is queued.
    pub pending: Arc<Pending>,
}

/// The queue and its thread. Dropping it ends the thread after the build that is running.
pub struct Builder {
    queue: mpsc::Sender<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Builder {
    /// Starts the builder with `threads` workers.
    pub fn start(threads: usize, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("index-{i}"))
            .build()
            .map_err(std::io::Error::other)?;
        let (queue, jobs) = mpsc::channel::<Job>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        std::thread::Builder::new().name("index-queue".into()).spawn(move || {
            for job in jobs {
                let pending = job.pending.clone();
                match job.work {
                    Work::Index(session, core) => {
                        let span = current(&session, &core, &job.recipe);
                        if index_span(&pool, span, &job.recipe, &metrics)
                            && let (Some(store), Some(session)) = (&job.recipe.store, session.upgrade())
                        {
                            store.keeper().submit(&session, job.recipe.at);
                        }
                    }
                    Work::Merge(merge) => merger::run(&pool, &merge, &job.recipe, &metrics),
                    Work::Compact(work) => compactor::run(&pool, work, &job.recipe, &metrics),
                }
                left.fetch_sub(1, Ordering::AcqRel);
                pending.count.fetch_sub(1, Ordering::AcqRel);
                pending.changed.notify_waiters();
            }
        })?;
        Ok(Self { queue, waiting })
    }

    /// Queues a job and raises the session's count.
    pub fn submit(&self, job: Job) {
        job.pending.count.fetch_add(1, Ordering::AcqRel);
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if let Err(mpsc::SendError(job)) = self.queue.send(job) {
            // Only when the builder's thread has died: the spans stay as they are.
            if let Work::Index(session, core) = &job.work
                && let Some(span) = current(session, core, &job.recipe)
            {
                span.publish(None);
            }
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            job.pending.count.fetch_sub(1, Ordering::AcqRel);
            job.pending.changed.notify_waiters();
        }
    }

    /// Builds and merges queued or running.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}

/// The span to index, if it is still there. The session is not held across the build: closing it must return its memory.
fn current(session: &Weak<Session>, core: &Weak<Core>, recipe: &Recipe) -> Option<Arc<Span>> {
    let (session, core) = (session.upgrade()?, core.upgrade()?);
    session.head(recipe.at.0, recipe.at.1).ok()?.current(&core)
}

/// Whether there is an index now.
fn index_span(pool: &rayon::ThreadPool, span: Option<Arc<Span>>, recipe: &Recipe, metrics: &Metrics) -> bool {
    let Some(span) = span else {
        metrics.builds_cancelled.increment(1);
        return false;
    };
    let (layer, kv_head) = recipe.at;
    let _span = tracing::debug_span!(names::SPAN_BUILD, layer, kv_head).entered();
    let queries = std::mem::take(&mut *span.queries());
    let built = recipe.build(pool, &span.rows, (span.begin, queries), metrics);
    match built {
        Ok((indexed, kept)) => {
            tracing::debug!(
                layer,
                kv_head,
                tokens = span.len(),
                bytes = indexed.charge.bytes(),
                recall = indexed.index.recall_estimate(),
                took_ms = indexed.build_us / 1000,
                "index ready"
            );
            span.queries().own = kept;
            span.publish(Some(indexed));
            true
        }
        Err(failure) => {
            let reason = failure.to_string();
            tracing::warn!(layer, kv_head, reason, "no index; the span stays on the exact scan");
            span.publish(None);
            false
        }
    }
}
