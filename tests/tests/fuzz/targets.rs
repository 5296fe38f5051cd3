//! What is fed: the readers of stored files, of snapshots, of saved indexes and of messages.

use half::f16;
use index::{BuildParams, BuildQueries, Kind, Shape, SpanIndex};
use kvstore::decoders::DECODERS;
use prost::Message;
use wire::tensor::{self, Dim};
use wire::{convert, v1};

/// One reader with what it takes.
pub struct Target {
    pub name: &'static str,
    pub seeds: Vec<Vec<u8>>,
    /// Makes checksums right again.
    pub reseal: fn(&mut [u8]),
    /// Whether bytes are taken.
    pub read: fn(&[u8]) -> bool,
}

/// Every target.
pub fn all() -> Vec<Target> {
    let decoders = DECODERS.iter().chain(&worker::snapshot::decoders::DECODERS);
    let stored =
        decoders.map(|d| Target { name: d.name, seeds: (d.seeds)(), reseal: d.reseal, read: d.read });
    let none: fn(&mut [u8]) = |_| ();
    let more = [
        Target { name: "indexes", seeds: indexes(), reseal: none, read: read_index },
        Target { name: "messages", seeds: messages(), reseal: none, read: read_messages },
    ];
    stored.chain(more).collect()
}

const SHAPE: Shape = Shape { tokens: 700, key_dim: 8, value_dim: 6 };

fn halves(n: usize) -> Vec<f16> {
    (0..n).map(|i| f16::from_f32(((i * 2_654_435_761) % 1999) as f32 / 999.0 - 1.0)).collect()
}

fn indexes() -> Vec<Vec<u8>> {
    let (k, v) = (halves(SHAPE.tokens * SHAPE.key_dim), halves(SHAPE.tokens * SHAPE.value_dim));
    let keys = attention::Rows::contiguous(&k, SHAPE.key_dim);
    let values = attention::Rows::contiguous(&v, SHAPE.value_dim);
    let queries =
        BuildQueries { q: halves(40 * SHAPE.key_dim), visible: vec![SHAPE.tokens as u32; 40], group: 1 };
    let build = |kind| {
        let params = BuildParams { kind, seed: 3, ..BuildParams::default() };
        let built = index::build(&keys, &values, Some(&queries), &params).expect("an index");
        built.save().expect("a kind with bytes")
    };
    vec![build(Kind::Flat), build(Kind::Summary), build(Kind::Graph)]
}

fn read_index(bytes: &[u8]) -> bool {
    SpanIndex::load(bytes, SHAPE).is_ok()
}

fn messages() -> Vec<Vec<u8>> {
    let shape = [3, 2, 4];
    let rows = Some(tensor::from_f16(&shape, &halves(24)));
    let append = v1::AppendChunk {
        session: vec![1; 16],
        k: rows.clone(),
        v: rows.clone(),
        q: rows.clone(),
        q_pos: vec![1, 2, 3],
        seal_to: Some(3),
        ..Default::default()
    };
    let row = v1::AttendRow {
        session: vec![1; 16],
        budget: Some(convert::Budget::TopK(5).write()),
        q: Some(tensor::from_f32(&[4, 4], &[0.5; 16])),
        hint_m: Some(tensor::from_f32(&[4], &[f32::NEG_INFINITY; 4])),
        token: Some(v1::NewToken { position: 3, k: rows.clone(), v: rows }),
        ..Default::default()
    };
    let attend =
        v1::AttendRequest { instance: vec![2; 16], rows: vec![row.clone(), row], ..Default::default() };
    let open = v1::OpenRequest {
        session: vec![1; 16],
        fingerprint: Some(v1::Fingerprint { model: "fuzz".into(), layers: 2, ..Default::default() }),
        owned: vec![v1::HeadRange::default(); 2],
        ..Default::default()
    };
    vec![append.encode_to_vec(), attend.encode_to_vec(), open.encode_to_vec()]
}

/// Bytes do not say which message they are: each kind has to bear them, and so have the conversions behind it.
fn read_messages(bytes: &[u8]) -> bool {
    let any = [Dim::Any("tokens"), Dim::Any("heads"), Dim::Is(4)];
    let f16s = |t: &Option<v1::Tensor>| tensor::read_f16(t.as_ref(), "t", &any).is_ok();
    let append = v1::AppendChunk::decode(bytes).is_ok_and(|m| f16s(&m.k) && f16s(&m.v) && f16s(&m.q));
    let attend = v1::AttendRequest::decode(bytes).is_ok_and(|m| {
        convert::id(&m.instance, "instance").is_ok()
            && m.rows.iter().all(|row| {
                let budget = convert::Budget::read(row.budget.as_ref(), "budget").is_ok();
                let q = tensor::read_f32(row.q.as_ref(), "q", &[Dim::Is(4), Dim::Is(4)]).is_ok();
                let m = tensor::read_f32_max(row.hint_m.as_ref(), "m", &[Dim::Is(4)]).is_ok();
                budget && q && m && row.token.as_ref().is_none_or(|t| f16s(&t.k) && f16s(&t.v))
            })
    });
    let open = v1::OpenRequest::decode(bytes).is_ok_and(|m| convert::id(&m.session, "session").is_ok());
    append || attend || open
}
