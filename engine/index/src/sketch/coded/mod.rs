//! The default sketch: buckets by position, a mean in each, and what a token deviates from it in few bits.
//!
//! The same idea as the count sketch, with three things changed where that one loses:
//! - **Bucket choice keeps locality.** A bucket is [`BUCKET`] consecutive tokens. After RoPE, neighbours are alike in all
//!   slowly turning dimensions, so that their mean says more about a key than that of a k-means cluster of the same size
//!   (measured), and neither ids nor assignments are stored.
//! - **Collisions are told apart.** Every token keeps its deviation, turned into uncorrelated channels in the metric of
//!   the watched queries, where an error costs what it does to a logit (`basis`). Channels get bits by their variance,
//!   keys and values from one account (`allocate`, `step`). One direction of the keys of a layer may have 95 % of the
//!   variance that queries see: grouping by channel is worth 2 to 3 bits an element.
//! - **Candidates are a matter of degree.** A token is held exactly, or in one of five rates, by the attention it had and
//!   the error that its code makes (`classes`).
//!
//! Layout: per bucket an offset and how many members each class has; then, bucket by bucket and class by class, a row of
//! whole bytes for each member: its codes channel by channel, those of the key before those of the value, without gaps. All
//! rows of a class are alike, so that one table finds the codes in any of them (`kernels::Packing`). The classes by token are
//! needed only to say which token a member is: for reconstruction, selection and the ends of a range.

mod allocate;
mod attend;
mod basis;
mod bits;
mod build;
mod classes;
mod fold;
mod jacobi;
mod step;

use half::f16;
use kernels::{PackedRows, Packing};

use self::basis::Basis;
use self::classes::{CLASS_BITS, CLASSES, EXACT};
use self::step::Step;
use super::SketchBytes;

pub use self::attend::CodedScratch;
pub(super) use self::build::build;

/// Tokens of a bucket.
pub const BUCKET: usize = 128;

/// Codes of every token of a span, or the token itself.
#[derive(Clone, Debug)]
pub struct Coded {
    tokens: usize,
    key_dim: usize,
    value_dim: usize,
    keys: Basis,
    values: Basis,
    /// How each class codes the channels of keys, then of values: [CLASSES - 1][key_dim + value_dim].
    steps: Vec<Vec<Step>>,
    /// Bytes of a row of each class.
    strides: [usize; CLASSES - 1],
    /// [buckets, key_dim]
    key_means: Vec<f16>,
    /// [buckets, value_dim]
    value_means: Vec<f16>,
    buckets: Vec<Bucket>,
    /// Rows of codes, and as many bytes more as a kernel may read.
    codes: Vec<u8>,
    /// Rows of exact tokens: [exact, key_dim], [exact, value_dim].
    exact_keys: Vec<f16>,
    exact_values: Vec<f16>,
    /// The class of each token, in three bits.
    classes: Vec<u8>,
}

/// Where the members of a bucket are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bucket {
    /// First byte of the codes.
    codes: u64,
    /// First row of the exact tokens.
    exact: u32,
    /// Members of each class, at most [`BUCKET`] together.
    members: [u8; CLASSES],
}

/// The coded members of one class of one bucket.
#[derive(Clone, Copy, Debug)]
struct Run {
    bucket: usize,
    class: usize,
    members: usize,
    /// First byte of the first row.
    codes: usize,
    /// Number of the first member among all coded tokens, in the order of storage.
    place: usize,
}

impl Coded {
    /// Tokens held.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens in each class, the exact ones last.
    pub fn members(&self) -> Vec<usize> {
        (0..CLASSES).map(|c| self.buckets.iter().map(|b| usize::from(b.members[c])).sum()).collect()
    }

    /// Bytes of everything.
    pub fn bytes(&self) -> SketchBytes {
        let means = 2 * (self.key_means.len() + self.value_means.len());
        let steps = self.steps.iter().map(|s| size_of::<Step>() * s.len()).sum::<usize>();
        let buckets = size_of::<Bucket>() * self.buckets.len();
        let exact = 2 * (self.exact_keys.len() + self.exact_values.len());
        SketchBytes {
            attention: means
                + steps
                + buckets
                + exact
                + self.codes.len()
                + self.keys.bytes()
                + self.values.bytes(),
            reconstruction: self.classes.len(),
        }
    }

    /// Key and value of a token: as it came, or the mean of its bucket and the deviation that its code stands for. None
    /// for a token that does not exist.
    pub fn reconstruct(&self, token: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        if token >= self.tokens {
            return None;
        }
        let (b, class) = (token / BUCKET, self.class(token));
        let bucket = &self.buckets[b];
        let member = (b * BUCKET..token).filter(|&t| self.class(t) == class).count();
        let widened = |rows: &[f16], at: usize, dim: usize| -> Vec<f32> {
            rows[at * dim..(at + 1) * dim].iter().map(|x| x.to_f32()).collect()
        };
        if class == EXACT {
            let at = bucket.exact as usize + member;
            let exact = (&self.exact_keys, &self.exact_values);
            return Some((widened(exact.0, at, self.key_dim), widened(exact.1, at, self.value_dim)));
        }
        let run = self.runs(b).find(|run| run.class == usize::from(class))?;
        let mut at = 8 * (run.codes + member * self.strides[run.class]);
        let mut channels = |steps: &[Step]| -> Vec<f32> {
            let mut value = |step: &Step| {
                let code = bits::get(&self.codes, at, step.bits);
                at += usize::from(step.bits);
                if step.bits > 0 { step.value(code) } else { 0.0 }
            };
            steps.iter().map(&mut value).collect()
        };
        let steps = self.steps[run.class].split_at(self.key_dim);
        let mut key = widened(&self.key_means, b, self.key_dim);
        let mut value = widened(&self.value_means, b, self.value_dim);
        self.keys.add(&channels(steps.0), &mut key);
        self.values.add(&channels(steps.1), &mut value);
        Some((key, value))
    }

    fn class(&self, token: usize) -> u8 {
        bits::get(&self.classes, token * usize::from(CLASS_BITS), CLASS_BITS) as u8
    }

    /// Exact tokens of the buckets before this one, which may be the one after the last.
    fn exact_before(&self, bucket: usize) -> usize {
        let rows = self.exact_keys.len() / self.key_dim;
        self.buckets.get(bucket).map_or(rows, |bucket| bucket.exact as usize)
    }

    /// The coded classes of a bucket that have members.
    fn runs(&self, bucket: usize) -> impl Iterator<Item = Run> + '_ {
        let Bucket { codes, members, .. } = self.buckets[bucket];
        let (mut codes, mut place) = (codes as usize, bucket * BUCKET - self.exact_before(bucket));
        (0..CLASSES - 1).filter_map(move |class| {
            let run = Run { bucket, class, members: usize::from(members[class]), codes, place };
            codes += run.members * self.strides[class];
            place += run.members;
            (run.members > 0).then_some(run)
        })
    }

    /// The rows of a run, for a kernel.
    fn rows<'a>(&'a self, run: &Run, packing: &'a Packing) -> PackedRows<'a> {
        PackedRows {
            packing,
            bytes: &self.codes[run.codes..],
            stride: self.strides[run.class],
            count: run.members,
        }
    }
}
