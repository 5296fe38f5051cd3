//! What glibc's allocator does with the blocks of rows and indexes.

/// Blocks of so many bytes and more get a map of their own: where glibc starts from, before it moves the line up.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 128 << 10;
/// The variable by which an operator sets the line himself.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const VARIABLE: &str = "MALLOC_MMAP_THRESHOLD_";

/// Has the memory of freed rows go back to the system at once. Left alone, glibc raises the size from which a block gets
/// a map of its own with every such block that is freed (up to 32 MiB, mallopt(3)), keeps freed rows in its arenas, and the process
/// holds more than its budget granted. A program calls this first, before it starts threads; a size that the environment
/// sets stays. False: this C library has no such line, or refused.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn return_freed_rows() -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    // SAFETY: sets a number of the allocator; touches no memory of ours.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) == 1 }
}

/// Has the memory of freed rows go back to the system at once, where the C library is glibc; this one is another.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn return_freed_rows() -> bool {
    false
}
