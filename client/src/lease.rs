//! Keeps the leases of a session alive, and ends the session when its owner drops it.

use crate::farewell;
use crate::session::Inner;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval_at};

/// The task that renews, and the runtime that it runs on; dropping it stops the renewal.
pub(crate) struct Renewal {
    task: JoinHandle<()>,
    /// A session may be dropped by a thread that is not in a runtime.
    runtime: Handle,
}

impl Renewal {
    /// Starts on the runtime of the caller.
    pub(crate) fn start(inner: &Arc<Inner>) -> Renewal {
        let runtime = Handle::current();
        Renewal { task: runtime.spawn(renew(Arc::clone(inner))), runtime }
    }

    /// Tells the shards in the background that the session ended without a close. If the runtime has ended, the leases
    /// do it.
    pub(crate) fn say_farewell(self, inner: Arc<Inner>) {
        self.runtime.spawn(async move { farewell::say_farewell(&inner).await });
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew(inner: Arc<Inner>) {
    let period = inner.renewal_period();
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The next call of the session reports a loss to its owner; here it is only noted.
        if let Err(error) = inner.renew().await {
            tracing::warn!(%error, "lease not renewed");
        }
    }
}
