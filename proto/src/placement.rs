//! Which shard holds which heads: weighted rendezvous hashing over a versioned map.
//!
//! A *cell* is one layer group x one KV-head group of one lineage. Every shard draws a cost for every cell from a hash of
//! (shard name, lineage, layer group, head group); the cell lives on the `replicas` shards of lowest cost / weight. So a
//! shard that joins only takes cells, a shard that leaves only gives its own away, and no table is kept anywhere.
//!
//! The cost is -log2(u) of a uniform hash u in (0, 1], in 64.48 fixed point: with an exponential draw per unit of weight the
//! chance of a shard to win is its share of the weights. All arithmetic is on integers, so every machine computes the
//! same placement to the bit.
//!
//! Descendants of a prefix use the lineage of its root and are placed with it. The map's version names the map in
//! messages and logs; it is not hashed, or every new version would move everything.

use std::cmp::Ordering;
use std::ops::Range;

/// Why a map or a request for a placement was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A map without shards places nothing.
    #[error("the shard map is empty")]
    NoShards,
    /// Names are what is hashed: an empty one is a mistake.
    #[error("shard {0} of the map has no name")]
    Unnamed(usize),
    /// Two shards of one name would draw the same costs.
    #[error("shard {0} is in the map twice")]
    Duplicate(String),
    /// A weight of 0 can hold nothing.
    #[error("shard {0} has weight 0")]
    ZeroWeight(String),
    /// A group of no layers or no heads.
    #[error("a cell must have at least one layer and one KV head, got {layers} x {kv_heads}")]
    EmptyCell {
        /// Layers asked for per cell.
        layers: u32,
        /// KV heads asked for per cell.
        kv_heads: u32,
    },
    /// Replicas lie on distinct shards.
    #[error(
        "{replicas} replicas asked for, the map has {shards} shards (at least 1 replica, at most one a shard)"
    )]
    Replicas {
        /// Replicas asked for.
        replicas: usize,
        /// Shards in the map.
        shards: usize,
    },
}

/// A shard as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Stable name, usually the address; hashed.
    pub name: String,
    /// Relative capacity, at least 1.
    pub weight: u32,
}

/// How large a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Layers in a group.
    pub layers: u32,
    /// KV heads in a group.
    pub kv_heads: u32,
}

impl Default for Grid {
    /// One layer x one KV head: the finest, which spreads a step of every layer over the shards.
    fn default() -> Self {
        Grid { layers: 1, kv_heads: 1 }
    }
}

/// A validated, versioned set of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    version: u64,
    grid: Grid,
    members: Vec<Member>,
}

/// Consecutive KV heads of one layer on the same shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// KV heads, half-open.
    pub kv_heads: Range<u32>,
    /// Indexes into [`Map::members`], best first, `replicas` of them.
    pub shards: Vec<usize>,
}

/// Layers x KV heads, both half-open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Layers.
    pub layers: Range<u32>,
    /// KV heads.
    pub kv_heads: Range<u32>,
}

/// The placement of every head of one lineage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    layers: Vec<Vec<Run>>,
}

impl Map {
    /// Checks that there is a shard, that names are distinct and that weights and cell sizes are at least 1.
    pub fn new(version: u64, grid: Grid, members: Vec<Member>) -> Result<Map, PlacementError> {
        if members.is_empty() {
            return Err(PlacementError::NoShards);
        }
        if grid.layers == 0 || grid.kv_heads == 0 {
            return Err(PlacementError::EmptyCell { layers: grid.layers, kv_heads: grid.kv_heads });
        }
        for (i, member) in members.iter().enumerate() {
            if member.name.is_empty() {
                return Err(PlacementError::Unnamed(i));
            }
            if member.weight == 0 {
                return Err(PlacementError::ZeroWeight(member.name.clone()));
            }
            if members[..i].iter().any(|other| other.name == member.name) {
                return Err(PlacementError::Duplicate(member.name.clone()));
            }
        }
        Ok(Map { version, grid, members })
    }

    /// Names this map; grows with every change of the members.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The shards, in the order that [`Run::shards`] indexes.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The shards of one cell, best first, all distinct.
    pub fn owners(
        &self,
        lineage: &[u8],
        layer_group: u32,
        head_group: u32,
        replicas: usize,
    ) -> Result<Vec<usize>, PlacementError> {
        if replicas == 0 || replicas > self.members.len() {
            return Err(PlacementError::Replicas { replicas, shards: self.members.len() });
        }
        let costs: Vec<u64> =
            self.members.iter().map(|member| cost(&member.name, lineage, layer_group, head_group)).collect();
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by(|&a, &b| self.compare(&costs, a, b));
        order.truncate(replicas);
        Ok(order)
    }

