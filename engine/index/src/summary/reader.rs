//! Which codes the query heads of a group want, and in which order they are read.

use std::ops::Range;

use kernels::CodeQuery;

/// Readers whose wishes are merged.
pub(super) const TOGETHER: usize = 8;
/// Most vectors of one read, so that its products stay near.
const MOST: u32 = 256;

/// Vectors that were coded as deviations from one parent, and what the parent scored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    pub children: Range<u32>,
    pub parent: f32,
}

/// A query head: its query in integers, what it wants to be scored, and the scores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    pub(super) q: Vec<i8>,
    pub(super) step: f32,
    /// What the code of 0 adds to every sum.
    pub(super) zero: i32,
    /// Ascending.
    pub families: Vec<Family>,
    /// The children of all families in turn.
    pub scores: Vec<f32>,
    next: usize,
}

/// Vectors that are read in one go, for some of the readers.
#[derive(Clone, Debug)]
pub(super) struct Read {
    from: u32,
    to: u32,
    /// A bit for each reader.
    mask: u8,
}

/// The reads of all readers in the order of memory, and the products of the current one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(super) reads: Vec<Read>,
    pub(super) products: Vec<f32>,
}

impl Reader {
    pub(super) fn query(&self) -> CodeQuery<'_> {
        CodeQuery { q: &self.q, zero: self.zero, step: self.step }
    }

    /// Takes the products of the families up to `end`, of which the first begins the slice.
    pub(super) fn take(&mut self, products: &[f32], end: usize) {
        let mut left = products;
        while let Some(family) = self.families.get(self.next).filter(|f| f.children.end as usize <= end) {
            let now;
            (now, left) = left.split_at(family.children.len());
            self.scores.extend(now.iter().map(|product| family.parent + product));
            self.next += 1;
        }
    }
}

impl Read {
    /// The vectors.
    pub fn vectors(&self) -> Range<usize> {
        self.from as usize..self.to as usize
    }

    /// The number of readers.
    pub fn count(&self) -> usize {
        self.mask.count_ones() as usize
    }

    /// Their numbers, ascending.
    pub fn readers(&self) -> impl Iterator<Item = usize> + use<> {
        let mask = self.mask;
        (0..TOGETHER).filter(move |at| mask >> at & 1 == 1)
    }
}

impl Plan {
    /// Plans the reads for up to [`TOGETHER`] readers. Families that follow each other are read in one go.
    pub(super) fn merge(&mut self, readers: &mut [Reader]) {
        self.reads.clear();
        for reader in readers.iter_mut() {
            reader.next = 0;
            reader.scores.clear();
        }
        let wish = |reader: &Reader| reader.families.get(reader.next).map(|f| f.children.clone());
        while let Some(next) = readers.iter().filter_map(wish).min_by_key(|children| children.start) {
            let mut mask = 0;
            for (at, reader) in readers.iter_mut().enumerate() {
                if wish(reader).is_some_and(|children| children.start == next.start) {
                    mask |= 1 << at;
                    reader.next += 1;
                }
            }
            match self.reads.last_mut() {
                Some(last) if last.to == next.start && last.mask == mask && next.end - last.from <= MOST => {
                    last.to = next.end;
                }
                _ => self.reads.push(Read { from: next.start, to: next.end, mask }),
            }
        }
        readers.iter_mut().for_each(|reader| reader.next = 0);
    }
}
