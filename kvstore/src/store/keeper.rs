//! The thread that brings sealed spans to disk, one head after the other. What fails is tried again until it works or the
//! session ends: until then the log, or the RAM, holds what it held.

use crate::session::Session;
use crate::store::Store;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks of who waits for progress.
const STEP: Duration = Duration::from_millis(100);

/// One head of a session.
pub struct Job {
    session: Weak<Session>,
    at: (usize, usize),
}

/// The queue. Dropping it ends the thread.
pub struct Keeper {
    queue: mpsc::Sender<Job>,
    shared: Arc<Shared>,
}

/// What the thread tells.
#[derive(Default)]
pub struct Shared {
    waiting: AtomicUsize,
    /// Jobs that ended well, and whether the last try failed; held for a few instructions.
    tried: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Shared {
    fn tried(&self, well: bool) {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        *tried = (tried.0 + u64::from(well), !well);
        drop(tried);
        self.changed.notify_all();
    }
}

impl Keeper {
    /// A queue, and what comes out of it.
    pub fn new() -> (Self, (Receiver<Job>, Arc<Shared>)) {
        let (queue, jobs) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        (Self { queue, shared: shared.clone() }, (jobs, shared))
    }

    /// Starts the thread.
    pub fn start(store: Weak<Store>, (jobs, shared): (Receiver<Job>, Arc<Shared>)) -> std::io::Result<()> {
        std::thread::Builder::new().name("keeper".into()).spawn(move || run(&store, &jobs, &shared))?;
        Ok(())
    }

    /// Queues a head whose spans have changed.
    pub fn submit(&self, session: &Arc<Session>, at: (usize, usize)) {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        if self.queue.send(Job { session: Arc::downgrade(session), at }).is_err() {
            // Only when the thread has died; then nothing waits for it.
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Heads that are not on disk yet.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    /// Waits until one more head is on disk. False: there is none to wait for, the disk takes nothing, or time is up.
    pub fn progress(&self, until: Instant) -> bool {
        let mut tried = self.shared.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let done = tried.0;
        while tried.0 == done {
            let left = until.saturating_duration_since(Instant::now());
            if self.waiting() == 0 || tried.1 || left.is_zero() {
                return false;
            }
            // In steps, so that a thread that has died is noticed.
            let waited = self.shared.changed.wait_timeout(tried, left.min(STEP));
            tried = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

fn run(store: &Weak<Store>, jobs: &Receiver<Job>, shared: &Shared) {
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
                shared.waiting.fetch_sub(1, Ordering::AcqRel);
                shared.tried(true);
            }
            Err(e) => {
                store.metrics.store_errors.increment(1);
                if !std::mem::replace(&mut said, true) {
                    tracing::error!(error = %e, "sealed spans cannot be stored; trying again");
                }
                failed.push_back((Instant::now() + PAUSE, job));
                shared.tried(false);
            }
        }
    }
}
