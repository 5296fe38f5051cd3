use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn map(weights: &[u32]) -> Map {
    let members =
        weights.iter().enumerate().map(|(i, &weight)| Member { name: format!("shard-{i}:7420"), weight });
    Map::new(1, Grid::default(), members.collect()).expect("valid map")
}

fn all_cells() -> impl Iterator<Item = (u32, u32)> {
    (0..64).flat_map(|layer| (0..16).map(move |head| (layer, head)))
}

#[test]
fn refused_maps() {
    let member = |name: &str, weight| Member { name: name.into(), weight };
    let new = |members| Map::new(1, Grid::default(), members);
    assert_eq!(new(vec![]), Err(PlacementError::NoShards));
    assert_eq!(new(vec![member("", 1)]), Err(PlacementError::Unnamed(0)));
    assert_eq!(new(vec![member("a", 0)]), Err(PlacementError::ZeroWeight("a".into())));
    assert_eq!(new(vec![member("a", 1), member("a", 2)]), Err(PlacementError::Duplicate("a".into())));
    let grid = Grid { layers: 0, kv_heads: 1 };
    assert_eq!(
        Map::new(1, grid, vec![member("a", 1)]),
        Err(PlacementError::EmptyCell { layers: 0, kv_heads: 1 })
    );
    for replicas in [0, 3] {
        assert_eq!(
            map(&[1, 1]).owners(b"x", 0, 0, replicas),
            Err(PlacementError::Replicas { replicas, shards: 2 })
        );
    }
}

/// The same on every machine and in every version: a change here moves every stored session.
#[test]
fn golden_owners() {
    let even = map(&[1, 1, 1]);
    let skewed = map(&[1, 2, 5]);
    let row = |map: &Map, layer| -> Vec<usize> {
        (0..8).map(|h| map.owners(b"golden", layer, h, 1).expect("owner")[0]).collect()
    };
    let seen = [row(&even, 0), row(&even, 1), row(&skewed, 0), row(&skewed, 1)];
    assert_eq!(seen, GOLDEN, "placement changed");
    assert_eq!(even.owners(b"golden", 0, 0, 3).expect("owners"), GOLDEN_REPLICAS);
}

const GOLDEN: [[usize; 8]; 4] =
    [[1, 1, 1, 2, 0, 2, 0, 1], [0, 2, 2, 0, 2, 1, 0, 0], [2, 1, 1, 2, 1, 2, 0, 1], [2, 2, 2, 0, 2, 1, 0, 0]];
const GOLDEN_REPLICAS: [usize; 3] = [1, 2, 0];

#[test]
fn fixed_point_logarithm() {
    assert_eq!(minus_log2(u64::MAX), 0);
    assert_eq!(minus_log2(0), 64 << FRACTION_BITS);
    assert_eq!(minus_log2((1 << 63) - 1), 1 << FRACTION_BITS);
    for x in [1u64, 2, 12_345, 1 << 40, u64::MAX / 3, u64::MAX - 1] {
        let exact = 64.0 - (x as f64 + 1.0).log2();
        let got = minus_log2(x) as f64 / (1u64 << FRACTION_BITS) as f64;
        assert!((exact - got).abs() < 1e-12, "{x}: {got} for {exact}");
    }
}

/// The share of cells follows the share of weight, within five standard deviations.
#[test]
fn weights_are_respected() {
    let weights = [1u32, 2, 5, 8];
    let map = map(&weights);
    let mut held = [0f64; 4];
    let lineages: Vec<[u8; 4]> = (0u32..16).map(u32::to_le_bytes).collect();
    for lineage in &lineages {
        for (layer, head) in all_cells() {
            held[map.owners(lineage, layer, head, 1).expect("owner")[0]] += 1.0;
        }
    }
    let cells = 16.0 * 1024.0;
    for (i, &weight) in weights.iter().enumerate() {
        let share = f64::from(weight) / 16.0;
        let slack = 5.0 * (share * (1.0 - share) / cells).sqrt();
        assert!((held[i] / cells - share).abs() < slack, "shard {i}: {} for {share}", held[i] / cells);
    }
}

