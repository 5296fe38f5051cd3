//! The main job on tiny random weights, with shards in this process: what is held, and what comes out.

mod common;

use std::sync::Arc;

use attention::Description;
use client::{Budget, Cluster, Shard};
use common::{TinyModel, VOCAB};
use kvstore::NodeConfig;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Runtime;
use wire::v1::{IndexKind, Tier};
use worker::baseline::{FullCache, Mode};
use worker::compare::argmax;
use worker::decode::Spending;
use worker::embedded::EmbeddedShard;
use worker::forward::forward;
use worker::model::{Loaded, Precision, RopeScaling};
use worker::sequence::{Sequence, SequenceSpec};
use worker::window::WindowSpec;

struct Bench {
    runtime: Runtime,
    cluster: Cluster,
    loaded: Loaded,
    _folder: tempfile::TempDir,
}

fn bench(model: &TinyModel, shards: usize, context: u64) -> Bench {
    bench_on(model, shards, context, |_, _| ())
}

/// The same over shards that are set up further: by the folder of the bench and their number.
fn bench_on(
    model: &TinyModel,
    shards: usize,
    context: u64,
    set: impl Fn(&mut NodeConfig, std::path::PathBuf),
) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let path = model.write_directory(folder.path(), 1);
    let loaded = Loaded::load(Some(&path), Precision::Single, RopeScaling::Auto).unwrap();
    let loaded = loaded.for_context(context).unwrap();
    let runtime = Runtime::new().unwrap();
    let cluster = {
        let _inside = runtime.enter();
        let shards = (0..shards).map(|i| {
            let mut config = NodeConfig::default();
            set(&mut config, folder.path().join(format!("shard-{i}")));
            Arc::new(EmbeddedShard::start(format!("embedded-{i}"), config).unwrap()) as Arc<dyn Shard>
        });
        let shards = shards.collect();
        runtime.block_on(Cluster::new(shards)).unwrap()
    };
    Bench { runtime, cluster, loaded, _folder: folder }
}

fn tokens(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(0..256)).collect()
}

fn spec(budget: Budget, estimate: bool, window: WindowSpec) -> SequenceSpec {
    SequenceSpec {
        window,
        spending: Spending { budget, estimate },
        index: IndexKind::Auto,
        seed: 1,
        deterministic: true,
        max_new: 4096,
    }
}

const WINDOW: WindowSpec = WindowSpec { n_sink: 128, n_window: 512, chunk: 64 };

