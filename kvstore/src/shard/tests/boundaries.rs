//! Every token is counted once, at every length around every boundary.

use super::*;
use attention::EXTENT_TOKENS;
use wire::convert::Budget;

fn budget(row: v1::AttendRow, budget: Budget, estimate: bool) -> v1::AttendRow {
    v1::AttendRow { budget: Some(budget.write()), estimate, ..row }
}

/// With all logits equal, l is the exact count.
async fn counts(node: &Arc<Node>, f: &v1::Fingerprint, begin: u64, end: u64) {
    let all = ask(node, row(1, f, 0, begin, end, true)).await;
    assert_eq!(all.error, None);
    let n = (end - begin) as f32;
    assert!(mass(&all).iter().all(|&l| l == n), "{begin}..{end}: {:?}", mass(&all));
    assert_eq!(all.stats.unwrap().visible_tokens, end - begin);
    let r = row(1, f, 0, begin, end, true);
    let some = ask(node, budget(r, Budget::TopK(3), true)).await;
    let l = mass(&some);
    assert!(l.iter().all(|l| (l - n).abs() <= n * 1e-5), "{begin}..{end} estimated: {l:?}");
}

#[tokio::test]
async fn uniform_keys_around_every_boundary() {
    let f = fingerprint(1, 4, 2, 8, 4);
    let n = node(|c| c.seal_tokens = 1 << 20);
    filled(&n, &f, open(1, &f), 100, &[16, 60]).await;
    for begin in [0, 1, 15, 16, 17, 59, 60, 61, 99, 100] {
        for end in [0, 1, 15, 16, 17, 59, 60, 61, 99, 100] {
            if begin <= end {
                counts(&n, &f, begin, end).await;
            }
        }
    }
}

#[tokio::test]
async fn an_extent_and_one_more() {
    let f = fingerprint(1, 1, 1, 2, 2);
    let n = node(|c| c.index_min_tokens = 1 << 30);
    let extent = EXTENT_TOKENS as u64;
    let tokens = 2 * extent + 3;
    filled(&n, &f, open(1, &f), tokens, &[5, extent + 6]).await;
    for edge in [5, extent, extent + 5, extent + 6, 2 * extent + 6, tokens] {
        for end in [edge - 1, edge, edge + 1] {
            if end <= tokens {
                counts(&n, &f, 0, end).await;
                counts(&n, &f, end - 1, end).await;
            }
        }
    }
    assert_exact(&f, &ask(&n, row(1, &f, 0, 3, tokens - 1, false)).await, 0, 3, tokens - 1);
}

#[tokio::test]
async fn values_and_heads_are_the_right_ones() {
    for (q_heads, kv_heads, kd, vd) in [(4, 4, 80, 80), (28, 4, 128, 128), (3, 1, 64, 32), (9, 3, 64, 64)] {
        let f = fingerprint(2, q_heads, kv_heads, kd, vd);
        let n = node(|_| {});
        filled(&n, &f, open(1, &f), 70, &[8, 50]).await;
        for layer in 0..2 {
            let r = ask(&n, row(1, &f, layer, 3, 69, false)).await;
            assert_exact(&f, &r, layer, 3, 69);
        }
        // Some of the heads only.
        let mut part = row(1, &f, 1, 0, 70, false);
        let (group, kd) = ((q_heads / kv_heads) as usize, kd as usize);
        part.kv_head_begin = kv_heads - 1;
        part.kv_head_count = 1;
        let q = query(&f, false);
        let last = &q[q.len() - group * kd..];
        part.q = Some(wire::tensor::from_f32(&[group, kd], last));
        let r = ask(&n, part).await;
        let want = exact(&f, 1, 0, 70);
        for (h, m) in floats(&r.m).iter().enumerate() {
            assert!((f64::from(*m) - want[want.len() - group + h].0).abs() < 1e-4);
        }
    }
}

