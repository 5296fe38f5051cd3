//! The plug is pulled: a child process works on a directory until a failpoint or a SIGKILL ends it, then what it left is
//! compared with what it had acknowledged. The directory goes through many such ends, one after the other.

use super::*;
use crate::store::fail;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Where the child works, and its seed; without them it is no child.
const FOLDER: &str = "RECOLLECT_CRASH_FOLDER";
const SEED: &str = "RECOLLECT_CRASH_SEED";
/// How many ends; `scripts/soak` asks for more.
const ROUNDS: &str = "RECOLLECT_CRASH_ROUNDS";
/// Ends of one directory before a new one is begun.
const CHAIN: u64 = 25;
/// Operations after which a child that nobody ended stops.
const STEPS: usize = 80;
/// Sessions: two durable ones, one in memory.
const IDS: [u8; 3] = [1, 2, 3];

fn durable(id: u8) -> bool {
    id != 3
}

fn small(c: &mut NodeConfig) {
    c.threads = Some(1);
    c.seal_tokens = 24;
    c.index_min_tokens = 40;
    // In the directory itself, so that a copy has an archive of its own.
    let url = format!("file://{}/archive", c.storage.as_ref().unwrap().display());
    c.archive = Some(crate::ArchiveSettings::new(&url, Duration::from_secs(10), 0));
}

/// Every row carries the tag of the operation that brought it.
fn tagged(tag: u64, layer: u32, head: u32, position: u64, d: u32, value: bool) -> f16 {
    let x = tag * 31
        + position * 17
        + u64::from(layer) * 7
        + u64::from(head) * 3
        + u64::from(d)
        + u64::from(value);
    f16::from_f32((x % 2039) as f32)
}

fn rows(
    tags: &[u64],
    begin: u64,
    layer: u32,
    heads: std::ops::Range<u32>,
    dim: u32,
    value: bool,
) -> Vec<f16> {
    let mut all = Vec::new();
    for (position, &tag) in (begin..).zip(tags) {
        for head in heads.clone() {
            all.extend((0..dim).map(|d| tagged(tag, layer, head, position, d, value)));
        }
    }
    all
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Open,
    /// Tokens, tag, whether they are sealed.
    Append(u64, u64, bool),
    Decode(u64),
    Truncate(u64),
    /// Every session that can goes to the archive.
    Archive,
    Close,
}

impl Step {
    fn write(&self) -> String {
        match self {
            Step::Open => "open".into(),
            Step::Append(n, tag, seal) => format!("append {n} {tag} {}", u8::from(*seal)),
            Step::Decode(tag) => format!("decode {tag}"),
            Step::Truncate(length) => format!("truncate {length}"),
            Step::Archive => "archive".into(),
            Step::Close => "close".into(),
        }
    }

    fn read(text: &str) -> Step {
        let words: Vec<&str> = text.split(' ').collect();
        let n = |i: usize| words[i].parse::<u64>().unwrap();
        match words[0] {
            "open" => Step::Open,
            "append" => Step::Append(n(1), n(2), n(3) == 1),
            "decode" => Step::Decode(n(1)),
            "truncate" => Step::Truncate(n(1)),
            "archive" => Step::Archive,
            "close" => Step::Close,
            other => panic!("{other}"),
        }
    }

    /// What a session holds after it: the tag of every token, or None.
    fn apply(&self, state: &Option<Vec<u64>>) -> Option<Vec<u64>> {
        let mut tags = state.clone().unwrap_or_default();
        match self {
            Step::Archive => return state.clone(),
            Step::Open => return Some(Vec::new()),
            Step::Close => return None,
            Step::Append(n, tag, _) => tags.extend(std::iter::repeat_n(*tag, *n as usize)),
            Step::Decode(tag) => tags.push(*tag),
            Step::Truncate(length) => tags.truncate(*length as usize),
        }
        Some(tags)
    }
}

