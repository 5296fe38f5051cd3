//! Sessions that are to end although nobody closed them: dropped ones, and those of a program that stops.

use crate::session::Inner;
use futures::future::join_all;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::timeout;
use wire::v1;

/// How long the shards are tried to be told; after that the leases run out by themselves.
const FAREWELL: Duration = Duration::from_secs(2);

/// The sessions of a cluster that its shards may still hold.
#[derive(Clone, Default)]
pub struct OpenSessions(Arc<Mutex<Vec<Weak<Inner>>>>);

impl OpenSessions {
    /// Notes one that was opened.
    pub(crate) fn add(&self, inner: &Arc<Inner>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(inner));
    }

    /// Ends every one of them, those included that were dropped a moment ago; returns when the shards know, or after two
    /// seconds. For a program that stops: nothing that it spawned would be waited for.
    pub async fn end(&self) {
        let open: Vec<Arc<Inner>> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        join_all(open.iter().map(|inner| say_farewell(inner))).await;
    }
}

/// Tells every shard that a session has ended, whatever the others answer.
pub(crate) async fn say_farewell(inner: &Inner) {
    if inner.ended.load(Ordering::Acquire) {
        return;
    }
    let calls = inner.holders.iter().map(|holder| {
        let closed = holder.shard.close(v1::CloseRequest { session: inner.id.clone() });
        async move { timeout(FAREWELL, closed).await.is_ok_and(|answer| answer.is_ok()) }
    });
    match join_all(calls).await.into_iter().all(|closed| closed) {
        true => inner.ended.store(true, Ordering::Release),
        false => tracing::debug!("a session that was not closed has not ended on every shard"),
    }
}
