//! Every kernel on every path of this CPU against f64 arithmetic, and all paths against the scalar one.

mod bytes;
mod masses;
mod packed;

use half::f16;
use kernels::{Isa, Kernels};
use proptest::prelude::*;

fn paths() -> Vec<Kernels> {
    Isa::available().into_iter().filter_map(Kernels::with).collect()
}

/// A small xorshift: values depend on the seed alone.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn f32(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    fn f16(&mut self, n: usize) -> Vec<f16> {
        (0..n).map(|_| f16::from_f32(4.0 * self.next())).collect()
    }
}

/// Sum of products in f64 and the bound of its f32 evaluation in any order: (n + 2) * 2^-24 * sum of magnitudes.
fn dot64(x: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut sum, mut magnitude, mut n) = (0.0, 0.0, 2.0);
    for (a, b) in x {
        sum += a * b;
        magnitude += (a * b).abs();
        n += 1.0;
    }
    (sum, n * magnitude * 2f64.powi(-24) + 1e-30)
}

fn mixed<'a>(q: &'a [f32], row: &'a [f16]) -> impl Iterator<Item = (f64, f64)> + 'a {
    q.iter().zip(row).map(|(&a, b)| (f64::from(a), b.to_f64()))
}

#[track_caller]
fn near(got: f32, (want, bound): (f64, f64), what: &str) {
    assert!((f64::from(got) - want).abs() <= bound, "{what}: {got} for {want} (bound {bound:e})");
}

fn check_rows(k: Kernels, g: usize, dim: usize, n: usize, seed: u64) {
    let mut noise = Noise(seed | 1);
    let (q, rows) = (noise.f32(g * dim), noise.f16(n * dim));
    let slices: Vec<&[f16]> = rows.chunks_exact(dim).collect();
    let (mut out, mut gathered) = (vec![f32::NAN; g * n], vec![f32::NAN; g * n]);
    k.dot_rows(&q, dim, &rows, &mut out);
    k.dot_gather(&q, dim, slices.iter().copied(), &mut gathered);
    assert_eq!(out, gathered, "{k:?} g {g} dim {dim} n {n}: the same tiles, the same bits");
    for h in 0..g {
        for r in 0..n {
            near(out[h * n + r], dot64(mixed(&q[h * dim..][..dim], slices[r])), "dot_rows");
        }
    }
    if n > 0 {
        let mut one = vec![f32::NAN; g];
        k.dot_group(&q, dim, slices[0], &mut one);
        for h in 0..g {
            near(one[h], dot64(mixed(&q[h * dim..][..dim], slices[0])), "dot_group");
        }
        near(k.dot(&q[..dim], slices[0]), dot64(mixed(&q[..dim], slices[0])), "dot");
    }

    let (w, start) = (noise.f32(g * n), noise.f32(g * dim));
    let (mut acc, mut gathered) = (start.clone(), start.clone());
    k.axpy_rows(&w, dim, &rows, &mut acc);
    k.axpy_gather(&w, dim, slices.iter().copied(), &mut gathered);
    assert_eq!(acc, gathered);
    for h in 0..g {
        for d in 0..dim {
            let terms = (0..n).map(|r| (f64::from(w[h * n + r]), slices[r][d].to_f64()));
            let first = std::iter::once((f64::from(start[h * dim + d]), 1.0));
            near(acc[h * dim + d], dot64(first.chain(terms)), "axpy_rows");
        }
    }
    if n > 0 {
        let (mut acc, mut twin) = (start.clone(), start);
        k.axpy_group(&w[..g], slices[0], &mut acc);
        k.axpy_rows(&w[..g], dim, &rows[..dim], &mut twin);
        assert_eq!(acc, twin);
    }
}

