//! A shard of a few lines over a real socket: exact answers by the f64 oracle, and the faults a test asks for.

use attention::{Description, Rows, oracle};
use half::f16;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use wire::tensor::{Dim, from_f32, read_f16, read_f32};
use wire::v1;
use wire::v1::kv_server::{Kv, KvServer};

/// How a fake differs from a good shard.
#[derive(Clone, Default)]
pub struct Faults {
    pub protocol: Option<u32>,
    /// Attend messages are read and never answered.
    pub mute: bool,
    /// Attend answers are held back until this many have come, then sent last first.
    pub reverse: usize,
    /// Acknowledgements wait until the test allows them.
    pub hold_acks: bool,
    /// Answers leave out their last row.
    pub drop_row: bool,
    pub max_message_bytes: Option<u64>,
}

type Held = HashMap<(u32, u32), (Vec<f16>, Vec<f16>)>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Default)]
pub struct Shared {
    faults: Faults,
    instance: Vec<u8>,
    geometry: Mutex<v1::Fingerprint>,
    held: Mutex<Held>,
    pub chunks: AtomicUsize,
    pub closes: AtomicUsize,
    pub renewals: AtomicUsize,
    pub acks: Notify,
}

pub struct Fake {
    pub address: String,
    pub shared: Arc<Shared>,
    /// Of its own, so that its end is the end of every connection, as with a process.
    runtime: Option<Runtime>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fake {
    pub fn start(faults: Faults) -> Fake {
        static STARTED: AtomicU8 = AtomicU8::new(100);
        Fake::on("127.0.0.1:0", STARTED.fetch_add(1, Ordering::Relaxed), faults)
    }

    pub fn on(address: &str, instance: u8, faults: Faults) -> Fake {
        let listener = std::net::TcpListener::bind(address).expect("bind");
        listener.set_nonblocking(true).expect("nonblocking");
        let address = listener.local_addr().expect("address").to_string();
        let shared = Arc::new(Shared { faults, instance: vec![instance; 16], ..Shared::default() });
        let service = KvServer::from_arc(Arc::new(Service(Arc::clone(&shared))));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("listener");
            let incoming = TcpListenerStream::new(listener).map(|socket| {
                let socket = socket?;
                socket.set_nodelay(true)?;
                Ok::<_, std::io::Error>(socket)
            });
            drop(
                tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await,
            );
        });
        Fake { address, shared, runtime: Some(runtime) }
    }
}

struct Service(Arc<Shared>);

impl Shared {
    fn append(&self, c: &v1::AppendChunk) -> v1::AppendAck {
        let g = self.geometry.lock().expect("lock").clone();
        if g.layers == 0 {
            let error = Some(Status::not_found("unknown session").into());
            return v1::AppendAck { session: c.session.clone(), layer: c.layer, error, ..Default::default() };
        }
        let dims = |dim: u32| [Dim::Any("tokens"), Dim::Any("heads"), Dim::Is(dim as usize)];
        let (k, shape) = read_f16(c.k.as_ref(), "k", &dims(g.key_dim)).expect("k");
        let (v, _) = read_f16(c.v.as_ref(), "v", &dims(g.value_dim)).expect("v");
        let mut held = self.held.lock().expect("lock");
        for head in 0..shape[1] {
            let slot = held.entry((c.layer, c.kv_head_begin + head as u32)).or_default();
            assert_eq!(slot.0.len(), c.begin as usize * g.key_dim as usize, "chunks out of order");
            for token in 0..shape[0] {
                let at = token * shape[1] + head;
                slot.0.extend_from_slice(&k[at * g.key_dim as usize..][..g.key_dim as usize]);
                slot.1.extend_from_slice(&v[at * g.value_dim as usize..][..g.value_dim as usize]);
            }
        }
        let layer_end = c.begin + shape[0] as u64;
        v1::AppendAck {
            session: c.session.clone(),
            layer: c.layer,
            layer_end,
            watermark: layer_end,
            error: None,
        }
    }

    fn attend(&self, request: v1::AttendRequest) -> v1::AttendResponse {
        if request.instance != self.instance {
            let error = Some(Status::failed_precondition("restarted").into());
            return v1::AttendResponse { id: request.id, error, ..Default::default() };
        }
        let mut rows: Vec<_> = request.rows.iter().map(|row| self.row(row)).collect();
        if self.faults.drop_row {
            rows.pop();
        }
        v1::AttendResponse { id: request.id, rows, error: None }
    }

