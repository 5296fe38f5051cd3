//! Sessions as they are named on the command line, and what a shard's refusal of one means.

use crate::cli::usage;

pub(super) type SessionId = [u8; wire::ID_BYTES];

/// What a shard's refusal means for who named a session, or asked a running shard for something: the shard is there, so that it
/// is not "unavailable", which would be worth another try.
pub(super) fn refused(session: Option<&SessionId>, error: client::Error) -> anyhow::Error {
    match (session, &error) {
        (Some(id), client::Error::SessionLost { shard, reason }) => {
            usage(format!("--session {}: not on shard {shard}: {reason}", wire::convert::hex(id)))
        }
        (_, client::Error::Refused { code: tonic::Code::FailedPrecondition, .. }) => {
            anyhow::Error::msg(error.to_string())
        }
        _ => error.into(),
    }
}

pub(super) fn parse_session(text: &str) -> Result<SessionId, String> {
    let digits = 2 * wire::ID_BYTES;
    let wrong = || format!("{text:?} is no session id: {digits} hexadecimal digits are needed");
    if text.len() != digits || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut id = [0; wire::ID_BYTES];
    for (byte, at) in id.iter_mut().zip((0..digits).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_are_32_hexadecimal_digits() {
        let text = "00ff".repeat(8);
        assert_eq!(wire::convert::hex(&parse_session(&text).unwrap()), text);
        for bad in ["", "00", &"0g".repeat(16), &"é".repeat(16), &"00".repeat(17)] {
            let line = parse_session(bad).unwrap_err();
            assert!(line.contains("32 hexadecimal digits"), "{line}");
        }
    }
}
