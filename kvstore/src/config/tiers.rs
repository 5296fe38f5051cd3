//! What becomes of spans that nobody asks for.

use super::{Archive, Storage, in_range};
use crate::{Cooling, Form};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::time::Duration;

/// What becomes of spans that nobody asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tiers {
    /// What answers for them.
    pub cold: Cold,
    /// Unused for so long a span is cold.
    pub cold_seconds: u64,
    /// Size of a sketch in percent of the rows' bytes.
    pub sketch_percent: u32,
    /// Unused for so long a session goes to the archive; 0: never.
    pub archive_seconds: u64,
    /// Whether what left RAM returns when it is used again and again.
    pub bring_back: bool,
}

/// What answers for cold spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cold {
    /// Their rows, in RAM or in maps of their files.
    Rows,
    /// A quantised form in RAM.
    Int8,
    /// A sketch in RAM, by estimate.
    Sketch,
}

impl Default for Tiers {
    fn default() -> Self {
        let cooling = Cooling::default();
        Self {
            cold: Cold::Rows,
            cold_seconds: cooling.after.as_secs(),
            sketch_percent: Form::SKETCH_PERCENT.into(),
            archive_seconds: 0,
            bring_back: cooling.bring_back,
        }
    }
}

impl Tiers {
    /// Ranges, and what the tiers need.
    pub(super) fn check(&self, storage: &Storage, archive: &Archive) -> Result<(), String> {
        let check = |key: &str, value: u64, range: RangeInclusive<u64>| {
            in_range(value, range).map_err(|e| format!("{key}: {e}"))
        };
        check("tiers.cold_seconds", self.cold_seconds, 1..=365 * 24 * 3600)?;
        check("tiers.sketch_percent", self.sketch_percent.into(), 1..=Form::SKETCH_MOST.into())?;
        check("tiers.archive_seconds", self.archive_seconds, 0..=365 * 24 * 3600)?;
        if self.cold != Cold::Rows && storage.path.as_os_str().is_empty() {
            return Err("tiers.cold: needs storage.path (--data), where the rows stay".into());
        }
        if self.archive_seconds > 0 && archive.url.is_empty() {
            return Err("tiers.archive_seconds: needs archive.url (--archive)".into());
        }
        Ok(())
    }

    /// The part that concerns the node.
    pub(super) fn cooling(&self) -> Cooling {
        let seconds = Duration::from_secs;
        Cooling {
            form: match self.cold {
                Cold::Rows => None,
                Cold::Int8 => Some(Form::Quantised),
                // Checked: it fits.
                Cold::Sketch => Some(Form::Sketched(self.sketch_percent as u8)),
            },
            after: seconds(self.cold_seconds),
            archive_after: (self.archive_seconds > 0).then(|| seconds(self.archive_seconds)),
            bring_back: self.bring_back,
        }
    }
}

impl Cold {
    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Cold::Rows => "rows",
            Cold::Int8 => "int8",
            Cold::Sketch => "sketch",
        }
    }
}
