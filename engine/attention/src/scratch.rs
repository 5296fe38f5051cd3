//! Reusable buffers.

/// Memory that [`attend_range`](crate::attend_range) and [`attend_ids`](crate::attend_ids) work in, kept between calls.
/// What it holds never matters: every element is written before it is read.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// Scaled queries: [g, key_dim].
    pub(crate) q: Vec<f32>,
    /// Scores, then weights, of a block: [g, rows].
    pub(crate) scores: Vec<f32>,
    /// Unnormalised outputs: [g, value_dim].
    pub(crate) acc: Vec<f32>,
    /// Running maxima: [g].
    pub(crate) m: Vec<f32>,
    /// Running masses: [g].
    pub(crate) l: Vec<f64>,
}

impl Scratch {
    /// Empty; grows on first use.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Fills everything with NaN. For tests that show that the content never matters.
    pub fn poison(&mut self) {
        for buffer in [&mut self.q, &mut self.scores, &mut self.acc, &mut self.m] {
            buffer.resize(buffer.capacity(), f32::NAN);
            buffer.fill(f32::NAN);
        }
        self.l.fill(f64::NAN);
    }
}

/// Sets the length, leaving the content unspecified.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