/// Does one step; every acknowledgement is checked.
async fn act(node: &Arc<Node>, id: u8, step: &Step, held: u64) {
    let f = model();
    match step {
        Step::Open => {
            let index = if id == 2 { v1::IndexKind::Flat } else { v1::IndexKind::Summary };
            let o = v1::OpenRequest { deterministic: false, index: index as i32, ..stored(id, durable(id)) };
            node.open(o).await.unwrap();
        }
        Step::Archive => {
            let all = v1::EvictRequest {
                session: Vec::new(),
                tier: v1::Tier::Archived.into(),
                ..Default::default()
            };
            node.evict(all).await.unwrap();
        }
        Step::Close => close(node, id).await.unwrap(),
        Step::Truncate(length) => drop(truncate(node, id, *length).await),
        Step::Append(n, tag, seal) => {
            let tags = vec![*tag; *n as usize];
            for layer in 0..f.layers {
                let mut c = sampled(id, layer, held, *n);
                let shape = |dim: u32| [*n as usize, f.kv_heads as usize, dim as usize];
                c.k = Some(tensor::from_f16(
                    &shape(f.key_dim),
                    &rows(&tags, held, layer, 0..f.kv_heads, f.key_dim, false),
                ));
                c.v = Some(tensor::from_f16(
                    &shape(f.value_dim),
                    &rows(&tags, held, layer, 0..f.kv_heads, f.value_dim, true),
                ));
                c.seal_to = seal.then_some(held + n);
                let ack = node.append(c).await.unwrap();
                assert_eq!(ack.layer_end, held + n);
                if layer + 1 == f.layers {
                    assert_eq!(ack.watermark, held + n);
                }
            }
        }
        Step::Decode(tag) => {
            for layer in 0..f.layers {
                let mut r = row(id, &f, layer, 0, held + 1, false);
                let shape = |dim: u32| [f.kv_heads as usize, dim as usize];
                r.token = Some(v1::NewToken {
                    position: held,
                    k: Some(tensor::from_f16(
                        &shape(f.key_dim),
                        &rows(&[*tag], held, layer, 0..f.kv_heads, f.key_dim, false),
                    )),
                    v: Some(tensor::from_f16(
                        &shape(f.value_dim),
                        &rows(&[*tag], held, layer, 0..f.kv_heads, f.value_dim, true),
                    )),
                });
                let answer = node.attend(message(node, vec![r])).await.unwrap().rows.remove(0);
                assert_eq!(answer.error, None);
                if layer + 1 == f.layers {
                    assert_eq!(answer.watermark, held + 1);
                }
            }
        }
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@ {text}").unwrap();
    out.flush().unwrap();
}

/// Not a test of its own: the process that is ended. It tells each step before it begins and after it is acknowledged.
#[test]
fn child() {
    let (Ok(folder), Ok(seed)) = (std::env::var(FOLDER), std::env::var(SEED)) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut rng = StdRng::seed_from_u64(seed.parse().unwrap());
        let node = on(Path::new(&folder), small);
        let mut held: HashMap<u8, u64> = HashMap::new();
        let perform = async |id: u8, step: Step, held: &mut HashMap<u8, u64>| {
            say(&format!("{id} {}", step.write()));
            act(&node, id, &step, held.get(&id).copied().unwrap_or(0)).await;
            say("ok");
            let tags = held.get(&id).map(|&n| vec![0; n as usize]);
            match step.apply(&tags) {
                Some(tags) => held.insert(id, tags.len() as u64),
                None => held.remove(&id),
            };
        };
        for id in IDS {
            let found = watermark(&node, id).await;
            say(&format!("found {id} {}", found.as_ref().map_or(-1, |&w| w as i64)));
            if let Ok(watermark) = found {
                held.insert(id, watermark);
                // Layers may be ahead of the watermark. Nothing is beyond it when all of them hold the same.
                perform(id, Step::Truncate(watermark), &mut held).await;
            }
        }
        let mut tag = rng.random_range(0..1 << 20) * 64;
        for _ in 0..STEPS {
            let id = IDS[rng.random_range(0..IDS.len())];
            tag += 1;
            let step = match held.get(&id).copied() {
                None => Step::Open,
                Some(n) => match rng.random_range(0..100) {
                    0..3 => Step::Close,
                    3..6 => Step::Archive,
                    6..12 => Step::Truncate(n - rng.random_range(0..=n.min(90))),
                    12..45 => Step::Append(rng.random_range(1..70), tag, rng.random_bool(0.4)),
                    _ => Step::Decode(tag),
                },
            };
            perform(id, step, &mut held).await;
        }
        say("done");
    });
}

