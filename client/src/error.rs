//! What can go wrong between a caller and its shards. Every message is one line and names the shard.

use tonic::{Code, Status};

/// What a program should do about an error; decides its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The caller asked for something that cannot be: exit code 64.
    Usage,
    /// A shard is absent, lost, restarted, silent or of another version: exit code 69.
    Unavailable,
    /// Anything else: exit code 1.
    Failed,
}

/// An error of the cluster or of a session.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An address that cannot be connected to.
    #[error(
        "shard address {address:?}: {reason}; write host or host:port, the default port is {}",
        wire::address::DEFAULT_PORT
    )]
    Address {
        /// As written.
        address: String,
        /// Why not.
        reason: String,
    },
    /// A set of shards that cannot be placed on.
    #[error("shards: {0}")]
    Shards(#[from] wire::placement::PlacementError),
    /// One server under two names.
    #[error("shards: {name} and {other} are the same server")]
    Same {
        /// One name.
        name: String,
        /// The other.
        other: String,
    },
    /// Lengths, positions or ranges that do not fit the session; found before anything is sent.
    #[error("{0}")]
    Input(String),
    /// A shard that cannot be reached, closed the connection, or did not answer in time.
    #[error("shard {shard}: unavailable: {reason}")]
    Unavailable {
        /// Its name.
        shard: String,
        /// What the transport says.
        reason: String,
    },
    /// Something answers there, and it is no shard: the HTTP port, or another program.
    #[error(
        "shard {shard}: answers, but is no gRPC port of recollectd (7420 unless set, 7421 is HTTP): {reason}"
    )]
    NotShard {
        /// Its name.
        shard: String,
        /// What the transport says.
        reason: String,
    },
    /// A shard of another version.
    #[error(
        "shard {shard}: speaks protocol {theirs}, this program speaks {ours}; run the same release on both"
    )]
    Protocol {
        /// Its name.
        shard: String,
        /// As the shard says.
        theirs: u32,
        /// Of this build.
        ours: u32,
    },
    /// Another process answers under the name: what the session held there is gone.
    #[error("shard {shard}: restarted, the session's tokens there are lost")]
    Restarted {
        /// Its name.
        shard: String,
    },
    /// The shard runs and no longer holds the session: its lease ran out, or it was closed.
    #[error("shard {shard}: does not hold the session any more: {reason}")]
    SessionLost {
        /// Its name.
        shard: String,
        /// As the shard says.
        reason: String,
    },
    /// A refusal by the shard, with its reason.
    #[error("shard {shard}: {}: {message}", code_name(*code))]
    Refused {
        /// Its name.
        shard: String,
        /// gRPC status code.
        code: Code,
        /// As the shard says.
        message: String,
    },
    /// An answer that is not one to the question; never passed on.
    #[error("shard {shard}: bad answer: {what}")]
    Answer {
        /// Its name.
        shard: String,
        /// What does not fit.
        what: String,
    },
}