#[test]
fn the_worker_holds_sink_window_and_a_chunk_at_32k_tokens() {
    let bench = bench(&TinyModel::small(1), 1, 33_000);
    let spec = spec(Budget::TopK(100), true, WINDOW);
    let at = (bench.runtime.handle().clone(), &bench.cluster);
    let prompt = tokens(32_768, 1);
    let (mut sequence, mut logits) =
        Sequence::start(&bench.loaded.llama, at, &prompt, &spec, |_| ()).unwrap();
    let shape = bench.loaded.llama.shape();
    for _ in 0..70 {
        let token = argmax(&logits.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        logits = sequence.extend(&[token]).unwrap();
        let (held, bytes) = sequence.worker_kv();
        assert!(held <= 128 + 512 + 64, "{held} tokens held");
        assert!(bytes <= (shape.layers * shape.layer_bytes(128 + 512 + 64)) as u64, "{bytes} bytes held");
    }
    assert_eq!(sequence.tokens(), 32_768 + 70);
    assert_eq!(sequence.session().watermark(), 32_768 + 70);
    assert!(sequence.prefill_kv_bytes <= 2 * shape.layer_bytes(32_768));
    let report = sequence.take_report();
    assert!(report.attention.exact_tokens / report.attention.rows as f64 <= 100.0 + 70.0);
    sequence.close().unwrap();
}

/// Full attention over the same prompt and continuation, `[n, vocab]` of the continuation.
fn full(bench: &Bench, prompt: &[u32], forced: &[u32]) -> Vec<f32> {
    let llama = &bench.loaded.llama;
    let description = Description { scale: llama.scale(), softcap: None };
    let mut cache = FullCache::new(llama.shape(), description, WINDOW);
    forward(llama, prompt, 0, &mut cache).unwrap();
    cache.mode = Mode::Full;
    let (hidden, _) = forward(llama, forced, prompt.len() as u64, &mut cache).unwrap();
    llama.head(&hidden).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn budget_all_is_full_attention_in_every_geometry_and_around_every_boundary() {
    for (model, shards) in [(TinyModel::grouped(), 2), (TinyModel::multi_head(), 3), (TinyModel::small(2), 1)]
    {
        let bench = bench(&model, shards, 8192);
        // Shorter than the sink; sink + window, one less, one more; a range with an index; more than one segment of sums.
        for n in [1, 100, 639, 640, 641, 2000, 5000] {
            let (prompt, forced) = (tokens(n, n as u64), tokens(60, 9));
            let at = (bench.runtime.handle().clone(), &bench.cluster);
            let spec = spec(Budget::All, false, WINDOW);
            let (mut sequence, _) = Sequence::start(&bench.loaded.llama, at, &prompt, &spec, |_| ()).unwrap();
            let ours: Vec<f32> = sequence.extend(&forced).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let full = full(&bench, &prompt, &forced);
            // Full attention sums in the order of worker and shards: whatever differs is a defect.
            assert!(ours == full, "{n} tokens, {} heads: logits differ", model.q_heads);
            sequence.close().unwrap();
        }
    }
}

#[test]
fn logits_are_as_near_to_full_attention_as_the_tier_of_the_context_is_fine() {
    let bench = bench(&TinyModel::small(2), 1, 8192);
    let llama = &bench.loaded.llama;
    let (prompt, forced) = (tokens(3000, 4), tokens(30, 5));
    let description = Description { scale: llama.scale(), softcap: None };
    let mut cache = FullCache::new(llama.shape(), description, WINDOW);
    forward(llama, &prompt, 0, &mut cache).unwrap();
    let full = full(&bench, &prompt, &forced);
    let mut worst = |tier: &str| {
        cache.bring(tier.parse().unwrap(), 0).unwrap();
        cache.mode = Mode::Tiered;
        let (hidden, _) = forward(llama, &forced, prompt.len() as u64, &mut cache).unwrap();
        cache.truncate(prompt.len());
        let logits: Vec<f32> = llama.head(&hidden).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(logits.len(), full.len());
        logits.iter().zip(&full).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let errors = ["full", "int8", "int4", "evict-10"].map(&mut worst);
    assert!(errors[0] < 2e-3 && errors.is_sorted(), "{errors:?}");
    let sketched = ["coded-60", "coded-20"].map(&mut worst);
    assert!(sketched[0] < sketched[1] && sketched[1] < errors[3], "{sketched:?} {errors:?}");
    for wrong in ["int9", "coded", "coded-0", "sketch-25", "evict-x"] {
        assert!(wrong.parse::<worker::tier::Variant>().is_err(), "{wrong}");
    }
}

#[test]
fn shards_answer_from_the_tier_that_they_hold_the_context_in() {
    let bench = bench_on(&TinyModel::small(2), 2, 8192, |config, path| config.storage = Some(path));
    let (prompt, forced) = (tokens(3000, 4), tokens(30, 5));
    let full = full(&bench, &prompt, &forced);
    let at = (bench.runtime.handle().clone(), &bench.cluster);
    let (mut sequence, _) =
        Sequence::start(&bench.loaded.llama, at, &prompt, &spec(Budget::All, false, WINDOW), |_| ()).unwrap();
    sequence.wait_ready().unwrap();
    let start = sequence.checkpoint();
    let mut logits = |sequence: &mut Sequence<'_>, budget, estimate| -> Vec<f32> {
        sequence.set_spending(Spending { budget, estimate });
        let logits = sequence.extend(&forced).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        sequence.rewind(&start).unwrap();
        logits
    };
    let error = |logits: &[f32]| {
        let pairs = logits.iter().zip(&full);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let mut errors = Vec::new();
    for (tier, percent) in [(Tier::Quantised, 0), (Tier::Sketched, 50), (Tier::Sketched, 20)] {
        let id = sequence.session().id().to_vec();
        let freed = bench.runtime.block_on(bench.cluster.evict(Some(&id), tier, percent)).unwrap();
        assert!(freed > 0, "{tier:?} {percent}");
        let ours = logits(&mut sequence, Budget::TopK(1), true);
        errors.push(error(&ours));
        // Everything exactly comes from the rows, to the bit.
        assert!(logits(&mut sequence, Budget::All, false) == full, "{tier:?} {percent}");
    }
    assert!(errors.is_sorted() && errors[0] < 0.05 && errors[0] > 0.0, "{errors:?}");
    bench.runtime.block_on(bench.cluster.promote(sequence.session().id())).unwrap();
    assert!(logits(&mut sequence, Budget::All, false) == full);
    sequence.close().unwrap();
}

#[test]
fn decoding_goes_on_through_automatic_seals() {
    let bench = bench(&TinyModel::small(1), 2, 8192);
    let (prompt, forced) = (tokens(700, 4), tokens(2600, 5));
    let at = (bench.runtime.handle().clone(), &bench.cluster);
    let spec = spec(Budget::All, false, WINDOW);
    let (mut sequence, _) = Sequence::start(&bench.loaded.llama, at, &prompt, &spec, |_| ()).unwrap();
    let ours: Vec<f32> = sequence.extend(&forced).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let full = full(&bench, &prompt, &forced);
    let worst = ours.iter().zip(&full).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 2e-3, "logits differ by {worst}");
    assert_eq!(ours.len(), forced.len() * VOCAB);
    sequence.close().unwrap();
}

#[test]
fn a_rewound_sequence_repeats_itself_to_the_bit() {
    let bench = bench(&TinyModel::small(2), 2, 8192);
    let at = (bench.runtime.handle().clone(), &bench.cluster);
    let spec = spec(Budget::TopK(50), true, WINDOW);
    let (mut sequence, _) =
        Sequence::start(&bench.loaded.llama, at, &tokens(3000, 6), &spec, |_| ()).unwrap();
    let start = sequence.checkpoint();
    let forced = tokens(90, 7);
    let mut run = || {
        let bits = sequence.extend(&forced).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        sequence.rewind(&start).unwrap();
        bits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let first = run();
    assert_eq!(first, run());
    assert_eq!(sequence.tokens(), 3000);
    sequence.close().unwrap();
}

#[test]
fn an_empty_prompt_and_a_budget_too_small_are_refused() {
    let bench = bench(&TinyModel::small(1), 1, 8192);
    let at = || (bench.runtime.handle().clone(), &bench.cluster);
    let spec = spec(Budget::All, false, WINDOW);
    let error = Sequence::start(&bench.loaded.llama, at(), &[], &spec, |_| ()).err().unwrap();
    assert!(error.to_string().starts_with("prompt: is empty"), "{error}");
    let huge = SequenceSpec { max_new: 1 << 40, ..spec };
    let error = Sequence::start(&bench.loaded.llama, at(), &[1], &huge, |_| ()).err().unwrap();
    assert!(format!("{error:#}").contains("memory"), "{error:#}");
}

#[test]
fn a_coverage_budget_is_one_of_the_whole_softmax() {
    let bench = bench(&TinyModel::small(2), 2, 8192);
    let at = (bench.runtime.handle().clone(), &bench.cluster);
    let run = |share: f32| {
        let spec = spec(Budget::Coverage(share), true, WINDOW);
        let (mut sequence, _) =
            Sequence::start(&bench.loaded.llama, at.clone(), &tokens(3000, 6), &spec, |_| ()).unwrap();
        sequence.extend(&tokens(20, 7)).unwrap();
        let attention = sequence.take_report().attention;
        sequence.close().unwrap();
        (attention.coverage.mean().unwrap(), attention.exact_tokens / attention.rows as f64)
    };
    // Sink and window are a fifth of 3,000 tokens: on weights without any structure about a fifth of the mass, which
    // needs no help from the shards, and far from nine tenths of it.
    let (low, high) = (run(0.1), run(0.9));
    assert!(low.1 <= 20.0, "more than the fresh tokens: {low:?}");
    assert!(high.0 >= 0.9 && high.1 > 1000.0, "{high:?}");
}
