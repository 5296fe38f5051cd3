//! Selections and partials of a bench as safetensors, for another program to check.

use std::path::Path;

use anyhow::{Context, Result};
use safetensors::tensor::{Dtype, TensorView};

use super::judge::Outcome;

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
