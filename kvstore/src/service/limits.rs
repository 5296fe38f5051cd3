//! Messages above the limit, as the contract says it: RESOURCE_EXHAUSTED with the name of the setting.
//!
//! tonic answers OUT_OF_RANGE on its own, for unary calls before a handler runs; the layer here rewrites that answer.

use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::{Code, Status};
use tower::util::MapResponseLayer;

/// Name of the setting, for refusals.
pub const SETTING: &str = "server.max_message";

/// Rewrites the refusals of oversized unary requests.
pub fn layer(
    limit: usize,
) -> MapResponseLayer<impl Fn(Response<Body>) -> Response<Body> + Clone + Send + 'static> {
    MapResponseLayer::new(move |response: Response<Body>| match Status::from_header_map(response.headers()) {
        Some(status) if oversized(&status) => rewrite(&status, limit).into_http(),
        _ => response,
    })
}

/// The refusal of an oversized message in a stream; other statuses pass.
pub fn explain(status: Status, limit: usize) -> Status {
    if oversized(&status) { rewrite(&status, limit) } else { status }
}

/// The refusal of an answer that would be too large to send.
pub fn answer_too_large(bytes: usize, limit: usize) -> Status {
    Status::resource_exhausted(format!("the answer has {bytes} bytes, more than {SETTING} = {limit}"))
}

fn oversized(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("coded message length too large")
}

fn rewrite(status: &Status, limit: usize) -> Status {
    let found = status.message().split("found ").nth(1);
    let bytes = found.and_then(|t| t.split(' ').next()).unwrap_or("too many");
    Status::resource_exhausted(format!("the message has {bytes} bytes, more than {SETTING} = {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_oversized_messages_are_rewritten() {
        let tonic_says = Status::out_of_range(
            "Error, decoded message length too large: found 100 bytes, the limit is: 64 bytes",
        );
        let status = explain(tonic_says, 64);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "the message has 100 bytes, more than server.max_message = 64");
        let ours = explain(Status::out_of_range("end is 9"), 64);
        assert_eq!(ours.code(), Code::OutOfRange);
    }
}
