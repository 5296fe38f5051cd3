//! `ReadSamples`, and what `Inspect` tells of a session's terms and truncations.

use super::*;

async fn page(
    n: &Arc<Node>,
    layer: u32,
    kv_head: u32,
    begin: u64,
    end: u64,
) -> Result<v1::ReadSamplesResponse, Status> {
    n.read_samples(v1::ReadSamplesRequest { session: vec![1; 16], layer, kv_head, begin, end }).await
}

/// A chunk with a query at every second position, all of whose elements are the position plus the head's number.
fn asked(f: &v1::Fingerprint, layer: u32, begin: u64, tokens: u64) -> v1::AppendChunk {
    let mut c = chunk(1, f, layer, begin, tokens);
    c.q_pos = (begin..begin + tokens).step_by(2).collect();
    let heads = (0..f.q_heads).map(|h| half::f16::from_f32(h as f32));
    let q: Vec<half::f16> = c
        .q_pos
        .iter()
        .flat_map(|&p| heads.clone().map(move |h| h + half::f16::from_f32(p as f32)))
        .flat_map(|x| std::iter::repeat_n(x, f.key_dim as usize))
        .collect();
    let shape = [c.q_pos.len(), f.q_heads as usize, f.key_dim as usize];
    c.q = Some(wire::tensor::from_f16(&shape, &q));
    c.q_window = 4;
    c
}

/// Samples of spans and of the tail are told as they were given, in pages that fit a message, without those of tokens that
/// were taken back.
#[tokio::test]
async fn samples_of_a_head_come_in_pages_and_none_is_lost() {
    let f = fingerprint(2, 4, 2, 8, 8);
    // 20 bytes and two queries of 16 bytes each: room for 24 samples beside 256 bytes.
    let n = node(|c| c.max_message_bytes = 256 + 24 * 52 + 51);
    n.open(open(1, &f)).await.unwrap();
    for layer in 0..2 {
        for (begin, tokens, seal_to) in [(0, 8, 8), (8, 20, 20), (28, 20, 40), (48, 20, 60), (68, 20, 60)] {
            let mut c = asked(&f, layer, begin, tokens);
            c.seal_to = (seal_to > begin).then_some(seal_to);
            n.append(c).await.unwrap();
        }
    }
    n.wait_ready(v1::WaitReadyRequest { session: vec![1; 16], timeout_ms: 60_000 }).await.unwrap();
    // Those of the first span are not kept when it gets no index: nothing is built from them.
    let kept: Vec<u64> = (8..88).step_by(2).collect();
    let (mut pos, mut from, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(begin) = from {
        let m = page(&n, 1, 1, begin, 88).await.unwrap();
        from = m.next;
        let read = wire::samples::Samples::read(m, &(begin..88), (2, 8)).unwrap();
        assert!(read.pos.len() == 24 || from.is_none(), "{} in a page", read.pos.len());
        for (j, &p) in read.pos.iter().enumerate() {
            assert_eq!(read.seen[j], (p + 1).saturating_sub(4));
            let want = [2.0, 3.0].map(|h| half::f16::from_f32(h + p as f32));
            assert!(read.q[j * 16..j * 16 + 8].iter().all(|&x| x == want[0]));
            assert!(read.q[j * 16 + 8..j * 16 + 16].iter().all(|&x| x == want[1]));
        }
        pos.extend(read.pos);
        pages += 1;
    }
    assert_eq!((&pos, pages), (&kept, 2));
    let m = page(&n, 0, 0, 33, 43).await.unwrap();
    assert_eq!((m.pos, m.next), (vec![34, 36, 38, 40, 42], None));

    let terms = told(&n, 1).await.terms.unwrap();
    assert_eq!((terms.truncations, terms.lowest_truncation), (0, None));
    let heads = terms.owned.iter().map(|r| (r.layer_begin, r.layer_end, r.kv_head_begin, r.kv_head_end));
    assert_eq!(heads.collect::<Vec<_>>(), [(0, 1, 0, 2), (1, 2, 0, 2)]);
    for length in [70, 50] {
        n.truncate(v1::TruncateRequest { session: vec![1; 16], length }).await.unwrap();
    }
    let terms = told(&n, 1).await.terms.unwrap();
    assert_eq!((terms.truncations, terms.lowest_truncation), (2, Some(50)));
    let m = page(&n, 1, 0, 40, 88).await.unwrap();
    assert_eq!(m.pos, [40, 42, 44, 46, 48]);
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused_by_name() {
    let f = fingerprint(2, 4, 2, 8, 8);
    let n = node(|c| c.max_message_bytes = 300);
    n.open(open(1, &f)).await.unwrap();
    for (ask, words) in [
        (page(&n, 2, 0, 0, 9).await, "layer: 2, must be below 2"),
        (page(&n, 0, 2, 0, 9).await, "kv_head_begin"),
        (page(&n, 0, 0, 9, 9).await, "begin: 9, must be below end = 9"),
        (page(&n, 0, 0, 0, 9).await, "a sample of 52 bytes does not fit server.max_message = 300"),
    ] {
        let status = ask.unwrap_err();
        assert!(status.message().contains(words), "{status}");
    }
    let unknown = v1::ReadSamplesRequest { session: vec![9; 16], end: 1, ..Default::default() };
    assert_eq!(n.read_samples(unknown).await.unwrap_err().code(), Code::NotFound);
}