    /// The placement of all heads of a lineage: for every layer the runs in the order of the heads.
    pub fn layout(
        &self,
        lineage: &[u8],
        layers: u32,
        kv_heads: u32,
        replicas: usize,
    ) -> Result<Layout, PlacementError> {
        let mut placed: Vec<Vec<Run>> = Vec::with_capacity(layers as usize);
        for layer in 0..layers {
            match placed.last() {
                Some(previous) if layer % self.grid.layers != 0 => placed.push(previous.clone()),
                _ => placed.push(self.runs(lineage, layer / self.grid.layers, kv_heads, replicas)?),
            }
        }
        Ok(Layout { layers: placed })
    }

    fn runs(
        &self,
        lineage: &[u8],
        layer_group: u32,
        kv_heads: u32,
        replicas: usize,
    ) -> Result<Vec<Run>, PlacementError> {
        let mut runs: Vec<Run> = Vec::new();
        let mut begin = 0;
        while begin < kv_heads {
            let end = begin.saturating_add(self.grid.kv_heads).min(kv_heads);
            let shards = self.owners(lineage, layer_group, begin / self.grid.kv_heads, replicas)?;
            match runs.last_mut() {
                Some(run) if run.shards == shards => run.kv_heads.end = end,
                _ => runs.push(Run { kv_heads: begin..end, shards }),
            }
            begin = end;
        }
        Ok(runs)
    }

    /// Lower cost / weight first, without a division; equal ones by name, so that the order of the members is no matter.
    fn compare(&self, costs: &[u64], a: usize, b: usize) -> Ordering {
        let (left, right) = (&self.members[a], &self.members[b]);
        let by_cost = (u128::from(costs[a]) * u128::from(right.weight))
            .cmp(&(u128::from(costs[b]) * u128::from(left.weight)));
        by_cost.then_with(|| left.name.cmp(&right.name))
    }
}

impl Layout {
    /// Number of layers.
    pub fn layers(&self) -> u32 {
        self.layers.len() as u32
    }

    /// The runs of a layer in the order of the heads; together they cover every KV head once. Empty beyond the last layer.
    pub fn runs(&self, layer: u32) -> &[Run] {
        self.layers.get(layer as usize).map_or(&[], Vec::as_slice)
    }

    /// All that one shard holds, as disjoint blocks; equal runs of consecutive layers are one block.
    pub fn owned(&self, shard: usize) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (layer, runs) in (0u32..).zip(&self.layers) {
            for heads in merged(runs, shard) {
                let grown = blocks.iter_mut().find(|b| b.layers.end == layer && b.kv_heads == heads);
                match grown {
                    Some(block) => block.layers.end = layer + 1,
                    None => blocks.push(Block { layers: layer..layer + 1, kv_heads: heads }),
                }
            }
        }
        blocks
    }
}

/// Head ranges of the runs that name a shard, adjacent ones joined (they may differ in their other replicas).
fn merged(runs: &[Run], shard: usize) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for run in runs.iter().filter(|run| run.shards.contains(&shard)) {
        match ranges.last_mut() {
            Some(last) if last.end == run.kv_heads.start => last.end = run.kv_heads.end,
            _ => ranges.push(run.kv_heads.clone()),
        }
    }
    ranges
}

/// The draw of a shard for a cell: -log2 of a uniform hash, exponential with a mean that is the same for all.
fn cost(name: &str, lineage: &[u8], layer_group: u32, head_group: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"recollect placement v1");
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(&(lineage.len() as u64).to_le_bytes());
    hasher.update(lineage);
    hasher.update(&layer_group.to_le_bytes());
    hasher.update(&head_group.to_le_bytes());
    let mut first = [0u8; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    minus_log2(u64::from_le_bytes(first))
}

const FRACTION_BITS: u32 = 48;

/// -log2((x + 1) / 2^64) with 48 fractional bits, bit by bit: squaring the mantissa doubles its logarithm, so each
/// square that reaches 2 yields a 1. At most 64 * 2^48 < 2^54.
fn minus_log2(x: u64) -> u64 {
    let value = u128::from(x) + 1; // 1 ..= 2^64
    let whole = value.ilog2();
    let mut mantissa = (value << 63) >> whole; // [1, 2) with 63 fractional bits
    let mut log2 = u64::from(whole);
    for _ in 0..FRACTION_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        log2 <<= 1;
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            log2 |= 1;
        }
    }
    (64 << FRACTION_BITS) - log2
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
