//! The append stream: chunks in order, acknowledgements in order, a bound on the bytes in between.

use super::{plain, silent};
use crate::shard::PendingAck;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use wire::v1::kv_client::KvClient;
use wire::v1::{AppendAck, AppendChunk};

/// Opens a stream when there is none and hands chunks to it.
pub(super) struct Append {
    room: Arc<Semaphore>,
    capacity: u32,
    /// The stream of now. Whoever holds the lock is next in line, from waiting for room to the hand-over.
    current: tokio::sync::Mutex<Option<Stream>>,
}

#[derive(Clone)]
struct Stream {
    chunks: mpsc::Sender<AppendChunk>,
    line: Arc<Line>,
}

/// Chunks without an acknowledgement, oldest first; `Err` says why the stream ended. A plain lock: held to push and pop.
struct Line(Mutex<Result<VecDeque<Waiter>, Status>>);

struct Waiter {
    session: Vec<u8>,
    layer: u32,
    answer: oneshot::Sender<Result<AppendAck, Status>>,
    /// Bytes of the chunk, returned when it is acknowledged or lost.
    _room: OwnedSemaphorePermit,
}

impl Append {
    pub(super) fn new(in_flight_bytes: u32) -> Append {
        let capacity = in_flight_bytes.max(1);
        Append {
            room: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            current: tokio::sync::Mutex::new(None),
        }
    }

    /// Waits for room, then puts the chunk in line. A chunk larger than the bound goes alone.
    pub(super) async fn submit(
        &self,
        client: &KvClient<Channel>,
        chunk: AppendChunk,
        bytes: usize,
        limit: Duration,
    ) -> Result<PendingAck, Status> {
        let deadline = Instant::now() + limit;
        match timeout_at(deadline, self.hand_over(client, chunk, bytes)).await {
            Ok(handed) => {
                let (answered, line) = handed?;
                Ok(Box::pin(async move {
                    match timeout_at(deadline, answered).await {
                        Ok(Ok(ack)) => ack,
                        Ok(Err(_)) => Err(line.reason()),
                        Err(_) => Err(silent(limit)),
                    }
                }))
            }
            Err(_) => Err(silent(limit)),
        }
    }

    async fn hand_over(
        &self,
        client: &KvClient<Channel>,
        chunk: AppendChunk,
        bytes: usize,
    ) -> Result<(oneshot::Receiver<Result<AppendAck, Status>>, Arc<Line>), Status> {
        let mut current = self.current.lock().await;
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.capacity);
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        let room = room.map_err(|_| Status::unavailable("the client is closed"))?;
        let stream = match current.as_ref().filter(|stream| stream.line.open()) {
            Some(stream) => stream.clone(),
            None => current.insert(open(client).await?).clone(),
        };
        // The place in the connection's queue first: between the two pushes nothing may fail or wait.
        let slot = stream.chunks.reserve().await.map_err(|_| stream.line.reason())?;
        let (answer, answered) = oneshot::channel();
        stream.line.push(Waiter {
            session: chunk.session.clone(),
            layer: chunk.layer,
            answer,
            _room: room,
        })?;
        slot.send(chunk);
        drop(current);
        Ok((answered, stream.line))
    }
}

async fn open(client: &KvClient<Channel>) -> Result<Stream, Status> {
    let (chunks, outgoing) = mpsc::channel(1);
    let incoming = client.clone().append(ReceiverStream::new(outgoing)).await.map_err(plain)?.into_inner();
    let line = Arc::new(Line(Mutex::new(Ok(VecDeque::new()))));
    tokio::spawn(acknowledge(incoming, Arc::clone(&line)));
    Ok(Stream { chunks, line })
}

async fn acknowledge(mut incoming: Streaming<AppendAck>, line: Arc<Line>) {
    let reason = loop {
        match incoming.message().await {
            Ok(Some(ack)) => {
                if let Err(reason) = line.pop(ack) {
                    break reason;
                }
            }
            Ok(None) => break Status::unavailable("the shard ended the append stream"),
            Err(status) => break plain(status),
        }
    };
    line.end(&reason);
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Result<VecDeque<Waiter>, Status>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> bool {
        self.lock().is_ok()
    }

    fn reason(&self) -> Status {
        match &*self.lock() {
            Ok(_) => Status::unavailable("the append stream ended"),
            Err(status) => status.clone(),
        }
    }

    fn push(&self, waiter: Waiter) -> Result<(), Status> {
        self.lock().as_mut().map_err(|status| status.clone())?.push_back(waiter);
        Ok(())
    }

    /// Gives an acknowledgement to the oldest chunk; one for another chunk ends the stream.
    fn pop(&self, ack: AppendAck) -> Result<(), Status> {
        let mut line = self.lock();
        let Ok(queue) = line.as_mut() else { return Ok(()) };
        match queue.pop_front() {
            Some(waiter) if waiter.session == ack.session && waiter.layer == ack.layer => {
                drop(waiter.answer.send(Ok(ack)));
                Ok(())
            }
            Some(waiter) => {
                let status = Status::internal("the shard acknowledged another chunk than the oldest");
                drop(waiter.answer.send(Err(status.clone())));
                Err(status)
            }
            None => Err(Status::internal("the shard acknowledged a chunk that was not sent")),
        }
    }

    fn end(&self, reason: &Status) {
        if let Ok(queue) = std::mem::replace(&mut *self.lock(), Err(reason.clone())) {
            for waiter in queue {
                drop(waiter.answer.send(Err(reason.clone())));
            }
        }
    }
}
