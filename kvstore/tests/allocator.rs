//! In a process of its own: other tests' memory would be counted as well.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

/// Anonymous resident memory, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn freed_rows_leave_the_process() {
    const ROWS: usize = 1 << 20;
    assert!(kvstore::allocator::return_freed_rows());
    // A large block that is freed would raise the line above the size of the rows to come.
    drop(std::hint::black_box(vec![1u8; 16 << 20]));
    let before = resident();
    let mut rows: Vec<Vec<u8>> = (0..64).map(|_| std::hint::black_box(vec![1u8; ROWS])).collect();
    let held = resident() - before;
    assert!(held > 60 << 20, "{held}");
    // Every second one, so that none of them is at the end of an arena.
    for i in (0..64).step_by(2) {
        rows[i] = Vec::new();
    }
    let left = resident() - before;
    assert!(left < held / 2 + (2 << 20), "{left} of {held}");
}
