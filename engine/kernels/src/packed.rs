//! Rows of codes of any width without gaps between them, and where a register finds its codes in one.

/// Codes that are found together.
const GROUP: usize = 8;
/// The most lanes of any path; what belongs to the lanes of a row is padded to a multiple of it.
const WIDEST: usize = 16;
/// Bytes that the codes of a group are read from. So many less one must follow the last row.
pub const PACKED_WINDOW: usize = 16;
/// The most bits of a code: eight of them, the first of which begins within a byte, are then within a window.
pub const PACKED_BITS: u8 = 15;

/// Where eight codes are: a code is in at most three bytes, of which only its own bits stay. It is not shifted down to
/// bit 0, which saves an instruction: what it is multiplied with is worth as much less ([`Packing::units`]).
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Group {
    /// Four bytes of the window for each code, the lowest first; 128 stands for a zero.
    pub bytes: [u8; 4 * GROUP],
    /// The bits of each code.
    pub masks: [u32; GROUP],
    /// The first byte of the window within a row.
    pub from: usize,
}

impl Group {
    const EMPTY: Group = Group { bytes: [128; 4 * GROUP], masks: [0; GROUP], from: 0 };
}

/// Where the codes of some channels are in a row.
#[derive(Clone, Debug)]
pub struct Packing {
    codes: usize,
    /// One more than there are codes for, without bits, so that sixteen lanes can be read at any even group.
    groups: Vec<Group>,
    units: Vec<f32>,
}

impl Packing {
    /// Codes of these many bits each, 1 to [`PACKED_BITS`], one after the other from a bit of the row on, the lowest bits
    /// first. Panics when there are more or none.
    pub fn new(first_bit: usize, bits: impl ExactSizeIterator<Item = u8>) -> Packing {
        let codes = bits.len();
        let mut groups = vec![Group::EMPTY; codes.div_ceil(GROUP) + 1];
        let mut units = vec![0.0; codes.next_multiple_of(WIDEST)];
        let mut at = first_bit;
        for (i, bits) in bits.enumerate() {
            assert!((1..=PACKED_BITS).contains(&bits), "a code of {bits} bits, of 1 to {PACKED_BITS}");
            let (group, lane) = (&mut groups[i / GROUP], i % GROUP);
            if lane == 0 {
                group.from = at / 8;
            }
            let (byte, shift) = (at / 8 - group.from, at % 8);
            for k in 0..(shift + usize::from(bits)).div_ceil(8) {
                group.bytes[4 * lane + k] = (byte + k) as u8;
            }
            group.masks[lane] = ((1 << bits) - 1) << shift;
            units[i] = 1.0 / (1u32 << shift) as f32;
            at += usize::from(bits);
        }
        Packing { codes, groups, units }
    }

    /// Lanes of whatever belongs to the codes of a row: one for each code, then up to a multiple of sixteen.
    pub fn lanes(&self) -> usize {
        self.units.len()
    }

    /// What one of a lane's number is worth in units of its code, a power of two: [lanes], 0 where there is no code.
    pub fn units(&self) -> &[f32] {
        &self.units
    }

    /// Codes of a row.
    pub(crate) fn codes(&self) -> usize {
        self.codes
    }

    /// At least one for every register of lanes.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Bytes from the begin of a row that are read: by the last group with codes, since the empty one reads from the begin.
    pub(crate) fn reach(&self) -> usize {
        match self.codes {
            0 => 0,
            codes => self.groups[(codes - 1) / GROUP].from + PACKED_WINDOW,
        }
    }
}

/// Rows of codes.
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    /// Where the codes are in each.
    pub packing: &'a Packing,
    /// The rows, and what follows them: at least [`PACKED_WINDOW`] - 1 bytes.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The number of rows.
    pub count: usize,
}
