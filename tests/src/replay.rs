//! Synthetic KV and queries of a small model: reproducible from a seed, with needles to find.

use attention::oracle::{self, OraclePartial};
use attention::{Description, HeadRows, Partial};
use client::{Budget, LayerChunk, NewTokenKv, RowAsk, Session, SessionSpec};
use half::f16;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::time::Duration;
use wire::v1;

/// Head counts and dims of the model that is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Layers.
    pub layers: u32,
    /// Query heads.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Of keys and queries.
    pub key_dim: usize,
    /// Of values.
    pub value_dim: usize,
}

/// Two layers, three query heads on each of three KV heads, value dim other than key dim.
pub const SMALL: Geometry = Geometry { layers: 2, q_heads: 9, kv_heads: 3, key_dim: 32, value_dim: 24 };

/// Keys and values of all tokens, one pair of vectors a layer: `[tokens, kv_heads, dim]`.
pub struct Replay {
    /// The model.
    pub geometry: Geometry,
    /// Tokens that can be played.
    pub tokens: usize,
    layers: Vec<(Vec<f16>, Vec<f16>)>,
    seed: u64,
}

impl Replay {
    /// Keys in clusters that drift with the position, as after RoPE; values without structure.
    pub fn new(geometry: Geometry, tokens: usize, seed: u64) -> Replay {
        let layers = (0..geometry.layers).map(|layer| {
            let mut rng = StdRng::seed_from_u64(seed ^ (u64::from(layer) << 32));
            let mut row = |dim: usize, phase: f32| -> Vec<f16> {
                let wave = |i: usize, noise: f32| (phase * (1.0 + i as f32 * 0.1)).sin() + noise;
                (0..dim).map(|i| f16::from_f32(wave(i, rng.random_range(-1.0..1.0)))).collect()
            };
            let (mut k, mut v) = (Vec::new(), Vec::new());
            for token in 0..tokens {
                for head in 0..geometry.kv_heads {
                    k.extend(row(geometry.key_dim, token as f32 * 0.01 + head as f32));
                    v.extend(row(geometry.value_dim, token as f32 * 0.37 + head as f32));
                }
            }
            (k, v)
        });
        Replay { geometry, tokens, layers: layers.collect(), seed }
    }

    /// All keys zero: every logit is 0, so that l counts tokens.
    pub fn uniform(geometry: Geometry, tokens: usize, seed: u64) -> Replay {
        let mut replay = Replay::new(geometry, tokens, seed);
        replay.layers.iter_mut().for_each(|(k, _)| k.fill(f16::ZERO));
        replay
    }

    /// How the played model attends.
    pub fn description(&self) -> Description {
        Description { scale: 1.0 / (self.geometry.key_dim as f32).sqrt(), softcap: None }
    }

    /// A deterministic session with room for all tokens.
    pub fn spec(&self) -> SessionSpec {
        let g = &self.geometry;
        let fingerprint = v1::Fingerprint {
            model: "replay".into(),
            weight_revision: "0".repeat(64),
            layers: g.layers,
            q_heads: g.q_heads as u32,
            kv_heads: g.kv_heads as u32,
            key_dim: g.key_dim as u32,
            value_dim: g.value_dim as u32,
            kv_dtype: v1::DType::F16 as i32,
            rope_base: 10_000.0,
            scale: self.description().scale,
            provenance: v1::Provenance::Exact as i32,
            ..Default::default()
        };
        let spec = SessionSpec::new(fingerprint, self.tokens as u64);
        // Answers wait for indexes, which are slow to come when all tests run at once.
        SessionSpec { deterministic: true, seed: self.seed, deadline: Duration::from_secs(90), ..spec }
    }

    /// Queries of a position: near the keys of that position, all heads, `[q_heads, key_dim]`.
    pub fn queries(&self, layer: u32, position: u64) -> Vec<f32> {
        let g = &self.geometry;
        let mut rng = StdRng::seed_from_u64(self.seed ^ 0xabcd ^ (u64::from(layer) << 32) ^ (position << 40));
        let mut q = Vec::with_capacity(g.q_heads * g.key_dim);
        for head in 0..g.q_heads {
            let kv_head = head / (g.q_heads / g.kv_heads);
            let phase = position as f32 * 0.01 + kv_head as f32;
            let wave = |i: usize| 2.0 * (phase * (1.0 + i as f32 * 0.1)).sin();
            q.extend((0..g.key_dim).map(|i| wave(i) + rng.random_range(-1.0..1.0)));
        }
        q
    }

