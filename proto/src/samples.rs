//! `ReadSamplesResponse`, checked.

use crate::tensor::{Dim, read_f16};
use crate::{WireError, v1};
use half::f16;
use std::ops::Range;

/// A page of sampled queries of one head.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// `[m]`, strictly ascending.
    pub pos: Vec<u64>,
    /// `[m]`; query j asks an index for keys below `seen[j]`, at most `pos[j] + 1`.
    pub seen: Vec<u64>,
    /// `[m, group, key_dim]`.
    pub q: Vec<f16>,
    /// Where the next page begins.
    pub next: Option<u64>,
}

impl Samples {
    /// From the answer to a question for `positions` of a head of this group and key dim.
    pub fn read(
        m: v1::ReadSamplesResponse,
        positions: &Range<u64>,
        (group, key_dim): (usize, usize),
    ) -> Result<Self, WireError> {
        check(&m.pos, &m.seen, positions)?;
        let after = m.pos.last().map_or(positions.start, |&last| last + 1);
        // A page that brings nothing would be asked for again and again.
        if let Some(next) = m.next
            && (m.pos.is_empty() || !(after..positions.end).contains(&next))
        {
            let want = format!("in {after}..{}, after at least one sample", positions.end);
            return Err(WireError::range("next", next, want));
        }
        let q = match (&m.q, m.pos.len()) {
            (None, 0) => Vec::new(),
            (q, n) => read_f16(q.as_ref(), "q", &[Dim::Is(n), Dim::Is(group), Dim::Is(key_dim)])?.0,
        };
        Ok(Self { pos: m.pos, seen: m.seen, q, next: m.next })
    }
}

/// Whether these are positions of samples, and what they see, as every reader of samples needs them.
pub fn check(pos: &[u64], seen: &[u64], positions: &Range<u64>) -> Result<(), WireError> {
    if seen.len() != pos.len() {
        return Err(WireError::range("seen", format!("{} numbers", seen.len()), format!("{}", pos.len())));
    }
    let mut least = positions.start;
    for (i, (&p, &s)) in pos.iter().zip(seen).enumerate() {
        if !(least..positions.end).contains(&p) {
            return Err(WireError::range(&format!("pos[{i}]"), p, format!("in {least}..{}", positions.end)));
        }
        if s > p + 1 {
            return Err(WireError::range(&format!("seen[{i}]"), s, format!("at most {}", p + 1)));
        }
        least = p + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::from_f16;

    #[test]
    fn what_is_no_page_is_refused_by_name() {
        let good = v1::ReadSamplesResponse {
            pos: vec![3, 7],
            seen: vec![4, 0],
            q: Some(from_f16(&[2, 1, 2], &[f16::ONE; 4])),
            next: Some(8),
        };
        let read = |m: &v1::ReadSamplesResponse| Samples::read(m.clone(), &(2..9), (1, 2));
        assert_eq!(read(&good).unwrap().pos, [3, 7]);
        let last = v1::ReadSamplesResponse { next: None, ..Default::default() };
        assert_eq!(read(&last).unwrap(), Samples::default());
        type Spoil = fn(&mut v1::ReadSamplesResponse);
        let cases: [(&str, Spoil); 8] = [
            ("pos[0]: 1, must be in 2..9", |m| m.pos[0] = 1),
            ("pos[1]: 3, must be in 4..9", |m| m.pos[1] = 3),
            ("pos[1]: 9", |m| m.pos[1] = 9),
            ("seen[0]: 5, must be at most 4", |m| m.seen[0] = 5),
            ("seen: 1 numbers", |m| m.seen.truncate(1)),
            ("q: missing", |m| m.q = None),
            ("next: 7, must be in 8..9", |m| m.next = Some(7)),
            ("next: 4", |m| *m = v1::ReadSamplesResponse { next: Some(4), ..Default::default() }),
        ];
        for (words, spoil) in cases {
            let mut m = good.clone();
            spoil(&mut m);
            let line = read(&m).unwrap_err().to_string();
            assert!(line.starts_with(words), "{line}");
        }
    }
}