/// What is known of a directory: for each session its state, and the step that was not acknowledged.
#[derive(Default)]
struct Known {
    states: HashMap<u8, Option<Vec<u64>>>,
    flying: Option<(u8, Step)>,
    acknowledged: u64,
}

impl Known {
    /// Follows a child to its end; returns whether it was ended.
    fn follow(&mut self, folder: &Path, seed: u64, rng: &mut StdRng) -> bool {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "store::tests::crash::child", "--nocapture", "--test-threads", "1"]);
        command.env(FOLDER, folder).env(SEED, seed.to_string());
        let by_signal = rng.random_bool(0.35);
        if !by_signal {
            let (name, most) = match rng.random_range(0..3) {
                0 => ("any", 400),
                _ => (fail::POINTS[rng.random_range(0..fail::POINTS.len())], 25),
            };
            command.env(fail::VARIABLE, format!("{name}:{}", rng.random_range(1..=most)));
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let after = rng.random_range(0..250);
        let mut done = false;
        for (i, line) in
            lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("@ ").map(str::to_owned)).enumerate()
        {
            if by_signal && i == after {
                // Somewhere in the middle of what follows this line.
                std::thread::sleep(Duration::from_micros(rng.random_range(0..3000)));
                child.kill().unwrap();
            }
            done |= line == "done";
            self.take(&line);
        }
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!log.contains("panicked"), "seed {seed}: {log}");
        assert!(done || !output.status.success(), "seed {seed}: ended early: {log}");
        !done
    }

    fn take(&mut self, line: &str) {
        if line == "ok" {
            if let Some((id, step)) = self.flying.take() {
                let state = self.states.entry(id).or_default();
                *state = step.apply(state);
                self.acknowledged += 1;
            }
        } else if let Some(found) = line.strip_prefix("found ") {
            let (id, tokens) = found.split_once(' ').unwrap();
            let state = &self.states.get(&id.parse().unwrap()).cloned().flatten();
            let told = tokens.parse::<i64>().unwrap();
            assert_eq!(
                told,
                state.as_ref().map_or(-1, |s| s.len() as i64),
                "session {id} as the child found it"
            );
        } else if line != "done" {
            let (id, step) = line.split_once(' ').unwrap();
            self.flying = Some((id.parse().unwrap(), Step::read(step)));
        }
    }

    /// Compares what a start finds with what may be there, and takes it over.
    async fn check(&mut self, node: &Arc<Node>) {
        assert_eq!(node.snapshot().quarantined_files, 0, "nothing was damaged");
        assert_eq!(node.snapshot().refused_sessions, 0, "nothing is missing");
        let flying = self.flying.take();
        for id in IDS {
            let before = self.states.get(&id).cloned().flatten();
            let step = flying.as_ref().filter(|(who, _)| *who == id).map(|(_, step)| step);
            let after = step.map_or_else(|| before.clone(), |step| step.apply(&before));
            let found = watermark(node, id).await.ok();
            let what = format!("session {id}: {found:?} tokens found, {step:?} under way");
            let Some(found) = found else {
                assert!(before.is_none() || after.is_none(), "{what}: it is gone");
                self.states.insert(id, None);
                continue;
            };
            let length = |state: &Option<Vec<u64>>| state.as_ref().map(|s| s.len() as u64);
            let (least, most) = (length(&before).min(length(&after)), length(&before).max(length(&after)));
            let most = most.unwrap_or_else(|| panic!("{what}: it was closed"));
            assert!(found <= most, "{what}: at most {most}");
            if durable(id) {
                let least = least.unwrap_or(0);
                assert!(found >= least, "{what}: {least} were acknowledged as durable");
                let whole = matches!(step, Some(Step::Truncate(_)));
                assert!(!whole || found == least || found == most, "{what}: neither {least} nor {most}");
            }
            // The longer of the two states has the rows of both.
            let longer = if length(&after) > length(&before) { after } else { before };
            let tags = longer.unwrap_or_default()[..found as usize].to_vec();
            assert_tagged(node, id, &tags, &what).await;
            assert_counted(node, id, found, &what).await;
            self.states.insert(id, Some(tags));
        }
    }
}

