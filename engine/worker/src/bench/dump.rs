//! Selections and partials of a bench as safetensors, for another program to check.

use std::path::Path;

use anyhow::{Context, Result};
use safetensors::tensor::{Dtype, TensorView};

use super::judge::Outcome;
use crate::cli::input;

/// Refuses a path that cannot be written, before hours of work; leaves no file behind that was not there.
///
/// # Errors
/// A usage error that names the path and the system's reason.
pub fn check(path: &Path) -> Result<()> {
    let existed = path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| input::refused("--dump", path, &error))?;
    if !existed {
        std::fs::remove_file(path).with_context(|| format!("--dump {}", path.display()))?;
    }
    Ok(())
}

/// Writes `ids` I32 [m, q_heads, K] (capture tokens, ascending; -1 pads), `o` F32 [m, q_heads, value_dim], and `m`,
/// `l_exact`, `l_est` F32 [m, q_heads]. `outcomes` come query by query, head by head.
pub fn write(path: &Path, outcomes: &[&Outcome], q_heads: usize, value_dim: usize) -> Result<()> {
    let m = outcomes.len() / q_heads;
    let k = outcomes.iter().map(|o| o.ids.len()).max().unwrap_or(0);
    let ids: Vec<u8> = outcomes
        .iter()
        .flat_map(|o| o.ids.iter().map(|&id| id as i32).chain(std::iter::repeat_n(-1, k - o.ids.len())))
        .flat_map(i32::to_le_bytes)
        .collect();
    let floats = |f: &dyn Fn(&Outcome) -> &[f32]| -> Vec<u8> {
        outcomes.iter().flat_map(|o| f(o).iter().flat_map(|x| x.to_le_bytes())).collect()
    };
    let o = floats(&|o| &o.partial.o);
    let top = floats(&|o| std::slice::from_ref(&o.partial.m));
    let exact = floats(&|o| std::slice::from_ref(&o.partial.l_exact));
    let estimated = floats(&|o| std::slice::from_ref(&o.partial.l_est));
    let scalar = || vec![m, q_heads];
    let tensors = [
        ("ids", TensorView::new(Dtype::I32, vec![m, q_heads, k], &ids)?),
        ("o", TensorView::new(Dtype::F32, vec![m, q_heads, value_dim], &o)?),
        ("m", TensorView::new(Dtype::F32, scalar(), &top)?),
        ("l_exact", TensorView::new(Dtype::F32, scalar(), &exact)?),
        ("l_est", TensorView::new(Dtype::F32, scalar(), &estimated)?),
    ];
    let data = safetensors::serialize(tensors, None)?;
    std::fs::write(path, data).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_checked_without_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        let (absent, there) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&there, "kept").unwrap();
        check(&absent).unwrap();
        check(&there).unwrap();
        assert!(!absent.exists());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "kept");
        for bad in [folder.path().to_path_buf(), folder.path().join("no/such/folder")] {
            let line = check(&bad).unwrap_err().to_string();
            assert!(line.starts_with(&format!("--dump {}: ", bad.display())), "{line}");
        }
    }
}
