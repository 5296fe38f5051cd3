//! How a product becomes a logit.

/// The attention description of a request: scale and soft-cap. Neither is guessed anywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Description {
    /// Multiplies q . k; usually 1 / sqrt(key dim).
    pub scale: f32,
    /// Squeezes logits into (-softcap, softcap) by a tanh.
    pub softcap: Option<f32>,
}

impl Description {
    /// The largest scale. With it, f16 keys of up to 4,096 elements, and queries up to [`Description::MAX_QUERY`], no logit leaves
    /// f32.
    pub const MAX_SCALE: f32 = 1e6;
    /// The largest magnitude of an element of a query.
    pub const MAX_QUERY: f32 = 1e20;

    /// Whether attention can be computed by a scale: above 0, since the best keys are those with the largest product, and
    /// at most [`Description::MAX_SCALE`].
    pub fn is_scale(scale: f32) -> bool {
        scale > 0.0 && scale <= Description::MAX_SCALE
    }

    /// A plain scale without a soft-cap.
    pub fn scaled(scale: f32) -> Description {
        Description { scale, softcap: None }
    }

    /// The logit of the raw product q . k.
    pub fn logit(&self, qk: f32) -> f32 {
        self.cap(self.scale * qk)
    }

    /// The logits of raw products, in place. A product of -inf, which stands for a hidden key, stays -inf.
    pub fn logits(&self, z: &mut [f32]) {
        if self.softcap.is_none() && self.scale > 0.0 {
            return z.iter_mut().for_each(|z| *z *= self.scale);
        }
        for z in z.iter_mut().filter(|z| **z > f32::NEG_INFINITY) {
            *z = self.logit(*z);
        }
    }

    /// The logit of an already scaled product.
    pub(crate) fn cap(&self, z: f32) -> f32 {
        match self.softcap {
            Some(cap) => cap * (z / cap).tanh(),
            None => z,
        }
    }

    /// [`Description::cap`] on all of `z`; costs nothing without a soft-cap.
    pub(crate) fn cap_all(&self, z: &mut [f32]) {
        if self.softcap.is_some() {
            for z in z {
                *z = self.cap(*z);
            }
        }
    }
}