#[tokio::test]
async fn decode_appends_before_it_attends_and_seals_on_the_way() {
    let f = fingerprint(2, 4, 2, 8, 8);
    let n = node(|c| c.seal_tokens = 8);
    filled(&n, &f, open(1, &f), 20, &[4, 16]).await;
    for position in 20..60 {
        for layer in 0..2 {
            let mut r = row(1, &f, layer, 2, position + 1, false);
            r.token = Some(token(&f, layer, position));
            let answer = ask(&n, r).await;
            assert_exact(&f, &answer, layer, 2, position + 1);
            let watermark = if layer == 0 { position } else { position + 1 };
            assert_eq!(answer.watermark, watermark);
        }
    }
    let told = told(&n, 1).await;
    let ends: Vec<u64> =
        told.spans.iter().filter(|s| s.layer == 0 && s.kv_head == 0).map(|s| s.end).collect();
    assert_eq!(ends, [4, 16, 24, 32, 40, 48, 56]);
    assert_eq!((told.watermark, told.fresh_tokens), (60, 4));
}

#[tokio::test]
async fn truncated_tokens_have_no_weight() {
    let f = fingerprint(1, 2, 1, 8, 8);
    for cut in [0, 1, 15, 16, 17, 39, 40, 41, 49, 50] {
        let n = node(|_| {});
        filled(&n, &f, open(1, &f), 50, &[16, 40]).await;
        let request = v1::TruncateRequest { session: vec![1; 16], length: cut };
        assert_eq!(n.truncate(request).await.unwrap().watermark, cut);
        let beyond = refused(&n, row(1, &f, 0, 0, cut + 1, true)).await;
        assert_eq!(beyond.code(), Code::OutOfRange);
        counts(&n, &f, 0, cut).await;
        // Other tokens take their places: positions of another layer's numbers.
        let g = fingerprint(8, 2, 1, 8, 8);
        let mut other = chunk(1, &g, 7, cut, 30);
        other.layer = 0;
        n.append(other).await.unwrap();
        counts(&n, &f, 0, cut + 30).await;
        assert_exact(&g, &ask(&n, row(1, &f, 0, cut, cut + 30, false)).await, 7, cut, cut + 30);
        if cut > 0 {
            assert_exact(&f, &ask(&n, row(1, &f, 0, 0, cut, false)).await, 0, 0, cut);
        }
        let all = n.read_rows(v1::ReadRowsRequest {
            session: vec![1; 16],
            begin: 0,
            end: cut + 30,
            ..Default::default()
        });
        let k = all.await.unwrap().k.unwrap();
        let want: Vec<u8> = (0..cut + 30)
            .flat_map(|t| (0..8).map(move |d| (t, d)))
            .flat_map(|(t, d)| element(if t < cut { 0 } else { 7 }, 0, t, d, false).to_le_bytes())
            .collect();
        assert!(k.data == want, "cut at {cut}");
    }
}

#[tokio::test]
async fn an_indexed_span_counts_and_masks_too() {
    let f = fingerprint(1, 2, 1, 16, 16);
    let n = node(|_| {});
    let mut o = open(1, &f);
    o.index = v1::IndexKind::Graph as i32;
    o.deterministic = true;
    n.open(o).await.unwrap();
    let mut c = chunk(1, &f, 0, 0, 3000);
    let q: Vec<half::f16> = (0..375 * 2 * 16).map(|i| half::f16::from_f32((i as f32 * 0.31).sin())).collect();
    c.q_pos = (0..375).map(|j| j * 8).collect();
    c.q = Some(wire::tensor::from_f16(&[375, 2, 16], &q));
    c.seal_to = Some(2900);
    n.append(c).await.unwrap();
    for (begin, end) in [(0, 3000), (0, 2900), (1, 2901), (700, 1800), (2899, 3000)] {
        counts(&n, &f, begin, end).await;
        assert_exact(&f, &ask(&n, row(1, &f, 0, begin, end, false)).await, 0, begin, end);
    }
    let told = told(&n, 1).await;
    let span = &told.spans[0];
    assert!(span.ready && span.index_bytes > 0 && told.index_bytes == span.index_bytes, "{span:?}");
    assert_eq!(span.index, v1::IndexKind::Graph as i32);
}
