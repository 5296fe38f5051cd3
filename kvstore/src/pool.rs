//! Heavy work on its own threads behind a bounded queue; overload is a permit refused at the door.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::Status;

/// A rayon pool and the places in its queue.
pub struct Pool {
    threads: rayon::ThreadPool,
    places: Arc<Semaphore>,
    capacity: usize,
    setting: &'static str,
}

/// Places in the queue, given back when dropped.
pub struct Permit(#[allow(dead_code, reason = "held for its Drop")] OwnedSemaphorePermit);

impl Pool {
    /// `threads` workers; `capacity` tasks may wait or run at once, which `setting` names in refusals.
    pub fn new(
        name: &'static str,
        threads: usize,
        capacity: usize,
        setting: &'static str,
    ) -> Result<Self, rayon::ThreadPoolBuildError> {
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |i| format!("{name}-{i}"))
            .build()?;
        Ok(Self { threads, places: Arc::new(Semaphore::new(capacity)), capacity, setting })
    }

    /// Takes `tasks` places now or refuses.
    pub fn try_enter(&self, tasks: usize) -> Result<Permit, Status> {
        let full = || {
            Status::resource_exhausted(format!(
                "{tasks} tasks do not fit the queue: {} of {} = {} places are free",
                self.places.available_permits(),
                self.setting,
                self.capacity
            ))
        };
        let tasks = u32::try_from(tasks).map_err(|_| full())?;
        let permit = self.places.clone().try_acquire_many_owned(tasks);
        permit.map(Permit).map_err(|_| full())
    }

    /// Waits for one place: back pressure for bulk work.
    pub async fn enter(&self) -> Result<Permit, Status> {
        let permit = self.places.clone().acquire_owned().await;
        permit.map(Permit).map_err(|_| Status::unavailable("the server is stopping"))
    }

    /// Runs `work` on the threads and waits for it, past the queue: for the start, when nobody else is there.
    pub fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.threads.install(work)
    }

    /// Tasks waiting or running.
    pub fn queued(&self) -> usize {
        self.capacity - self.places.available_permits()
    }

    /// Runs `job` on the pool. A panic inside becomes `INTERNAL` and leaves the pool alive.
    pub async fn run<T: Send + 'static>(
        &self,
        permit: Permit,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let (tx, rx) = oneshot::channel();
        self.threads.spawn_fifo(move || {
            let result = catch_unwind(AssertUnwindSafe(job));
            drop(permit);
            // The caller may have gone away; then nobody wants the answer.
            let _ = tx.send(result);
        });
        match rx.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => {
                let what = panic_text(panic.as_ref());
                tracing::error!(what, "a task panicked");
                Err(Status::internal("a task panicked; the server's log has more"))
            }
            Err(_) => Err(Status::internal("a task ended without an answer")),
        }
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[tokio::test]
    async fn full_queue_names_the_setting_and_recovers() {
        let pool = Pool::new("test", 1, 3, "attend.queue").unwrap();
        let two = pool.try_enter(2).unwrap();
        let e = pool.try_enter(2).err().unwrap();
        assert_eq!(e.code(), Code::ResourceExhausted);
        assert!(e.message().contains("attend.queue = 3"), "{}", e.message());
        assert_eq!(pool.queued(), 2);
        assert_eq!(pool.run(two, || 7).await.unwrap(), 7);
        assert_eq!(pool.queued(), 0);
        assert!(pool.try_enter(usize::MAX).is_err());
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_pool_lives() {
        let pool = Pool::new("test", 1, 1, "attend.queue").unwrap();
        let permit = pool.try_enter(1).unwrap();
        let e = pool.run(permit, || -> u32 { panic!("boom") }).await.unwrap_err();
        assert_eq!(e.code(), Code::Internal);
        let permit = pool.enter().await.unwrap();
        assert_eq!(pool.run(permit, || 1).await.unwrap(), 1);
    }
}