async fn assert_tagged(node: &Arc<Node>, id: u8, tags: &[u64], what: &str) {
    let f = model();
    let n = tags.len();
    for (layer, kv_head) in (0..f.layers).flat_map(|l| (0..f.kv_heads).map(move |h| (l, h))) {
        if n == 0 {
            return;
        }
        let request = v1::ReadRowsRequest { session: vec![id; 16], layer, kv_head, begin: 0, end: n as u64 };
        let read = node.read_rows(request).await.unwrap();
        for (t, dim, value) in [(read.k, f.key_dim, false), (read.v, f.value_dim, true)] {
            let want = rows(tags, 0, layer, kv_head..kv_head + 1, dim, value);
            let want = tensor::from_f16(&[n, dim as usize], &want);
            assert!(
                t == Some(want),
                "{what}: wrong rows in layer {layer}, KV head {kv_head}, values {value}"
            );
        }
    }
}

/// Whatever index a span came back with: with all logits equal every token counts once.
async fn assert_counted(node: &Arc<Node>, id: u8, tokens: u64, what: &str) {
    for layer in 0..if tokens > 0 { model().layers } else { 0 } {
        let mut r = row(id, &model(), layer, 0, tokens, true);
        r.budget = Some(wire::convert::Budget::TopK(5).write());
        r.estimate = true;
        let answer = node.attend(message(node, vec![r])).await.unwrap().rows.remove(0);
        assert_eq!(answer.error, None, "{what}");
        assert_eq!(mass(&answer), [tokens as f32; 4], "{what}: tokens of layer {layer}");
    }
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// In RAM where there is such a place: an ended process leaves the page cache as it is, and syncs cost nothing there.
fn scratch() -> tempfile::TempDir {
    let ram = Path::new("/dev/shm");
    if ram.is_dir() { tempfile::tempdir_in(ram).unwrap() } else { tempfile::tempdir().unwrap() }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_and_no_wrong_row_is_served() {
    let rounds = std::env::var(ROUNDS).map_or(200, |n| n.parse().unwrap());
    let (mut ended, mut acknowledged) = (0, 0);
    for chain in 0..u64::div_ceil(rounds, CHAIN) {
        // Copies that were looked at go with it: their nodes may still be writing.
        let folder = scratch();
        let path = folder.path().join("data");
        let mut known = Known::default();
        for round in chain * CHAIN..rounds.min((chain + 1) * CHAIN) {
            let mut rng = StdRng::seed_from_u64(0xc0ffee + round);
            ended += u64::from(known.follow(&path, round, &mut rng));
            if !path.exists() {
                continue;
            }
            // Looked at in a copy, so that the next child starts on what this one left.
            let look = folder.path().join(format!("look{round}"));
            copy(&path, &look);
            let node = on(&look, small);
            known.check(&node).await;
        }
        acknowledged += known.acknowledged;
    }
    println!("{rounds} rounds, {ended} ended in the middle, {acknowledged} steps acknowledged");
    assert!(ended * 2 > rounds, "only {ended} of {rounds} children were ended in the middle");
}