fn check_pairs(k: Kernels, dim: usize, seed: u64) {
    let mut noise = Noise(seed | 1);
    let (a, b) = (noise.f16(dim), noise.f16(dim));
    near(k.dot_f16(&a, &b), dot64(a.iter().zip(&b).map(|(x, y)| (x.to_f64(), y.to_f64()))), "dot_f16");
    let square = |(x, y): (&f16, &f16)| (x.to_f64() - y.to_f64(), x.to_f64() - y.to_f64());
    near(k.l2_sq_f16(&a, &b), dot64(a.iter().zip(&b).map(square)), "l2_sq_f16");

    let (x, start) = (noise.f32(dim), noise.f32(dim));
    let mut acc = start.clone();
    k.axpy_f32(0.3, &x, &mut acc);
    for d in 0..dim {
        near(
            acc[d],
            dot64([(f64::from(start[d]), 1.0), (0.3f32.into(), x[d].into())].into_iter()),
            "axpy_f32",
        );
    }
    let mut scaled = x.clone();
    k.scale(-2.5, &mut scaled);
    assert!(scaled.iter().zip(&x).all(|(s, x)| *s == -2.5 * x));
}

fn check_softmax(k: Kernels, n: usize, seed: u64) {
    let mut noise = Noise(seed | 1);
    let mut z: Vec<f32> = noise.f32(n).into_iter().map(|x| 60.0 * x).collect();
    if n > 4 {
        z[n / 2] = f32::NEG_INFINITY;
    }
    let m = k.max(&z);
    assert_eq!(m, z.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut e = z.clone();
    let sum = k.exp_sum(&mut e, m);
    let mut total = 0.0;
    for (z, e) in z.iter().zip(&e) {
        let x = f64::from(z - m);
        let want = if x < -87.0 { 0.0 } else { x.exp() };
        assert!((f64::from(*e) - want).abs() <= 2e-7 * want, "{k:?}: exp({x}) = {e}, not {want}");
        total += want;
    }
    assert!((f64::from(sum) - total).abs() <= 1e-6 * total);
}

fn check_at_least(k: Kernels, n: usize, seed: u64) {
    let z = Noise(seed | 1).f32(n);
    let limit = z.get(n / 2).copied().unwrap_or(0.3);
    let mut out = vec![u32::MAX; n];
    let hits = k.at_least(&z, limit, &mut out);
    let want: Vec<u32> = (0..n as u32).filter(|&i| z[i as usize] >= limit).collect();
    assert_eq!(out[..hits], want);
    assert_eq!(k.at_least(&vec![f32::NAN; n], limit, &mut out), 0);
}

fn check_gemm(k: Kernels, m: usize, n: usize, dim: usize, seed: u64) {
    let mut noise = Noise(seed | 1);
    let (a, b) = (noise.f32(m * dim), noise.f32(n * dim));
    let mut c = vec![f32::NAN; m * n];
    k.gemm_nt(&a, &b, dim, m, n, &mut c);
    // The same product with B stored the other way, added to ones.
    let plain: Vec<f32> = (0..dim * n).map(|i| b[(i % n) * dim + i / n]).collect();
    let mut added = vec![1.0; m * n];
    k.gemm_nn_add(&a, &plain, dim, m, n, &mut added);
    for i in 0..m {
        for j in 0..n {
            let terms = || (0..dim).map(|d| (f64::from(a[i * dim + d]), f64::from(b[j * dim + d])));
            near(c[i * n + j], dot64(terms()), "gemm_nt");
            near(added[i * n + j], dot64(terms().chain([(1.0, 1.0)])), "gemm_nn_add");
        }
    }
}

/// Every dim of the range once, with every group size and a changing number of rows.
#[test]
fn rows_for_all_dims_and_groups() {
    for k in paths() {
        for dim in 1..=300 {
            check_rows(k, 1 + dim % 8, dim, dim % 11, 77 + dim as u64);
            check_pairs(k, dim, 99 + dim as u64);
        }
        for g in 1..=8 {
            for dim in [64, 80, 96, 128, 256] {
                check_rows(k, g, dim, 41, 5);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows(g in 1usize..9, dim in 1usize..301, n in 0usize..70, seed: u64) {
        for k in paths() {
            check_rows(k, g, dim, n, seed);
        }
    }

    #[test]
    fn softmax(n in 0usize..300, seed: u64) {
        for k in paths() {
            check_softmax(k, n, seed);
            check_at_least(k, n, seed);
        }
    }

    #[test]
    fn products(m in 0usize..40, n in 0usize..80, dim in 1usize..200, seed: u64) {
        for k in paths() {
            check_gemm(k, m, n, dim, seed);
        }
    }

    #[test]
    fn conversions(bits in proptest::collection::vec(any::<u32>(), 0..100)) {
        let wide: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).filter(|x| !x.is_nan()).collect();
        let narrow: Vec<f16> = wide.iter().map(|&x| f16::from_f32(x)).collect();
        for k in paths() {
            let (mut down, mut up) = (vec![f16::NAN; wide.len()], vec![f32::NAN; wide.len()]);
            k.f32_to_f16(&wide, &mut down);
            k.f16_to_f32(&narrow, &mut up);
            prop_assert_eq!(&down, &narrow);
            prop_assert!(up.iter().zip(&narrow).all(|(a, b)| *a == b.to_f32()));
        }
    }
}

#[test]
fn every_f16_widens_exactly() {
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for k in paths() {
        let mut wide = vec![0.0; all.len()];
        k.f16_to_f32(&all, &mut wide);
        for (w, h) in wide.iter().zip(&all) {
            assert!(*w == h.to_f32() || w.is_nan() && h.is_nan());
        }
    }
}

#[test]
fn exponentials_over_the_whole_range() {
    let x: Vec<f32> = (0..2_000_000).map(|i| -88.0 * i as f32 / 2e6).collect();
    for k in paths() {
        let mut e = x.clone();
        k.exp_sum(&mut e, 0.0);
        assert_eq!(e[0], 1.0, "exp(0) is exact");
        for (x, e) in x.iter().zip(&e) {
            let want = if *x < -87.0 { 0.0 } else { f64::from(*x).exp() };
            assert!((f64::from(*e) - want).abs() <= 2e-7 * want, "{k:?}: exp({x}) = {e}, not {want}");
        }
    }
}

#[test]
fn exponentials_at_the_edges() {
    for k in paths() {
        for n in 1..70 {
            let mut z = vec![f32::NEG_INFINITY; n];
            assert_eq!(k.exp_sum(&mut z, 3.0), 0.0);
            assert_eq!(z, vec![0.0; n]);
            let mut z = vec![f32::NEG_INFINITY; n];
            assert_eq!(k.exp_sum(&mut z, f32::NEG_INFINITY), 0.0, "nothing visible");
            let mut z = vec![-f32::MAX; n];
            assert_eq!(k.exp_sum(&mut z, f32::MAX), 0.0, "the difference overflows");
            let mut z = vec![7.25; n];
            assert_eq!(k.exp_sum(&mut z, 7.25), n as f32, "uniform logits count exactly");
            z[n - 1] = f32::NAN;
            assert!(k.exp_sum(&mut z, 1.0).is_nan(), "a NaN does not vanish");
        }
        assert_eq!(k.max(&[]), f32::NEG_INFINITY);
    }
}

#[test]
fn one_path_gives_the_same_bits_again() {
    for k in paths() {
        let mut noise = Noise(42);
        let (q, rows) = (noise.f32(3 * 64), noise.f16(1000 * 64));
        let (mut first, mut second) = (vec![0.0; 3000], vec![0.0; 3000]);
        k.dot_rows(&q, 64, &rows, &mut first);
        k.dot_rows(&q, 64, &rows, &mut second);
        assert_eq!(first, second);
    }
}

#[test]
fn large_and_zero_products_stay_finite() {
    for k in paths() {
        // q . k = 64 * 1000 * 60000, far above the largest f16.
        let (q, row) = (vec![1000.0; 64], vec![f16::from_f32(60000.0); 64]);
        let exact = 64.0 * 1000.0 * f16::from_f32(60000.0).to_f32();
        assert!((k.dot(&q, &row) / exact - 1.0).abs() < 1e-6);
        assert_eq!(k.dot(&vec![0.0; 64], &row), 0.0);
    }
}

#[test]
fn wrong_lengths_panic() {
    let k = Kernels::native();
    let row = vec![f16::ONE; 8];
    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| k.dot_rows(&[0.0; 8], 8, &row, &mut [0.0; 2])));
    assert!(panics(&|| k.dot_rows(&[0.0; 8], 0, &row, &mut [])));
    assert!(panics(&|| k.dot_gather(&[0.0; 8], 8, [&row[..7]], &mut [0.0; 1])));
    assert!(panics(&|| k.axpy_rows(&[0.0; 2], 8, &row, &mut [0.0; 8])));
    assert!(panics(&|| k.gemm_nt(&[0.0; 8], &[0.0; 8], 8, 1, 2, &mut [0.0; 2])));
}

#[test]
fn every_available_path_can_be_forced() {
    for isa in Isa::available() {
        assert_eq!(Kernels::with(isa).map(|k| k.isa()), Some(isa));
    }
}

/// Run by the test below in a process of its own: the path is chosen once per process.
#[test]
fn prints_the_native_path() {
    match Kernels::from_env() {
        Ok(k) => println!("from_env {k:?} native {:?}", Kernels::native()),
        Err(error) => println!("refused: {error}; native {:?}", Kernels::native()),
    }
}

#[test]
fn the_environment_forces_a_path() {
    let Ok(exe) = std::env::current_exe() else { return };
    let said = |value: &str| {
        let args = ["--exact", "prints_the_native_path", "--nocapture"];
        let output = std::process::Command::new(&exe).args(args).env("RECOLLECT_KERNELS", value).output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    };
    for isa in Isa::available() {
        let want = format!("from_env Kernels({isa}) native Kernels({isa})");
        assert!(said(&isa.to_string()).contains(&want), "{}", said(&isa.to_string()));
    }
    let fastest = Isa::available().last().map(|isa| format!("from_env Kernels({isa})")).unwrap_or_default();
    assert!(said("auto").contains(&fastest) && said("").contains(&fastest));
    assert!(said("sse9").contains("refused: unknown kernel path \"sse9\""));
    let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available());
    if let Some(isa) = missing {
        assert!(said(&isa.to_string()).contains("is not available on this CPU"));
    }
}

