//! Index builds in the background: one at a time on a pool of their own, so that they never take attend threads.

use crate::admission::{Charge, Kind, Purse};
use crate::pool::panic_text;
use crate::session::span::{Indexed, Span};
use crate::telemetry::Metrics;
use index::{BuildParams, BuildQueries};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use wire::names;

/// Builds of one session that have not ended.
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

/// One span to index.
pub struct Job {
    /// Gone when the session was closed or truncated: then there is nothing to do.
    pub span: Weak<Span>,
    /// Sampled queries and the memory they hold.
    pub queries: Option<(BuildQueries, Charge)>,
    /// How to build.
    pub params: BuildParams,
    /// Pays for the index and the working memory.
    pub purse: Arc<Purse>,
    /// The session's count, already raised for this job.
    pub pending: Arc<Pending>,
    /// Layer and KV head, for the log.
    pub at: (usize, usize),
    /// Elements of a key.
    pub key_dim: usize,
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
                run(&pool, job, &metrics);
                left.fetch_sub(1, Ordering::AcqRel);
                pending.count.fetch_sub(1, Ordering::AcqRel);
                pending.changed.notify_waiters();
            }
        })?;
        Ok(Self { queue, waiting })
    }

    /// Queues a build and raises the session's count.
    pub fn submit(&self, job: Job) {
        job.pending.count.fetch_add(1, Ordering::AcqRel);
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if let Err(mpsc::SendError(job)) = self.queue.send(job) {
            // Only when the builder's thread has died: the span stays on the exact scan.
            if let Some(span) = job.span.upgrade() {
                span.publish(None);
            }
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            job.pending.count.fetch_sub(1, Ordering::AcqRel);
            job.pending.changed.notify_waiters();
        }
    }

    /// Builds queued or running.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}

fn run(pool: &rayon::ThreadPool, job: Job, metrics: &Metrics) {
    let Some(span) = job.span.upgrade() else {
        metrics.builds_cancelled.increment(1);
        return;
    };
    let (layer, kv_head) = job.at;
    let _span = tracing::debug_span!(names::SPAN_BUILD, layer, kv_head).entered();
    let started = Instant::now();
    let outcome = build(pool, &job, &span);
    let took = started.elapsed();
    match outcome {
        Ok(indexed) => {
            tracing::debug!(
                layer,
                kv_head,
                tokens = span.end - span.begin,
                bytes = indexed.charge.bytes(),
                recall = indexed.index.recall_estimate(),
                took_ms = took.as_millis(),
                "index ready"
            );
            metrics.builds_ok.increment(1);
            metrics.build_seconds.record(took.as_secs_f64());
            span.publish(Some(Indexed { build_us: micros(took), ..indexed }));
        }
        Err(reason) => {
            tracing::warn!(layer, kv_head, reason, "no index; the span stays on the exact scan");
            metrics.builds_failed.increment(1);
            span.publish(None);
        }
    }
}

fn build(pool: &rayon::ThreadPool, job: &Job, span: &Span) -> Result<Indexed, String> {
    // Working memory: every key once in f32 with its candidate neighbours, and a row of nearest keys for each query.
    let tokens = span.end - span.begin;
    let rows = job.queries.as_ref().map_or(0, |(q, _)| q.visible.len() * q.group);
    let scratch = tokens * (4 * job.key_dim as u64 + 128) + (rows * job.params.row_length * 8) as u64;
    let short = |s: crate::admission::Short| s.status("the index").message().to_owned();
    let _scratch = job.purse.charge(Kind::Scratch, scratch).map_err(short)?;
    let queries = job.queries.as_ref().map(|(q, _)| q);
    let (keys, values) = (span.keys.rows(), span.values.rows());
    let built = catch_unwind(AssertUnwindSafe(|| {
        pool.install(|| index::build(&keys, &values, queries, &job.params))
    }));
    let index = match built {
        Ok(built) => built.map_err(|e| e.to_string())?,
        Err(panic) => return Err(format!("the build panicked: {}", panic_text(panic.as_ref()))),
    };
    let charge = job.purse.charge(Kind::Index, index.bytes() as u64).map_err(short)?;
    Ok(Indexed { index, recall_target: job.params.target_recall, build_us: 0, charge })
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
