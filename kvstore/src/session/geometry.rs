//! What a session's tensors must look like: the checked part of its fingerprint.

use attention::Description;
use std::ops::Range;
use tonic::Status;
use wire::{WireError, v1};

/// Layers, heads and dimensions of one model, all at least 1, `q_heads` a multiple of `kv_heads`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Query heads for each KV head.
    pub group: usize,
    /// Elements of a key and of a query.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

const MAX_LAYERS: u32 = 4096;
const MAX_HEADS: u32 = 4096;
const MAX_DIM: u32 = 4096;

impl Geometry {
    /// Checks a fingerprint. Only F16 KV is stored.
    pub fn read(f: &v1::Fingerprint) -> Result<Self, WireError> {
        let within = |field: &str, got: u32, max: u32| {
            if (1..=max).contains(&got) {
                Ok(got as usize)
            } else {
                Err(WireError::range(&format!("fingerprint.{field}"), got, format!("in 1..={max}")))
            }
        };
        let layers = within("layers", f.layers, MAX_LAYERS)?;
        let q_heads = within("q_heads", f.q_heads, MAX_HEADS)?;
        let kv_heads = within("kv_heads", f.kv_heads, MAX_HEADS)?;
        let key_dim = within("key_dim", f.key_dim, MAX_DIM)?;
        let value_dim = within("value_dim", f.value_dim, MAX_DIM)?;
        if !q_heads.is_multiple_of(kv_heads) {
            return Err(WireError::range(
                "fingerprint.q_heads",
                q_heads,
                format!("a multiple of kv_heads = {kv_heads}"),
            ));
        }
        if f.kv_dtype != v1::DType::F16 as i32 {
            let got = v1::DType::try_from(f.kv_dtype).map_or("unknown", |d| d.as_str_name());
            return Err(WireError::range("fingerprint.kv_dtype", got, "D_TYPE_F16, the only stored type"));
        }
        if !Description::is_scale(f.scale) {
            let limit = format!("above 0 and at most {:e}", Description::MAX_SCALE);
            return Err(WireError::range("fingerprint.scale", f.scale, limit));
        }
        if !matches!(v1::Provenance::try_from(f.provenance), Ok(p) if p != v1::Provenance::Unspecified) {
            return Err(WireError::range(
                "fingerprint.provenance",
                f.provenance,
                "exact, budget or degraded",
            ));
        }
        Ok(Self { layers, kv_heads, group: q_heads / kv_heads, key_dim, value_dim })
    }

    /// Bytes of one token of one head: key and value in f16.
    pub fn row_bytes(&self) -> u64 {
        2 * (self.key_dim as u64 + self.value_dim as u64)
    }

    /// Checks a layer number and a range of KV heads; `field` prefixes the names in errors.
    pub fn heads(
        &self,
        field: &str,
        layer: u32,
        begin: u32,
        count: usize,
    ) -> Result<(usize, Range<usize>), WireError> {
        if layer as usize >= self.layers {
            return Err(WireError::range(&format!("{field}layer"), layer, format!("below {}", self.layers)));
        }
        let begin = begin as usize;
        if count == 0 || begin.saturating_add(count) > self.kv_heads {
            return Err(WireError::range(
                &format!("{field}kv_head_begin"),
                format!("{begin} with {count} heads"),
                format!("within {} KV heads", self.kv_heads),
            ));
        }
        Ok((layer as usize, begin..begin + count))
    }

