//! Every reader of bytes from outside, fed with changed valid bytes for a time: none may panic, and none may allocate out
//! of proportion to its input.
//!
//! `RECOLLECT_FUZZ_SECONDS` is the time for each reader (2 without it; CI 60, `scripts/soak` 600), `RECOLLECT_FUZZ_SEED` the
//! seed of the first input of all (0 without it). A finding names both and leaves the input in a file.

mod mutate;
mod targets;

use mutate::Mutator;
use peak_alloc::PeakAlloc;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use targets::Target;

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

const SECONDS: &str = "RECOLLECT_FUZZ_SECONDS";
const SEED: &str = "RECOLLECT_FUZZ_SEED";
/// The reader that a child feeds; without it, it is no child.
const TARGET: &str = "RECOLLECT_FUZZ_TARGET";
/// Bytes that a reader may hold at once: so many for each of the input, and so many more.
const EACH: usize = 32;
const MORE: usize = 64 << 10;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// Feeds one reader until the time is up; returns how many inputs there were, and how many of them it took.
fn feed(target: &Target, time: Duration, seed: u64) -> (u64, u64) {
    for valid in &target.seeds {
        assert!((target.read)(valid), "{}: valid bytes are refused", target.name);
        let mut resealed = valid.clone();
        (target.reseal)(&mut resealed);
        assert!(resealed == *valid, "{}: sums of valid bytes are changed", target.name);
    }
    let until = Instant::now() + time;
    let (mut fed, mut taken) = (0, 0);
    // A new seed now and then, so that a finding is soon reached again.
    for round in 0.. {
        let mut mutator = Mutator::new(target.seeds.clone(), seed + round);
        for _ in 0..1000 {
            let mut input = mutator.next();
            if !mutator.once_in(8) {
                (target.reseal)(&mut input);
            }
            let before = PEAK.current_usage();
            PEAK.reset_peak_usage();
            let read = std::panic::catch_unwind(|| (target.read)(&input));
            let held = PEAK.peak_usage().saturating_sub(before);
            let found = match read {
                Err(_) => Some("it panicked".to_owned()),
                Ok(_) if held > EACH * input.len() + MORE => Some(format!("it held {held} bytes")),
                Ok(took) => {
                    taken += u64::from(took);
                    None
                }
            };
            if let Some(found) = found {
                let path = std::env::temp_dir().join(format!("fuzz-{}-{}", target.name, seed + round));
                std::fs::write(&path, &input).expect("the input of a finding");
                let (name, n) = (target.name, input.len());
                panic!("{name}: {found} on {n} bytes ({}), {SEED}={}", path.display(), seed + round);
            }
            fed += 1;
            if Instant::now() >= until {
                return (fed, taken);
            }
        }
    }
    (fed, taken)
}

/// Not a test of its own: the process that feeds one reader, so that nobody else allocates beside it.
#[test]
fn child() {
    let Ok(name) = std::env::var(TARGET) else { return };
    let all = targets::all();
    let target = all.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no reader {name}"));
    let (fed, taken) = feed(target, Duration::from_secs(variable(SECONDS, 2)), variable(SEED, 0));
    println!("{name}: {fed} inputs, {taken} of them taken");
    assert!(taken > 0 && taken < fed, "{name}: {taken} of {fed} inputs are taken: the changes are no test");
}

#[test]
fn no_bytes_make_a_reader_panic_or_take_memory_beyond_their_size() {
    let mut names: Vec<&str> = targets::all().iter().map(|t| t.name).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    while !names.is_empty() {
        let some = names.split_off(names.len() - cores.min(names.len()));
        let start = |name: &&str| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(TARGET, name);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a child")
        };
        let children: Vec<_> = some.iter().map(start).collect();
        for (name, child) in some.into_iter().zip(children) {
            let output = child.wait_with_output().expect("its end");
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            // After what the test runner says on the same line.
            let told = out.lines().find_map(|l| l.find(&format!("{name}: ")).map(|at| &l[at..]));
            println!("{}", told.unwrap_or_default());
            if !output.status.success() {
                failed.push(err.lines().find(|l| l.starts_with(name)).unwrap_or(&err).to_owned());
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
