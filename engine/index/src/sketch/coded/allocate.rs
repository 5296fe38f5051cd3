//! How many bits each channel gets.

/// The most bits of a channel.
pub(super) const MOST_BITS: usize = 12;

/// The error that remains of a normal variance of 1 under the best uniform quantiser of 0, 1, 2.. bits (Max, "Quantizing
/// for minimum distortion", 1960, table II, continued by a quarter a bit and a little).
const REMAINS: [f64; MOST_BITS + 1] =
    [1.0, 0.3634, 0.1188, 0.0374, 0.0115, 0.0035, 0.00104, 3.04e-4, 8.7e-5, 2.5e-5, 7e-6, 2e-6, 5.6e-7];

/// Bits of the channels of these variances, `total` together as far as any channel has a use for one: each bit goes where
/// it takes most error away (the reverse water-filling of rate-distortion theory, in whole bits).
pub(super) fn bits(variances: &[f64], total: usize) -> Vec<u8> {
    let mut bits = vec![0u8; variances.len()];
    let gain = |bits: &[u8], j: usize| match bits[j] as usize {
        MOST_BITS => 0.0,
        b => variances[j] * (REMAINS[b] - REMAINS[b + 1]),
    };
    for _ in 0..total {
        let best = (0..bits.len()).max_by(|&i, &j| gain(&bits, i).total_cmp(&gain(&bits, j)).then(j.cmp(&i)));
        match best {
            Some(j) if gain(&bits, j) > 0.0 => bits[j] += 1,
            _ => break,
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_channels_share_evenly_large_ones_get_a_bit_for_a_factor_of_four() {
        assert_eq!(bits(&[1.0; 4], 12), [3, 3, 3, 3]);
        assert_eq!(bits(&[256.0, 1.0], 10), [7, 3]);
        assert_eq!(bits(&[1.0, 1e-6], 4), [4, 0]);
    }

    #[test]
    fn a_channel_without_variance_gets_none() {
        assert_eq!(bits(&[0.0, 2.0], 100), [0, MOST_BITS as u8]);
        assert_eq!(bits(&[0.0; 3], 5), [0; 3]);
        assert_eq!(bits(&[], 5), [0u8; 0]);
    }
}