    /// The heads a session asks this shard to own, as a bitmap over (layer, KV head); overlaps are refused.
    pub fn owned(&self, ranges: &[v1::HeadRange]) -> Result<Vec<bool>, WireError> {
        let mut owned = vec![false; self.layers * self.kv_heads];
        if ranges.is_empty() {
            return Err(WireError::missing("owned"));
        }
        for (i, r) in ranges.iter().enumerate() {
            let ordered = r.layer_begin < r.layer_end && r.kv_head_begin < r.kv_head_end;
            if !ordered || r.layer_end as usize > self.layers || r.kv_head_end as usize > self.kv_heads {
                return Err(WireError::range(
                    &format!("owned[{i}]"),
                    format!(
                        "layers {}..{}, KV heads {}..{}",
                        r.layer_begin, r.layer_end, r.kv_head_begin, r.kv_head_end
                    ),
                    format!("not empty and within {} x {}", self.layers, self.kv_heads),
                ));
            }
            for layer in r.layer_begin..r.layer_end {
                for head in r.kv_head_begin..r.kv_head_end {
                    let slot = &mut owned[layer as usize * self.kv_heads + head as usize];
                    if std::mem::replace(slot, true) {
                        return Err(WireError::range(
                            &format!("owned[{i}]"),
                            format!("layer {layer}, KV head {head} again"),
                            "each head once",
                        ));
                    }
                }
            }
        }
        Ok(owned)
    }
}

/// Bytes to set aside for `tokens` tokens of `heads` heads: KV with the growth step of the tail, and indexes.
///
/// `index_bytes` is per token and head. An overflow is refused as any other amount that does not fit.
pub fn reservation(geometry: &Geometry, heads: u64, tokens: u64, index_bytes: u64) -> Result<u64, Status> {
    let rounded = super::fresh::capacity(tokens);
    let bytes = rounded.checked_mul(geometry.row_bytes() + index_bytes).and_then(|b| b.checked_mul(heads));
    bytes.ok_or_else(|| {
        Status::resource_exhausted(format!(
            "reserve_tokens = {tokens} over {heads} heads is beyond any {}",
            crate::admission::SETTING
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fingerprint;

    #[test]
    fn fingerprints_that_cannot_be_served() {
        type Spoil = fn(&mut v1::Fingerprint);
        let cases: &[(&str, Spoil)] = &[
            ("layers", |f| f.layers = 0),
            ("q_heads", |f| f.q_heads = 7),
            ("kv_heads", |f| f.kv_heads = 0),
            ("key_dim", |f| f.key_dim = 1 << 20),
            ("value_dim", |f| f.value_dim = 0),
            ("kv_dtype", |f| f.kv_dtype = v1::DType::Bf16 as i32),
            ("kv_dtype", |f| f.kv_dtype = 77),
            ("scale", |f| f.scale = f32::NAN),
            ("provenance", |f| f.provenance = 0),
        ];
        for (field, spoil) in cases {
            let mut f = fingerprint(2, 4, 2, 8, 8);
            spoil(&mut f);
            let e = Geometry::read(&f).unwrap_err().to_string();
            assert!(e.contains(&format!("fingerprint.{field}")), "{e}");
        }
    }

    #[test]
    fn owned_heads_lie_inside_and_once() {
        let g = Geometry::read(&fingerprint(2, 4, 2, 8, 8)).unwrap();
        let range =
            |a, b, c, d| v1::HeadRange { layer_begin: a, layer_end: b, kv_head_begin: c, kv_head_end: d };
        let owned = g.owned(&[range(0, 2, 0, 1), range(1, 2, 1, 2)]).unwrap();
        assert_eq!(owned, [true, false, true, true]);
        assert!(g.owned(&[]).is_err());
        assert!(g.owned(&[range(0, 0, 0, 1)]).is_err());
        assert!(g.owned(&[range(0, 3, 0, 1)]).is_err());
        assert!(g.owned(&[range(0, 1, 1, 3)]).is_err());
        let e = g.owned(&[range(0, 2, 0, 2), range(1, 2, 1, 2)]).unwrap_err();
        assert!(e.to_string().contains("layer 1, KV head 1 again"), "{e}");
    }

    #[test]
    fn reservations_do_not_wrap() {
        let g = Geometry::read(&fingerprint(2, 4, 2, 8, 8)).unwrap();
        assert!(reservation(&g, 4, u64::MAX - 5000, 0).is_err());
        assert_eq!(reservation(&g, 2, 100, 10).unwrap(), 128 * (32 + 10) * 2);
    }
}
