//! The attend stream: many messages in flight, answers matched by id.

use super::{plain, silent};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use wire::v1::kv_client::KvClient;
use wire::v1::{AttendRequest, AttendResponse};

/// Messages that may wait for the connection; the shard bounds how many it works on.
const QUEUE: usize = 256;

type Answer = oneshot::Sender<Result<AttendResponse, Status>>;

/// Opens a stream when there is none and hands messages to it.
#[derive(Default)]
pub(super) struct Attend {
    next_id: AtomicU64,
    /// The stream of now; replaced by the first caller that finds it ended. Async, since opening one takes a round trip.
    current: tokio::sync::Mutex<Option<Stream>>,
}

#[derive(Clone)]
struct Stream {
    requests: mpsc::Sender<AttendRequest>,
    waiting: Arc<Waiting>,
}

/// Who waits for which id; `Err` says why the stream ended. A plain lock: held for a map operation only.
struct Waiting(Mutex<Result<HashMap<u64, Answer>, Status>>);

impl Attend {
    /// Sends a message under an id of its own and waits for its answer. The shard's deadline is in the message; this side
    /// waits a quarter longer, or `fallback` when there is none.
    pub(super) async fn attend(
        &self,
        client: &KvClient<Channel>,
        mut request: AttendRequest,
        fallback: Duration,
    ) -> Result<AttendResponse, Status> {
        let limit = match request.deadline_us {
            0 => fallback,
            us => Duration::from_micros(us.saturating_add(us / 4)),
        };
        request.id = self.next_id.fetch_add(1, Ordering::Relaxed);
        match timeout(limit, self.exchange(client, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(silent(limit)),
        }
    }

    async fn exchange(
        &self,
        client: &KvClient<Channel>,
        request: AttendRequest,
    ) -> Result<AttendResponse, Status> {
        let stream = self.stream(client).await?;
        let (answer, answered) = oneshot::channel();
        let _forget = stream.waiting.register(request.id, answer)?;
        if stream.requests.send(request).await.is_err() {
            return Err(stream.waiting.reason());
        }
        answered.await.unwrap_or_else(|_| Err(stream.waiting.reason()))
    }

    async fn stream(&self, client: &KvClient<Channel>) -> Result<Stream, Status> {
        let mut current = self.current.lock().await;
        if let Some(stream) = current.as_ref().filter(|stream| stream.waiting.open()) {
            return Ok(stream.clone());
        }
        let (requests, outgoing) = mpsc::channel(QUEUE);
        let incoming =
            client.clone().attend(ReceiverStream::new(outgoing)).await.map_err(plain)?.into_inner();
        let waiting = Arc::new(Waiting(Mutex::new(Ok(HashMap::new()))));
        tokio::spawn(deliver(incoming, Arc::clone(&waiting)));
        Ok(current.insert(Stream { requests, waiting }).clone())
    }
}

/// Ends with the stream: when the shard ends it, when it breaks, or when the last sender is dropped.
async fn deliver(mut incoming: Streaming<AttendResponse>, waiting: Arc<Waiting>) {
    let reason = loop {
        match incoming.message().await {
            Ok(Some(response)) => waiting.answer(response),
            Ok(None) => break Status::unavailable("the shard ended the attend stream"),
            Err(status) => break plain(status),
        }
    };
    waiting.end(reason);
}

/// Takes an id back when its caller stops waiting.
struct Forget<'a> {
    waiting: &'a Waiting,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Ok(map) = self.waiting.lock().as_mut() {
            map.remove(&self.id);
        }
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Result<HashMap<u64, Answer>, Status>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> bool {
        self.lock().is_ok()
    }

    fn reason(&self) -> Status {
        match &*self.lock() {
            Ok(_) => Status::unavailable("the attend stream ended"),
            Err(status) => status.clone(),
        }
    }

    fn register(&self, id: u64, answer: Answer) -> Result<Forget<'_>, Status> {
        self.lock().as_mut().map_err(|status| status.clone())?.insert(id, answer);
        Ok(Forget { waiting: self, id })
    }

    fn answer(&self, response: AttendResponse) {
        let waiter = self.lock().as_mut().ok().and_then(|map| map.remove(&response.id));
        match waiter {
            // The caller may have given up between the two lines.
            Some(waiter) => drop(waiter.send(Ok(response))),
            None => tracing::debug!(id = response.id, "answer that nobody waits for"),
        }
    }

    fn end(&self, reason: Status) {
        if let Ok(map) = std::mem::replace(&mut *self.lock(), Err(reason.clone())) {
            for waiter in map.into_values() {
                drop(waiter.send(Err(reason.clone())));
            }
        }
    }
}
