//! Probes, health, reflection, and metrics against a workload of known truth.

use crate::cluster;
use client::Budget;
use e2e::http;
use e2e::replay::{Replay, SMALL};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use wire::names;

async fn channel(address: &str) -> Channel {
    tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .expect("uri")
        .connect()
        .await
        .expect("connect")
}

#[tokio::test]
async fn probes_answer() {
    let (daemons, _cluster) = cluster(1).await;
    for path in ["/livez", "/readyz", "/metrics", "/status"] {
        assert_eq!(http::get(&daemons[0].http, path).expect(path).0, 200, "{path}");
    }
    let (_, status) = http::get(&daemons[0].http, "/status").expect("status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert!(status.is_object());
    assert_eq!(http::get(&daemons[0].http, "/nothing").expect("an answer").0, 404);
}

#[tokio::test]
async fn health_and_reflection_are_served() {
    use tonic_health::pb::health_client::HealthClient;
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
    let (daemons, _cluster) = cluster(1).await;
    let mut health = HealthClient::new(channel(&daemons[0].grpc).await);
    for service in ["", "recollect.v1.Kv"] {
        let answer = health.check(HealthCheckRequest { service: service.into() }).await.expect(service);
        assert_eq!(answer.into_inner().status, ServingStatus::Serving as i32, "{service:?}");
    }
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(channel(&daemons[0].grpc).await);
    let stream = reflection.server_reflection_info(tokio_stream::once(request)).await.expect("reflection");
    let answer = stream.into_inner().message().await.expect("an answer").expect("one");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list of services: {answer:?}");
    };
    let found: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["recollect.v1.Kv", "recollect.v1.Admin", "grpc.health.v1.Health"] {
        assert!(found.iter().any(|f| f == name), "{name} in {found:?}");
    }
}

/// Two layers x three KV heads on one shard: every figure is known.
#[tokio::test]
async fn metrics_equal_a_scripted_workload() {
    let replay = Replay::new(SMALL, 400, 51);
    let (daemons, cluster) = cluster(1).await;
    let session = cluster.open(replay.spec()).await.expect("open");
    replay.append(&session, 0..100, Some(100)).await.expect("append");
    replay.append(&session, 100..300, None).await.expect("append");
    for position in 300..310 {
        for layer in 0..2 {
            let ask = replay.decode(layer, position, 0..position + 1, Budget::TopK(8));
            session.attend(vec![ask]).await.expect("attend");
        }
    }
    let both = vec![replay.ask(0, 0..310, Budget::All, false), replay.ask(1, 0..311, Budget::All, false)];
    session.attend(both).await.expect_err("one row asks for more than is held");
    session.close().await.expect("close");
    let expected = [
        (names::SESSIONS_OPENED, "", 1.0),
        (names::SESSIONS_ENDED, "reason=\"close\"", 1.0),
        (names::SESSIONS_ENDED, "reason=\"lease\"", 0.0),
        (names::SESSIONS, "", 0.0),
        (names::APPEND_CHUNKS, "result=\"ok\"", 4.0),
        (names::APPEND_CHUNKS, "result=\"error\"", 0.0),
        (names::APPENDED_TOKENS, "path=\"append\"", 300.0 * 6.0),
        (names::APPENDED_TOKENS, "path=\"decode\"", 10.0 * 6.0),
        (names::ATTEND_ROWS, "result=\"ok\"", 21.0),
        (names::ATTEND_ROWS, "result=\"error\"", 1.0),
        (names::ATTEND_MISSING_TOKENS, "", 0.0),
        (names::ATTEND_REFUSED, "", 0.0),
        (names::ATTEND_QUEUE_TASKS, "", 0.0),
        (names::SPANS_SEALED, "", 6.0),
        (names::INDEX_BUILDS_PENDING, "", 0.0),
        (names::MEMORY_REFUSED, "", 0.0),
        (names::MEMORY_BYTES, "", 0.0),
        (names::MEMORY_GRANTED_BYTES, "", 0.0),
        (names::MEMORY_BUDGET_BYTES, "", 256.0 * 1024.0 * 1024.0),
        ("recollect_attend_seconds_count", "", 21.0),
    ];
    let check = |name: &str, label: &str| http::metric(&daemons[0].http, name, &[label]).expect("metric");
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        // A job that just answered may still hold its memory for a moment.
        let off: Vec<_> = expected.iter().filter(|(name, label, want)| check(name, label) != *want).collect();
        if off.is_empty() {
            break;
        }
        let found: Vec<_> =
            off.iter().map(|(name, label, want)| (name, label, want, check(name, label))).collect();
        assert!(Instant::now() < until, "name, label, expected, found: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nothing moves when nothing is asked.
    let figures = || {
        let (_, text) = http::get(&daemons[0].http, "/metrics").expect("metrics");
        text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<String>>()
    };
    let before = figures();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(before, figures());
}