impl Error {
    /// From what a shard answered to a call.
    pub fn from_status(shard: &str, status: &Status) -> Error {
        let (shard, message) = (shard.to_owned(), one_line(status.message()));
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded => Error::Unavailable { shard, reason: message },
            Code::NotFound => Error::SessionLost { shard, reason: message },
            code => Error::Refused { shard, code, message },
        }
    }

    /// From the answer to the first call on a new connection, where the peer may turn out to be no shard at all.
    pub(crate) fn from_first_answer(shard: &str, status: &Status) -> Error {
        // What tonic says of an HTTP answer without a gRPC status, and h2 of bytes that are not HTTP/2.
        let foreign = ["grpc-status header missing", "connection error detected"];
        let reason = one_line(status.message());
        match status.code() {
            Code::Unimplemented if reason.is_empty() => {
                Error::NotShard { shard: shard.to_owned(), reason: "unknown service".into() }
            }
            code if code == Code::Unimplemented || foreign.iter().any(|words| reason.contains(words)) => {
                Error::NotShard { shard: shard.to_owned(), reason }
            }
            _ => Error::from_status(shard, status),
        }
    }

    /// What to do about it.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Address { .. } | Error::Shards(_) | Error::Same { .. } => Kind::Usage,
            Error::Unavailable { .. }
            | Error::NotShard { .. }
            | Error::Protocol { .. }
            | Error::Restarted { .. }
            | Error::SessionLost { .. } => Kind::Unavailable,
            // A server that knows no such call is no shard of this version.
            Error::Refused { code: Code::FailedPrecondition | Code::Unimplemented, .. } => Kind::Unavailable,
            Error::Input(_) | Error::Refused { .. } | Error::Answer { .. } => Kind::Failed,
        }
    }

    /// The shard at fault, if there is one.
    pub fn shard(&self) -> Option<&str> {
        match self {
            Error::Address { .. } | Error::Shards(_) | Error::Same { .. } | Error::Input(_) => None,
            Error::Unavailable { shard, .. }
            | Error::NotShard { shard, .. }
            | Error::Protocol { shard, .. }
            | Error::Restarted { shard }
            | Error::SessionLost { shard, .. }
            | Error::Refused { shard, .. }
            | Error::Answer { shard, .. } => Some(shard),
        }
    }
}

/// The innermost cause of an error: "Connection refused" rather than "transport error".
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    one_line(&cause.to_string())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `ResourceExhausted` as "resource exhausted".
fn code_name(code: Code) -> String {
    let mut words = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_no_shard_is_told_apart_on_the_first_call() {
        let say = |status: Status| Error::from_first_answer("a:1", &status);
        for foreign in [
            Status::unimplemented("grpc-status header missing, mapped from HTTP status code 404"),
            Status::internal("grpc-status header missing, mapped from HTTP status code 400"),
            Status::unavailable("connection error detected: frame with invalid size"),
            Status::unimplemented(""),
        ] {
            let error = say(foreign);
            assert!(error.to_string().starts_with("shard a:1: answers, but is no gRPC port"), "{error}");
            assert_eq!((error.kind(), error.shard()), (Kind::Unavailable, Some("a:1")));
        }
        let gone = say(Status::unavailable("Connection reset by peer (os error 104)"));
        assert!(matches!(gone, Error::Unavailable { .. }), "{gone}");
    }

    #[test]
    fn addresses_are_refused_with_what_to_write() {
        let error = crate::Cluster::address(" ::1:7420").expect_err("refused");
        assert_eq!(error.kind(), Kind::Usage);
        assert_eq!(
            error.to_string(),
            "shard address \"::1:7420\": an IPv6 address needs brackets, as in [::1]:7420; write host or host:port, \
             the default port is 7420"
        );
    }

    #[test]
    fn statuses_become_lines_that_name_the_shard() {
        let say = |status: Status| Error::from_status("127.0.0.1:7420", &status);
        let gone = say(Status::unavailable("Connection refused\n(os error 111)"));
        assert_eq!(gone.to_string(), "shard 127.0.0.1:7420: unavailable: Connection refused (os error 111)");
        assert_eq!((gone.kind(), gone.shard()), (Kind::Unavailable, Some("127.0.0.1:7420")));
        let full = say(Status::resource_exhausted("needs 9 GiB, 4 GiB are free"));
        assert_eq!(full.to_string(), "shard 127.0.0.1:7420: resource exhausted: needs 9 GiB, 4 GiB are free");
        assert_eq!(full.kind(), Kind::Failed);
        assert_eq!(say(Status::unimplemented("HTTP status code 404")).kind(), Kind::Unavailable);
        assert_eq!(say(Status::not_found("unknown session")).kind(), Kind::Unavailable);
        assert_eq!(say(Status::deadline_exceeded("no answer")).kind(), Kind::Unavailable);
    }
}