proptest! {
    #[test]
    fn codes_give_the_same_products_on_every_path(
        fours in 1usize..70, blocks in 1usize..5, seed in any::<u64>(), extreme in any::<bool>(),
        runs in proptest::collection::vec((any::<u32>(), any::<u32>(), -9f32..9.0), 0..6),
    ) {
        let mut noise = Noise(seed | 1);
        let (dim, n) = (kernels::CODE_DIMS * fours, blocks * kernels::CODE_ROWS);
        let scales = noise.f32(n);
        let mut draw = |n: usize| -> Vec<i8> {
            let level = |x: f32| if extreme { 127.0 * x.signum() } else { (x * 127.0).round() };
            noise.f32(n).into_iter().map(|x| level(x) as i8).collect()
        };
        let (q, codes) = (draw(dim), draw(n * dim));
        let mut bytes = Vec::new();
        for (scales, codes) in scales.chunks(8).zip(codes.chunks(8 * dim)) {
            scales.iter().for_each(|s| bytes.extend(s.to_ne_bytes()));
            bytes.extend(codes.iter().map(|c| c.unsigned_abs()));
        }
        // Anywhere, of any length, in any order, the whole among them.
        let mut runs: Vec<kernels::CodeRun> = runs
            .into_iter()
            .map(|(first, len, parent)| {
                let first = first % n as u32;
                kernels::CodeRun { first, len: len % (n as u32 + 1 - first), parent }
            })
            .collect();
        runs.push(kernels::CodeRun { first: 0, len: n as u32, parent: 0.0 });
        let query = kernels::CodeQuery { q: &q, zero: 1000, step: 0.37 };
        let expected: Vec<f32> = runs
            .iter()
            .flat_map(|run| (run.first..run.first + run.len).map(|r| (r as usize, run.parent)))
            .map(|(r, parent)| {
                let code = |d: usize| codes[(r / 8 * fours + d / 4) * 32 + r % 8 * 4 + d % 4].unsigned_abs();
                let sum: i32 = (0..dim).map(|d| i32::from(q[d]) * i32::from(code(d))).sum();
                parent + (sum - 1000) as f32 * (0.37 * scales[r])
            })
            .collect();
        for k in paths() {
            let mut out = vec![-1.0; 3];
            k.dot_codes(&query, &bytes, &runs, &mut out);
            prop_assert_eq!(&out, &expected, "{:?}", k);
        }
    }
}
