//! The file `manifest`, little-endian:
//!
//! ```text
//! magic 8, format u32, bytes of the body u64
//! body   session 16, tokens u64, index kind u32, flags u32 (1: deterministic, 2: durable), seed u64, lease u64 in ms,
//!        bytes of the fingerprint u32, the fingerprint as the message of kv.proto,
//!        and for every head, by layer and KV head: root of its file 32, samples u64, spans u32, ends of the spans u64 each
//! sum    BLAKE3-256 of all before it
//! ```

use super::error::FormatError;
use super::fields::Fields;
use super::head_file::{MOST, Shape};
use super::{FORMAT, SUM};
use prost::Message;
use wire::{ID_BYTES, v1};

const MAGIC: &[u8; 8] = b"RCLSNAP\0";
/// Magic, format, length of the body.
const HEADER: usize = 20;
const DETERMINISTIC: u32 = 1;
const DURABLE: u32 = 2;

/// What a snapshot holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The session that it was taken of.
    pub session: [u8; ID_BYTES],
    /// Tokens, in every head.
    pub tokens: u64,
    /// Index that its shards build.
    pub index: v1::IndexKind,
    /// Answers wait for indexes.
    pub deterministic: bool,
    /// Tokens were acknowledged on disk.
    pub durable: bool,
    /// Of index builds.
    pub seed: u64,
    /// How long a shard keeps the session without a sign of life.
    pub lease_ms: u64,
    /// What its rows mean.
    pub fingerprint: v1::Fingerprint,
    /// By layer and KV head.
    pub heads: Vec<Head>,
}

/// What the file of a head must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Of its sums.
    pub root: [u8; SUM],
    /// Sampled queries.
    pub samples: u64,
    /// Ends of its spans, strictly ascending; the tokens behind the last are fresh.
    pub ends: Vec<u64>,
}

impl Manifest {
    /// The name of a head's file.
    pub fn file_name(layer: u32, kv_head: u32) -> String {
        format!("layer-{layer:04}-head-{kv_head:04}")
    }

    /// Every head with its layer and number.
    pub fn each(&self) -> impl Iterator<Item = (u32, u32, &Head)> {
        let n = self.fingerprint.kv_heads.max(1);
        (0u32..).zip(&self.heads).map(move |(i, head)| (i / n, i % n, head))
    }

