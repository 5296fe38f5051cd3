//! A summary as bytes: what cannot be told from the rest.

use super::{Codes, Level, SEGMENT, Segment, Summary};
use crate::saved::{Reader, SavedError, Shape, Writer, check_finite, check_offsets};

impl Summary {
    /// Writes members and offsets, means, levels.
    pub fn save(&self, w: &mut Writer) {
        w.array(&self.members);
        w.array(&self.first);
        w.array(&self.first_group);
        w.array(&self.first_cell);
        w.array(&self.cell_means);
        self.group_means.save(w);
        self.groups.save(w);
        self.cells.save(w);
    }

    /// Reads what [`Summary::save`] wrote.
    pub fn load(r: &mut Reader<'_>, shape: Shape) -> Result<Summary, SavedError> {
        let Shape { tokens, key_dim: dim, value_dim } = shape;
        let members: Vec<u32> = r.array("members", tokens)?;
        let (first, first_group, first_cell): (Vec<u32>, Vec<u32>, Vec<u32>) =
            (r.list()?, r.list()?, r.list()?);
        let (groups, cells) = (first.len().saturating_sub(1), first_group.len().saturating_sub(1));
        check_offsets("its groups", &first, tokens)?;
        check_offsets("its cells", &first_group, groups)?;
        check_offsets("its segments", &first_cell, cells)?;
        if first_cell.len() != tokens.div_ceil(SEGMENT) + 1 || first_cell.windows(2).any(|w| w[0] == w[1]) {
            return Err(SavedError::Damaged("its segments"));
        }
        let cell_means = r.array("elements of cell means", cells * dim)?;
        check_finite("a cell's mean", cell_means.iter().map(|x: &half::f16| x.to_f32()))?;
        let mut summary = Summary {
            group_means: Codes::load(r, groups, dim)?,
            groups: Level::load(r, groups, value_dim)?,
            cells: Level::load(r, cells, value_dim)?,
            dim,
            value_dim,
            cell_means,
            group_of: vec![u32::MAX; tokens],
            cell_of: vec![0; groups],
            first,
            members,
            first_group,
            first_cell,
        };
        for cell in 0..cells {
            let groups = summary.groups_of(cell);
            summary.cell_of[groups].fill(cell as u32);
        }
        let segments: Vec<_> = summary.segments().collect();
        for Segment { cells, tokens } in segments {
            let groups = summary.groups_of(cells.start).start..summary.groups_of(cells.end - 1).end;
            for group in groups {
                for place in summary.places(group..group + 1) {
                    let token = summary.members[place] as usize;
                    // Each token once, in the segment that it lies in.
                    if !tokens.contains(&token) || summary.group_of[token] != u32::MAX {
                        return Err(SavedError::Damaged("a group's members"));
                    }
                    summary.group_of[token] = group as u32;
                }
            }
        }
        Ok(summary)
    }
}
