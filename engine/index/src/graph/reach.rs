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