    /// What the file of a head is about.
    pub fn shape(&self, layer: u32, kv_head: u32, head: &Head) -> Shape {
        let f = &self.fingerprint;
        let (group, samples) = (f.q_heads / f.kv_heads.max(1), head.samples);
        let (key_dim, value_dim) = (f.key_dim, f.value_dim);
        Shape { layer, kv_head, group, key_dim, value_dim, tokens: self.tokens, samples }
    }

    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.session.to_vec();
        let put = |body: &mut Vec<u8>, n: u64| body.extend_from_slice(&n.to_le_bytes());
        let put_u32 = |body: &mut Vec<u8>, n: u32| body.extend_from_slice(&n.to_le_bytes());
        put(&mut body, self.tokens);
        put_u32(&mut body, self.index as i32 as u32);
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        put_u32(&mut body, flag(self.deterministic, DETERMINISTIC) | flag(self.durable, DURABLE));
        put(&mut body, self.seed);
        put(&mut body, self.lease_ms);
        let fingerprint = self.fingerprint.encode_to_vec();
        put_u32(&mut body, fingerprint.len() as u32);
        body.extend_from_slice(&fingerprint);
        for head in &self.heads {
            body.extend_from_slice(&head.root);
            put(&mut body, head.samples);
            put_u32(&mut body, head.ends.len() as u32);
            head.ends.iter().for_each(|&end| put(&mut body, end));
        }
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, FORMAT);
        put(&mut out, body.len() as u64);
        out.extend_from_slice(&body);
        let sum = blake3::hash(&out);
        out.extend_from_slice(sum.as_bytes());
        out
    }

    /// As it was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Fields(bytes);
        if r.bytes(MAGIC.len(), "the magic").ok() != Some(MAGIC) {
            return Err(FormatError::Magic("manifest"));
        }
        let found = r.u32("the format")?;
        if found != FORMAT {
            return Err(FormatError::Format { found });
        }
        let body = r.u64("the length")?;
        let (found, want) = (bytes.len() as u64, body.saturating_add((HEADER + SUM) as u64));
        if found != want {
            return Err(FormatError::Length { found, want });
        }
        let (all, sum) = bytes.split_at(bytes.len() - SUM);
        if blake3::hash(all).as_bytes() != sum {
            return Err(FormatError::Sum("the manifest".into()));
        }
        Self::body(&all[HEADER..])
    }

    fn body(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Fields(bytes);
        let session = r.array("session")?;
        let tokens = r.u64("tokens")?;
        let kind = r.u32("index")?;
        let index = i32::try_from(kind).ok().and_then(|kind| v1::IndexKind::try_from(kind).ok());
        let index = index.ok_or_else(|| FormatError::field("index", kind, "a kind of this release"))?;
        let flags = r.u32("flags")?;
        if flags & !(DETERMINISTIC | DURABLE) != 0 {
            return Err(FormatError::field("flags", flags, "of 1 and 2"));
        }
        let (seed, lease_ms) = (r.u64("seed")?, r.u64("lease")?);
        let length = r.u32("the fingerprint")?;
        let fingerprint = r.bytes(length as usize, "the fingerprint")?;
        let fingerprint = v1::Fingerprint::decode(fingerprint)
            .map_err(|e| FormatError::field("fingerprint", e, "a message of kv.proto"))?;
        let heads = heads(&mut r, tokens, &fingerprint)?;
        let manifest = Self {
            session,
            tokens,
            index,
            deterministic: flags & DETERMINISTIC != 0,
            durable: flags & DURABLE != 0,
            seed,
            lease_ms,
            fingerprint,
            heads,
        };
        manifest
            .each()
            .try_for_each(|(layer, kv_head, head)| manifest.shape(layer, kv_head, head).check())?;
        Ok(manifest)
    }
}

/// The heads, which are as many as the fingerprint says and the last in the body.
fn heads(r: &mut Fields<'_>, tokens: u64, f: &v1::Fingerprint) -> Result<Vec<Head>, FormatError> {
    for (field, n) in [("layers", f.layers), ("kv_heads", f.kv_heads), ("q_heads", f.q_heads)] {
        if !(1..=MOST).contains(&n) {
            return Err(FormatError::field(field, n, format!("in 1..={MOST}")));
        }
    }
    if !f.q_heads.is_multiple_of(f.kv_heads) {
        return Err(FormatError::field(
            "q_heads",
            f.q_heads,
            format!("a multiple of kv_heads = {}", f.kv_heads),
        ));
    }
    if f.kv_dtype() != v1::DType::F16 {
        return Err(FormatError::field("kv_dtype", f.kv_dtype().as_str_name(), "D_TYPE_F16"));
    }
    if tokens == 0 {
        return Err(FormatError::field("tokens", tokens, "at least 1"));
    }
    let mut heads = Vec::new();
    for _ in 0..u64::from(f.layers) * u64::from(f.kv_heads) {
        let root = r.array("a head")?;
        let samples = r.u64("a head")?;
        let spans = r.u32("a head")?;
        let ends = r.u64s(spans as usize, "the spans of a head")?;
        let mut least = 1;
        for &end in &ends {
            if !(least..=tokens).contains(&end) {
                return Err(FormatError::field("end of a span", end, format!("in {least}..={tokens}")));
            }
            least = end + 1;
        }
        heads.push(Head { root, samples, ends });
    }
    match r.0.len() {
        0 => Ok(heads),
        more => Err(FormatError::field("bytes behind the last head", more, 0)),
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
