//! Probes, metrics and status over HTTP: `/livez /readyz /metrics /status`.

use crate::node::Node;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// What the handlers look at.
#[derive(Clone)]
pub struct State {
    /// The shard.
    pub node: Arc<Node>,
    /// True once the server drains.
    pub draining: watch::Receiver<bool>,
    /// When the server started.
    pub started: Instant,
}

/// The four pages.
pub fn router(state: State) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(state)
}

type Shared = axum::extract::State<State>;

async fn readyz(state: Shared) -> Response {
    if *state.draining.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else {
        "ok\n".into_response()
    }
}

async fn metrics(state: Shared) -> Response {
    let text = state.node.render_metrics();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn status(state: Shared) -> Response {
    let body = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": wire::PROTOCOL,
        "instance": wire::convert::hex(&state.node.instance()),
        "kernel_path": state.node.kernel_path(),
        "uptime_seconds": state.started.elapsed().as_secs_f64(),
        "draining": *state.draining.borrow(),
        "now": state.node.snapshot(),
    });
    ([(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}