    fn row(&self, row: &v1::AttendRow) -> v1::AttendResult {
        let g = self.geometry.lock().expect("lock").clone();
        let (group, dim) = ((g.q_heads / g.kv_heads) as usize, g.key_dim as usize);
        let n = row.kv_head_count as usize * group;
        let (q, _) = read_f32(row.q.as_ref(), "q", &[Dim::Is(n), Dim::Is(dim)]).expect("q");
        let d = Description { scale: row.attention.expect("attention").scale, softcap: None };
        let held = self.held.lock().expect("lock");
        let (mut o, mut m, mut l) = (Vec::new(), Vec::new(), Vec::new());
        for h in 0..n {
            let (k, v) = &held[&(row.layer, row.kv_head_begin + (h / group) as u32)];
            let (k, v) = (Rows::contiguous(k, dim), Rows::contiguous(v, g.value_dim as usize));
            let ids = row.begin as usize..row.end as usize;
            let p = oracle::attend(&d, &q[h * dim..][..dim], &k, &v, ids);
            o.extend(p.o.iter().map(|&x| x as f32));
            m.push(p.m as f32);
            l.push(p.l as f32);
        }
        let zero = vec![0.0; n];
        let visible_tokens = row.end - row.begin;
        let exact_tokens = visible_tokens as f64;
        v1::AttendResult {
            o: Some(from_f32(&[n, g.value_dim as usize], &o)),
            m: Some(from_f32(&[n], &m)),
            l_exact: Some(from_f32(&[n], &l)),
            l_quant: Some(from_f32(&[n], &zero)),
            l_est: Some(from_f32(&[n], &zero)),
            stats: Some(v1::AttendStats { visible_tokens, exact_tokens, ..Default::default() }),
            watermark: row.end,
            error: None,
        }
    }
}

#[tonic::async_trait]
impl Kv for Service {
    type AppendStream = Answers<v1::AppendAck>;
    type AttendStream = Answers<v1::AttendResponse>;

    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        Ok(Response::new(v1::DescribeResponse {
            protocol: self.0.faults.protocol.unwrap_or(wire::PROTOCOL),
            instance: self.0.instance.clone(),
            max_message_bytes: self.0.faults.max_message_bytes.unwrap_or(1 << 20),
            memory_budget_bytes: 1 << 30,
            ..Default::default()
        }))
    }

    async fn open(&self, request: Request<v1::OpenRequest>) -> Result<Response<v1::OpenResponse>, Status> {
        let request = request.into_inner();
        *self.0.geometry.lock().expect("lock") = request.fingerprint.expect("fingerprint");
        let lease_ms = if request.lease_ms == 0 { 60_000 } else { request.lease_ms };
        Ok(Response::new(v1::OpenResponse { instance: self.0.instance.clone(), lease_ms, reserved_bytes: 0 }))
    }

    async fn append(
        &self,
        request: Request<Streaming<v1::AppendChunk>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let (shared, mut chunks) = (Arc::clone(&self.0), request.into_inner());
        let (answers, out) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok(Some(chunk)) = chunks.message().await {
                shared.chunks.fetch_add(1, Ordering::SeqCst);
                let ack = shared.append(&chunk);
                let answers = answers.clone();
                if shared.faults.hold_acks {
                    shared.acks.notified().await;
                }
                if answers.send(Ok(ack)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }

    async fn attend(
        &self,
        request: Request<Streaming<v1::AttendRequest>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let (shared, mut requests) = (Arc::clone(&self.0), request.into_inner());
        let (answers, out) = mpsc::channel(1024);
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while let Ok(Some(request)) = requests.message().await {
                if shared.faults.mute {
                    continue;
                }
                waiting.push(shared.attend(request));
                if waiting.len() >= shared.faults.reverse {
                    for answer in waiting.drain(..).rev() {
                        drop(answers.send(Ok(answer)).await);
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }

    async fn read_rows(
        &self,
        _: Request<v1::ReadRowsRequest>,
    ) -> Result<Response<v1::ReadRowsResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn truncate(
        &self,
        request: Request<v1::TruncateRequest>,
    ) -> Result<Response<v1::TruncateResponse>, Status> {
        Ok(Response::new(v1::TruncateResponse { watermark: request.into_inner().length }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        self.0.renewals.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(v1::RenewResponse { lease_ms: request.into_inner().lease_ms, watermark: 0 }))
    }

    async fn close(&self, _: Request<v1::CloseRequest>) -> Result<Response<v1::CloseResponse>, Status> {
        self.0.closes.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(v1::CloseResponse { freed_bytes: 5 }))
    }
}
