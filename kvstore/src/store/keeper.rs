//! The thread that brings sealed spans to disk, one head after the other. What fails is tried again until it works or the
//! session ends: until then the log, or the RAM, holds what it held.

use crate::session::Session;
use crate::store::Store;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// One head of a session.
pub struct Job {
    session: Weak<Session>,
    at: (usize, usize),
}

/// The queue. Dropping it ends the thread.
pub struct Keeper {
    queue: mpsc::Sender<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Keeper {
    /// A queue, and what comes out of it.
    pub fn new() -> (Self, (Receiver<Job>, Arc<AtomicUsize>)) {
        let (queue, jobs) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Self { queue, waiting: waiting.clone() }, (jobs, waiting))
    }

    /// Starts the thread.
    pub fn start(
        store: Weak<Store>,
        (jobs, waiting): (Receiver<Job>, Arc<AtomicUsize>),
    ) -> std::io::Result<()> {
        std::thread::Builder::new().name("keeper".into()).spawn(move || run(&store, &jobs, &waiting))?;
        Ok(())
    }

    /// Queues a head whose spans have changed.
    pub fn submit(&self, session: &Arc<Session>, at: (usize, usize)) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if self.queue.send(Job { session: Arc::downgrade(session), at }).is_err() {
            // Only when the thread has died; then nothing waits for it.
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Heads that are not on disk yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}

fn run(store: &Weak<Store>, jobs: &Receiver<Job>, waiting: &AtomicUsize) {
    let mut failed: VecDeque<(Instant, Job)> = VecDeque::new();
    // Said once for a run of failures, not at every try.
    let mut said = false;
    loop {
        let pause = failed.front().map_or(PAUSE, |(at, _)| at.saturating_duration_since(Instant::now()));
        let job = match jobs.recv_timeout(pause) {
            Ok(job) => job,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => match failed.pop_front() {
                Some((_, job)) => job,
                None => continue,
            },
        };
        let Some(store) = store.upgrade() else { return };
        let kept = job.session.upgrade().map_or(Ok(()), |session| store.persist(&session, job.at));
        match kept {
            Ok(()) => {
                said = false;
                waiting.fetch_sub(1, Ordering::AcqRel);
            }
            Err(e) => {
                store.metrics.store_errors.increment(1);
                if !std::mem::replace(&mut said, true) {
                    tracing::error!(error = %e, "sealed spans cannot be stored; trying again");
                }
                failed.push_back((Instant::now() + PAUSE, job));
            }
        }
    }
}