    /// Appends tokens of every layer with every eighth query, sealing up to `seal_to` after them.
    pub async fn append(
        &self,
        session: &Session,
        tokens: Range<usize>,
        seal_to: Option<u64>,
    ) -> Result<u64, client::Error> {
        let g = &self.geometry;
        for (layer, (k, v)) in (0..).zip(&self.layers) {
            let q_pos: Vec<u64> = tokens.clone().step_by(8).map(|p| p as u64).collect();
            let q: Vec<f16> = q_pos.iter().flat_map(|&p| self.queries(layer, p)).map(f16::from_f32).collect();
            let of = |data: &'_ [f16], dim: usize| -> Range<usize> {
                assert!(tokens.end * g.kv_heads * dim <= data.len(), "tokens that the replay does not have");
                tokens.start * g.kv_heads * dim..tokens.end * g.kv_heads * dim
            };
            let chunk = LayerChunk {
                layer,
                begin: tokens.start as u64,
                k: &k[of(k, g.key_dim)],
                v: &v[of(v, g.value_dim)],
                q: &q,
                q_pos: &q_pos,
                q_window: 0,
                seal_to,
            };
            session.append(chunk).await?;
        }
        Ok(session.watermark())
    }

    /// One row over `range`, with the queries of the position after it.
    pub fn ask(&self, layer: u32, range: Range<u64>, budget: Budget, estimate: bool) -> RowAsk {
        let q = self.queries(layer, range.end);
        RowAsk {
            layer,
            begin: range.start,
            end: range.end,
            budget,
            estimate,
            q,
            beside: Vec::new(),
            token: None,
        }
    }

    /// The same row, which first stores the token at `position`.
    pub fn decode(&self, layer: u32, position: u64, range: Range<u64>, budget: Budget) -> RowAsk {
        let g = &self.geometry;
        let (k, v) = &self.layers[layer as usize];
        let row = |data: &[f16], dim: usize| {
            data[position as usize * g.kv_heads * dim..][..g.kv_heads * dim].to_vec()
        };
        let token = NewTokenKv { position, k: row(k, g.key_dim), v: row(v, g.value_dim) };
        RowAsk { token: Some(token), ..self.ask(layer, range, budget, true) }
    }

    /// What a row comes to in f64 over its whole range, one partial per query head.
    pub fn oracle(&self, ask: &RowAsk) -> Vec<OraclePartial> {
        let g = &self.geometry;
        let (k, v) = &self.layers[ask.layer as usize];
        let heads = (0..g.q_heads).map(|h| {
            let kv_head = h / (g.q_heads / g.kv_heads);
            let keys = HeadRows::new(k, g.kv_heads, kv_head, g.key_dim);
            let values = HeadRows::new(v, g.kv_heads, kv_head, g.value_dim);
            let q = &ask.q[h * g.key_dim..][..g.key_dim];
            oracle::attend(&self.description(), q, &keys, &values, ask.begin as usize..ask.end as usize)
        });
        heads.collect()
    }

    /// The largest error of a row against the oracle: of an output, relative to its norm, or of a log mass.
    pub fn error(&self, ask: &RowAsk, partials: &[Partial]) -> f64 {
        let want = self.oracle(ask);
        assert_eq!(want.len(), partials.len(), "a partial for every query head");
        let errors = want.iter().zip(partials).map(|(w, p)| w.output_error(&p.o).max(w.mass_error(p)));
        errors.fold(0.0, f64::max)
    }
}

/// All numbers of the partials as bits: equal only when every one is the same to the bit.
pub fn bits(partials: &[Partial]) -> Vec<u32> {
    let scalars = |p: &Partial| [p.m, p.l_exact, p.l_quant, p.l_est];
    partials
        .iter()
        .flat_map(|p| scalars(p).into_iter().chain(p.o.iter().copied()))
        .map(f32::to_bits)
        .collect()
}

/// The largest difference of an output element or of a log mass.
pub fn difference(a: &[Partial], b: &[Partial]) -> f32 {
    assert_eq!(a.len(), b.len(), "the same heads");
    let pairs = a.iter().zip(b).flat_map(|(a, b)| {
        let mass = if a.is_neutral() && b.is_neutral() { 0.0 } else { a.log_sum_exp() - b.log_sum_exp() };
        a.o.iter().zip(&b.o).map(|(x, y)| x - y).chain([mass]).collect::<Vec<f32>>()
    });
    pairs.fold(0.0, |largest, d| largest.max(d.abs()))
}
