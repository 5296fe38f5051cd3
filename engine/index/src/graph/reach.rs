//! Reachability: a breadth-first search from the entries; what it misses is linked.

use super::ENTRY_MEMBERS;
use crate::summary::Summary;

/// Adds an edge to every key that cannot be reached from the entries of all groups: from the member before it in its
/// group, which is reached itself. So no key gets more than one such edge. Returns the number of keys linked.
pub(super) fn link_orphans(lists: &mut [Vec<u32>], summary: &Summary) -> usize {
    let reached = from_entries(lists, summary);
    let mut linked = 0;
    for group in 0..summary.groups() {
        for pair in summary.members(group).windows(2) {
            if !reached[pair[1] as usize] {
                lists[pair[0] as usize].push(pair[1]);
                linked += 1;
            }
        }
    }
    linked
}

/// Which keys a breadth-first search from the first members of all groups reaches.
pub(super) fn from_entries(lists: &[Vec<u32>], summary: &Summary) -> Vec<bool> {
    let mut reached = vec![false; lists.len()];
    let mut queue = Vec::new();
    let visit = |id: u32, reached: &mut Vec<bool>, queue: &mut Vec<u32>| {
        if !std::mem::replace(&mut reached[id as usize], true) {
            queue.push(id);
        }
    };
    for group in 0..summary.groups() {
        for &id in summary.members(group).iter().take(ENTRY_MEMBERS) {
            visit(id, &mut reached, &mut queue);
        }
    }
    let mut next = 0;
    while next < queue.len() {
        let node = queue[next] as usize;
        next += 1;
        for &id in &lists[node] {
            visit(id, &mut reached, &mut queue);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use attention::Rows;
    use half::f16;
    use kernels::Kernels;

    use super::*;

    fn reaches_all(key: impl Fn(usize) -> f32, mut lists: Vec<Vec<u32>>) -> usize {
        let n = lists.len();
        let keys: Vec<f16> = (0..n * 4).map(|i| f16::from_f32(key(i))).collect();
        let rows = Rows::contiguous(&keys, 4);
        let summary = Summary::build(&Kernels::native(), &rows, &rows, 64);
        let linked = link_orphans(&mut lists, &summary);
        assert!(from_entries(&lists, &summary).iter().all(|&r| r));
        linked
    }

    #[test]
    fn every_key_is_reachable() {
        let spread = |i: usize| (i * 7919 % 1013) as f32 / 100.0;
        assert!(reaches_all(spread, vec![Vec::new(); 3000]) > 0, "no edges at all");
        assert!(
            reaches_all(|_| 1.0, vec![vec![0, 1]; 1000]) > 0,
            "identical keys that all point to the same two"
        );
        let chain = (0..500).map(|i| vec![(i + 1) % 500]).collect();
        assert_eq!(reaches_all(spread, chain), 0, "a ring needs no link");
        assert_eq!(reaches_all(spread, vec![Vec::new()]), 0, "a single key is an entry");
    }
}
