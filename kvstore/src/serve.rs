//! A node on its ports: open, serve, drain with a deadline.

use crate::config::{Address, Server as Settings};
use crate::error::Fatal;
use crate::http;
use crate::node::Node;
use crate::service::{self, Kv};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use wire::v1::kv_server::KvServer;

/// Bytes that a peer may send ahead on one stream and on one connection: an append chunk or two.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// A peer that does not answer a ping for this long is gone.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Both ports, open.
pub struct Ports {
    grpc: TcpListener,
    http: TcpListener,
    grace: Duration,
}

impl Ports {
    /// Opens both, or none.
    pub async fn open(settings: &Settings) -> Result<Self, Fatal> {
        Ok(Self {
            grpc: bind("--listen", &settings.listen).await?,
            http: bind("--http", &settings.http).await?,
            grace: Duration::from_secs(settings.grace_seconds),
        })
    }

    /// Where gRPC and HTTP listen; says the port that was chosen for port 0.
    pub fn addresses(&self) -> std::io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.grpc.local_addr()?, self.http.local_addr()?))
    }

    /// Serves until `stop`, then drains: no new sessions or messages, answers in flight finish, streams end. What has
    /// not ended after the grace period is cut.
    pub async fn serve(self, node: Arc<Node>, stop: impl Future<Output = ()>) -> Result<(), Fatal> {
        let started = Instant::now();
        let failed = |what: &str, e: &dyn std::fmt::Display| Fatal::Failed(format!("{what}: {e}"));
        let (grpc, http) = self.addresses().map_err(|e| failed("addresses", &e))?;
        let (drain, draining) = watch::channel(false);

        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<KvServer<Kv>>().await;
        let limit = usize::try_from(node.config().max_message_bytes).unwrap_or(usize::MAX);
        let router = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .layer(service::limits::layer(limit))
            .add_service(health_service)
            .add_service(service::reflection::v1().map_err(|e| failed("reflection", &e))?)
            .add_service(service::reflection::v1alpha().map_err(|e| failed("reflection", &e))?)
            .add_service(service::kv(node.clone(), draining.clone(), limit))
            .add_service(service::admin(node.clone(), limit));
        // serve_with_incoming ignores tonic's own tcp_nodelay; without it every small answer waits 40 ms.
        let incoming = TcpIncoming::from(self.grpc).with_nodelay(Some(true));
        let mut serving =
            tokio::spawn(router.serve_with_incoming_shutdown(incoming, ended(draining.clone())));
        let probes = http::router(http::State { node: node.clone(), draining, started });
        let probing = tokio::spawn(async move { axum::serve(self.http, probes).await });

        tracing::info!(
            %grpc, %http,
            version = env!("CARGO_PKG_VERSION"),
            instance = wire::convert::hex(&node.instance()),
            kernels = node.kernel_path(),
            memory_bytes = node.config().memory_bytes,
            "listening"
        );
        tokio::select! {
            () = stop => {}
            ended = &mut serving => {
                let why = match ended {
                    Ok(Ok(())) => "ended".to_owned(),
                    Ok(Err(e)) => e.to_string(),
                    Err(e) => e.to_string(),
                };
                return Err(failed("the gRPC server", &why));
            }
        }
        tracing::info!(grace_seconds = self.grace.as_secs(), "draining");
        drain.send_replace(true);
        health.set_not_serving::<KvServer<Kv>>().await;
        match tokio::time::timeout(self.grace, &mut serving).await {
            Ok(_) => tracing::info!("all streams ended"),
            Err(_) => tracing::warn!("grace period over, cutting what is still open"),
        }
        serving.abort();
        probing.abort();
        if !node.stored_within(self.grace).await {
            tracing::warn!(
                "grace period over, the newest spans are not stored: their tokens are in logs, or lost"
            );
        }
        Ok(())
    }
}

/// Resolves once the drain begins.
pub(crate) async fn ended(mut draining: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is an end too.
    let _ = draining.wait_for(|&d| d).await;
}

async fn bind(flag: &str, address: &Address) -> Result<TcpListener, Fatal> {
    TcpListener::bind((address.host(), address.port()))
        .await
        .map_err(|e| Fatal::Unavailable(format!("{flag} {address}: {e}")))
}

/// Resolves at SIGTERM or SIGINT.
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
