//! Small deterministic data: keys in clusters, queries from elsewhere.

use attention::{Description, Partial, Rows, oracle};
use half::f16;
use index::{Ask, Budget, BuildParams, BuildQueries, Kind, SpanIndex};
use kernels::Kernels;

/// A generator that gives the same numbers everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// About normal: the sum of four uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.unit()).sum::<f32>() * 1.7
    }

    /// In -0.5..0.5.
    pub fn unit(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }
}

pub struct Data {
    pub keys: Vec<f16>,
    pub values: Vec<f16>,
    pub n: usize,
    pub dim: usize,
    pub value_dim: usize,
    pub queries: BuildQueries,
}

impl Data {
    /// `n` keys around drifting centres, `m` causal build queries with a mean of their own.
    pub fn new(n: usize, m: usize, (dim, value_dim, group): (usize, usize, usize), seed: u64) -> Data {
        let mut r = Random::new(seed);
        let centres: Vec<f32> = (0..24 * dim).map(|_| 2.0 * r.normal()).collect();
        let keys = (0..n)
            .flat_map(|i| {
                let centre = (i / 7 * 5 + i % 3) % 24;
                (0..dim).map(|d| centres[centre * dim + d] + r.normal()).collect::<Vec<_>>()
            })
            .map(f16::from_f32)
            .collect();
        let values = (0..n * value_dim).map(|_| f16::from_f32(r.normal())).collect();
        let mut data = Data {
            keys,
            values,
            n,
            dim,
            value_dim,
            queries: BuildQueries { group, ..BuildQueries::default() },
        };
        for j in 0..m {
            data.queries.visible.push(((j + 1) * n / m) as u32);
            for _ in 0..group {
                data.queries.q.extend(query(&mut r, &centres, dim).into_iter().map(f16::from_f32));
            }
        }
        data
    }

    pub fn keys(&self) -> Rows<'_> {
        Rows::contiguous(&self.keys, self.dim)
    }

    pub fn values(&self) -> Rows<'_> {
        Rows::contiguous(&self.values, self.value_dim)
    }

    pub fn build(&self, kind: Kind) -> SpanIndex {
        self.build_with(&Kernels::native(), kind)
    }

    pub fn build_with(&self, k: &Kernels, kind: Kind) -> SpanIndex {
        let params = BuildParams { kind, description: DESCRIPTION, ..BuildParams::default() };
        index::build_with(k, &self.keys(), &self.values(), Some(&self.queries), &params)
            .expect("the data is right")
    }

    /// New queries from where the build queries came from: [count, group, dim].
    pub fn fresh_queries(&self, count: usize, seed: u64) -> Vec<f32> {
        let mut r = Random::new(seed);
        let width = self.queries.group * self.dim;
        let m = self.queries.visible.len().max(1);
        (0..count)
            .flat_map(|j| {
                let at = (j * 31 % m) * width;
                self.queries.q[at..at + width]
                    .iter()
                    .map(|x| x.to_f32() + 0.3 * r.normal())
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

fn query(r: &mut Random, centres: &[f32], dim: usize) -> Vec<f32> {
    let centre = ((r.unit() + 0.5) * 24.0) as usize % 24;
    (0..dim).map(|d| centres[centre * dim + d] * 0.4 + 1.5 * (d % 3) as f32 + r.normal()).collect()
}

pub const DESCRIPTION: Description = Description { scale: 0.125, softcap: None };

pub fn ask<'a>(q: &'a [f32], group: usize, budget: Budget, estimate: bool) -> Ask<'a> {
    Ask { q, group, description: DESCRIPTION, budget, estimate, width: None, deadline: None, outside: None }
}

pub fn neutral(group: usize, value_dim: usize) -> Vec<Partial> {
    vec![Partial::neutral(value_dim); group]
}

/// Dense attention of one head over a range.
pub fn dense(
    q: &[f32],
    keys: &Rows<'_>,
    values: &Rows<'_>,
    range: std::ops::Range<usize>,
) -> oracle::OraclePartial {
    oracle::attend(&DESCRIPTION, q, keys, values, range)
}
