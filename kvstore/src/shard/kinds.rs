//! Index kinds, as they are spoken of on the wire and here.

use index::Kind;
use wire::WireError;
use wire::v1::IndexKind;

/// What a message asks for.
pub fn read(kind: i32) -> Result<Kind, WireError> {
    Ok(match IndexKind::try_from(kind) {
        Ok(IndexKind::Unspecified | IndexKind::Auto) => Kind::Auto,
        Ok(IndexKind::Flat) => Kind::Flat,
        Ok(IndexKind::Summary) => Kind::Summary,
        Ok(IndexKind::Graph) => Kind::Graph,
        Ok(IndexKind::Hnsw) => Kind::Hnsw,
        Err(_) => return Err(WireError::range("index", kind, "a kind of this protocol")),
    })
}

/// The name of a kind on the wire.
pub fn wire_kind(kind: Kind) -> IndexKind {
    match kind {
        Kind::Auto => IndexKind::Auto,
        Kind::Flat => IndexKind::Flat,
        Kind::Summary => IndexKind::Summary,
        Kind::Graph => IndexKind::Graph,
        Kind::Hnsw => IndexKind::Hnsw,
    }
}