#[test]
fn groups_share_their_cell() {
    let members = (0..5).map(|i| Member { name: format!("s{i}"), weight: 1 }).collect();
    let map = Map::new(7, Grid { layers: 4, kv_heads: 2 }, members).expect("valid map");
    let layout = map.layout(b"root", 10, 7, 1).expect("layout");
    assert_eq!((map.version(), layout.layers()), (7, 10));
    for layer in 0..10 {
        assert_eq!(layout.runs(layer), layout.runs(layer / 4 * 4));
        for run in layout.runs(layer) {
            let whole = run.kv_heads.start % 2 == 0 && (run.kv_heads.end % 2 == 0 || run.kv_heads.end == 7);
            assert!(whole, "a head group is split: {run:?}");
        }
    }
    assert_eq!(layout.runs(10), &[]);
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1u32..9, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A shard that joins only takes cells: no cell moves between the shards that were there.
    #[test]
    fn a_join_moves_only_to_the_new_shard(old in weights(), added in 1u32..9, lineage in any::<[u8; 16]>()) {
        let mut new = old.clone();
        new.push(added);
        let (before, after) = (map(&old), map(&new));
        for (layer, head) in all_cells() {
            let was = before.owners(&lineage, layer, head, 1).unwrap();
            let is = after.owners(&lineage, layer, head, 1).unwrap();
            prop_assert!(is == was || is == [old.len()]);
        }
    }

    /// The same with replicas: what is left of the old set keeps its order, and at most one place changes hands.
    #[test]
    fn a_leave_moves_only_what_it_held(weights in weights(), gone in any::<prop::sample::Index>(), lineage in any::<[u8; 16]>()) {
        prop_assume!(weights.len() > 2);
        let full = map(&weights);
        let gone = gone.index(weights.len());
        let mut members = full.members().to_vec();
        members.remove(gone);
        let rest = Map::new(2, Grid::default(), members).unwrap();
        for (layer, head) in all_cells().step_by(7) {
            let was = full.owners(&lineage, layer, head, 2).unwrap();
            let is: Vec<usize> = rest.owners(&lineage, layer, head, 2).unwrap().iter().map(|&s| s + usize::from(s >= gone)).collect();
            let kept: Vec<usize> = was.iter().copied().filter(|&s| s != gone).collect();
            prop_assert_eq!(&is[..kept.len()], &kept[..]);
        }
    }

    /// The order in which a map lists its shards is no matter, and nothing else enters but names, weights and the cell.
    #[test]
    fn order_and_version_do_not_matter(weights in weights(), lineage in any::<[u8; 8]>(), shift in 0usize..6) {
        let a = map(&weights);
        let mut members = a.members().to_vec();
        members.rotate_left(shift % weights.len());
        let b = Map::new(99, Grid::default(), members).unwrap();
        for (layer, head) in all_cells().step_by(11) {
            let name = |m: &Map| m.members()[m.owners(&lineage, layer, head, 1).unwrap()[0]].name.clone();
            prop_assert_eq!(name(&a), name(&b));
        }
    }

    /// Runs cover every KV head once in order; blocks of a shard are disjoint and hold exactly its runs.
    #[test]
    fn layouts_cover_everything_once(
        weights in weights(), layers in 1u32..12, kv_heads in 1u32..12, grid in (1u32..5, 1u32..5), replicas in 1usize..3,
    ) {
        prop_assume!(replicas <= weights.len());
        let grid = Grid { layers: grid.0, kv_heads: grid.1 };
        let map = Map::new(1, grid, map(&weights).members().to_vec()).unwrap();
        let layout = map.layout(b"l", layers, kv_heads, replicas).unwrap();
        let mut held = HashSet::new();
        for layer in 0..layers {
            let mut next = 0;
            for run in layout.runs(layer) {
                prop_assert_eq!(run.kv_heads.start, next);
                next = run.kv_heads.end;
                let distinct: HashSet<_> = run.shards.iter().collect();
                prop_assert_eq!(distinct.len(), replicas);
                for &shard in &run.shards {
                    held.extend(run.kv_heads.clone().map(|head| (shard, layer, head)));
                }
            }
            prop_assert_eq!(next, kv_heads);
        }
        let mut owned = HashSet::new();
        for shard in 0..weights.len() {
            for block in layout.owned(shard) {
                for layer in block.layers.clone() {
                    for head in block.kv_heads.clone() {
                        prop_assert!(owned.insert((shard, layer, head)), "a block overlaps another");
                    }
                }
            }
        }
        prop_assert_eq!(held, owned);
    }
}
