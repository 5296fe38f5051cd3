//! The values of the catalogue: a format byte, a CRC-32, a protobuf message. Fields may be added, numbers are never reused.

use super::{CatalogueError, Table};
use prost::Message;
use wire::v1;

/// The format of all values.
const FORMAT: u8 = 1;
/// Format and checksum.
const ENVELOPE: usize = 5;

/// One `Open`.
#[derive(Clone, PartialEq, Message)]
pub struct SessionRecord {
    /// Its id.
    #[prost(bytes = "vec", tag = "1")]
    pub session: Vec<u8>,
    /// As sent.
    #[prost(message, optional, tag = "2")]
    pub fingerprint: Option<v1::Fingerprint>,
    /// The heads that this shard owns, as sent.
    #[prost(message, repeated, tag = "3")]
    pub owned: Vec<v1::HeadRange>,
    /// The index kind that was asked for, as on the wire.
    #[prost(int32, tag = "4")]
    pub index: i32,
    /// Of its index builds.
    #[prost(uint64, tag = "5")]
    pub seed: u64,
    /// Answers wait for indexes.
    #[prost(bool, tag = "6")]
    pub deterministic: bool,
    /// Appends are acknowledged once they are on disk.
    #[prost(bool, tag = "7")]
    pub durable: bool,
    /// Tokens to reserve memory for.
    #[prost(uint64, tag = "8")]
    pub reserve_tokens: u64,
    /// Its rows stay in RAM.
    #[prost(bool, tag = "9")]
    pub pinned: bool,
}

/// How long a session lives without a word from its worker.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRecord {
    /// A restart grants it in full.
    #[prost(uint64, tag = "1")]
    pub ms: u64,
}

/// The spans of one head.
#[derive(Clone, PartialEq, Message)]
pub struct HeadRecord {
    /// In order of position, without gaps, from 0.
    #[prost(message, repeated, tag = "1")]
    pub spans: Vec<SpanRecord>,
    /// The last version that a span of this head was given.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// Number, in the session's log, of the last truncation that these spans reflect.
    #[prost(uint64, tag = "3")]
    pub cut: u64,
}

/// A span.
#[derive(Clone, PartialEq, Message)]
pub struct SpanRecord {
    /// First position.
    #[prost(uint64, tag = "1")]
    pub begin: u64,
    /// Position after the last row.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// Below `end` after a truncation inside the span.
    #[prost(uint64, tag = "3")]
    pub visible_end: u64,
    /// 1 as sealed, more after merges.
    #[prost(uint64, tag = "4")]
    pub version: u64,
    /// The version that it is planned to merge into; 0: none.
    #[prost(uint64, tag = "5")]
    pub plan: u64,
    /// Its rows, in order.
    #[prost(uint64, repeated, tag = "6")]
    pub extents: Vec<u64>,
    /// The queries that its index is built with; 0: none.
    #[prost(uint64, tag = "7")]
    pub queries: u64,
    /// Its index; 0: none, or none that is stored.
    #[prost(uint64, tag = "8")]
    pub index: u64,
    /// The form that answers in the place of its rows, made again at a start: 0 none, 1 to 50 a sketch of this many percent,
    /// 100 quantised.
    #[prost(uint32, tag = "9")]
    pub form: u32,
}

impl HeadRecord {
    /// Tokens that the spans hold.
    pub fn end(&self) -> u64 {
        self.spans.last().map_or(0, |s| s.visible_end)
    }

    /// Every file that the spans need.
    pub fn files(&self) -> impl Iterator<Item = u64> {
        let others = self.spans.iter().flat_map(|s| [s.queries, s.index]).filter(|&id| id != 0);
        self.spans.iter().flat_map(|s| s.extents.iter().copied()).chain(others)
    }
}

/// An extent, or the queries or the index of a span: all are files with an id.
#[derive(Clone, PartialEq, Message)]
pub struct ExtentRecord {
    /// Number of the session.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// Bytes of the file.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// BLAKE3-256 of the file where the archive holds it too; empty: it does not. The file itself may then be gone.
    #[prost(bytes = "vec", tag = "12")]
    pub object: Vec<u8>,
}

/// A name under a name.
#[derive(Clone, PartialEq, Message)]
pub struct NameRecord {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A number under a name.
#[derive(Clone, PartialEq, Message)]
pub struct VersionRecord {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub number: u64,
}

/// A value.
pub fn encode(record: &impl Message) -> Vec<u8> {
    let body = record.encode_to_vec();
    [&[FORMAT], &crc32fast::hash(&body).to_le_bytes()[..], &body].concat()
}

/// Reads a value; `what` names it in the error.
pub fn decode<R: Message + Default>(what: &str, value: &[u8]) -> Result<R, CatalogueError> {
    let error = |why: String| CatalogueError::Value { what: what.to_owned(), why };
    let (envelope, body) = value
        .split_at_checked(ENVELOPE)
        .ok_or_else(|| error(format!("{} bytes, must be at least {ENVELOPE}", value.len())))?;
    if envelope[0] != FORMAT {
        return Err(error(format!("format {}, this program reads {FORMAT}", envelope[0])));
    }
    if envelope[1..] != crc32fast::hash(body).to_le_bytes() {
        return Err(error("the value does not match its checksum".into()));
    }
    R::decode(body).map_err(|e| error(e.to_string()))
}

/// The key of a number: big-endian, so that keys are in order of the numbers.
pub fn number_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Reads a key of [`Table::Sessions`], [`Table::Leases`] or [`Table::Extents`].
pub fn number(table: Table, key: &[u8]) -> Result<u64, CatalogueError> {
    let bytes = key.try_into();
    bytes.map(u64::from_be_bytes).map_err(|_| CatalogueError::Value {
        what: format!("a key of {table:?}"),
        why: format!("{} bytes, must be 8", key.len()),
    })
}

/// The key of a head.
pub fn head_key(session: u64, layer: usize, kv_head: usize) -> Vec<u8> {
    [&session.to_be_bytes()[..], &(layer as u32).to_be_bytes(), &(kv_head as u32).to_be_bytes()].concat()
}
