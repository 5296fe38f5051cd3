//! A span in another tier: the same tokens and the same index over rows that lie elsewhere. Nothing is changed in place:
//! readers of the old one finish on it, and its memory returns when the last of them lets go.

use crate::admission::{Charge, Purse};
use crate::session::extent::{Extent, SealedRows};
use crate::session::head::{Head, Held};
use crate::session::span::{Core, Span};
use crate::store::extent_file::ExtentFile;
use std::sync::Arc;

impl SealedRows {
    /// Bytes in RAM and bytes in maps.
    pub fn tiers(&self) -> (u64, u64) {
        self.extents().iter().fold((0, 0), |(ram, spilled), e| match e.is_mapped() {
            false => (ram + e.bytes(), spilled),
            true => (ram, spilled + e.bytes()),
        })
    }

    /// Bytes that only the archive holds. While there are any, nobody reads the rows.
    pub fn archived(&self) -> u64 {
        self.extents().iter().map(|e| e.archived_bytes()).sum()
    }

    /// The same rows, all of them in the archive and nowhere else. Every extent has a file of which it holds a copy.
    pub fn let_go(&self, purse: &Arc<Purse>) -> Self {
        let (key_dim, value_dim) = self.dims();
        let extents =
            self.extents().iter().map(|extent| match (extent.archived_bytes(), extent.file.get()) {
                (0, Some(&file)) => {
                    let tokens = extent.tokens(key_dim);
                    let charge = purse.count_archived(tokens * 2 * (key_dim + value_dim) as u64);
                    Arc::new(Extent::archived(file, tokens, charge))
                }
                _ => extent.clone(),
            });
        self.with_extents(extents.collect())
    }

    /// The same rows, those of the archive in maps. `open` maps the file of an extent, which begins so many rows from the
    /// first.
    pub fn revived<E>(
        &self,
        purse: &Arc<Purse>,
        open: impl FnMut(&Extent, u64) -> Result<ExtentFile, E>,
    ) -> Result<Self, E> {
        self.mapped(purse, open, |e| Some(e.archived_bytes()).filter(|&bytes| bytes > 0))
    }

    /// Checks the files of all extents in maps: `open` maps one anew. Bytes that are read through a map are not checked
    /// otherwise.
    pub fn mapped_again<E>(
        &self,
        mut open: impl FnMut(&Extent, u64) -> Result<ExtentFile, E>,
    ) -> Result<(), E> {
        let mut first = 0;
        for extent in self.extents() {
            if extent.is_mapped() {
                open(extent, first)?;
            }
            first += extent.tokens(self.dims().0);
        }
        Ok(())
    }

    /// Whether every extent has a file.
    pub fn published(&self) -> bool {
        self.extents().iter().all(|e| e.file.get().is_some())
    }

    /// The same rows, all of them in maps. `open` maps the file of an extent, which begins so many rows from the first.
    pub fn spilled<E>(
        &self,
        purse: &Arc<Purse>,
        open: impl FnMut(&Extent, u64) -> Result<ExtentFile, E>,
    ) -> Result<Self, E> {
        self.mapped(purse, open, |e| (!e.is_mapped()).then(|| e.bytes()))
    }

    /// The same rows, those extents in maps for which `wanted` tells their bytes.
    fn mapped<E>(
        &self,
        purse: &Arc<Purse>,
        mut open: impl FnMut(&Extent, u64) -> Result<ExtentFile, E>,
        wanted: impl Fn(&Extent) -> Option<u64>,
    ) -> Result<Self, E> {
        let mut first = 0;
        let extents = self.extents().iter().map(|extent| {
            let at = first;
            first += extent.tokens(self.dims().0);
            match wanted(extent) {
                None => Ok(extent.clone()),
                Some(bytes) => Ok(Arc::new(Extent::mapped(open(extent, at)?, purse.count_spilled(bytes)))),
            }
        });
        Ok(self.with_extents(extents.collect::<Result<_, E>>()?))
    }

    /// The same rows, all of them in RAM. `charge` covers those that are not.
    pub fn promoted(&self, mut charge: Charge) -> Self {
        let extents = self.extents().iter().map(|extent| match extent.is_mapped() {
            false => extent.clone(),
            true => Arc::new(extent.copied(&mut charge)),
        });
        self.with_extents(extents.collect())
    }
}

impl Head {
    /// The span that now stands where one with this core was sealed or merged.
    pub fn current(&self, core: &Arc<Core>) -> Option<Arc<Span>> {
        let state = self.read();
        state.spans.iter().map(|h| &h.span).find(|s| s.has(core)).cloned()
    }

    /// Whether this very span, in this tier, still stands where it was sealed or merged.
    pub fn holds(&self, span: &Arc<Span>) -> bool {
        self.read().spans.iter().any(|h| Arc::ptr_eq(&h.span, span))
    }

    /// Puts a span in the place of the same span in another tier. False: that one is not there any more.
    pub fn overlay(&self, old: &Arc<Span>, new: Arc<Span>) -> bool {
        self.put(old, new, |_| true)
    }

    /// As [`Head::overlay`], unless the session is read now: `read` is looked at while nobody has the head.
    pub fn overlay_unread(&self, old: &Arc<Span>, new: Arc<Span>, read: impl FnOnce() -> bool) -> bool {
        self.put(old, new, |_| !read())
    }

    /// Puts an archived span in the place of the same span, unless that is read now or about to be merged. Who reads
    /// afterwards finds the archived one: `read` is looked at while nobody has the head.
    pub fn archive(&self, old: &Arc<Span>, new: Arc<Span>, read: impl FnOnce() -> bool) -> bool {
        self.put(old, new, |held| held.plan.is_none() && !read())
    }

    fn put(&self, old: &Arc<Span>, new: Arc<Span>, may: impl FnOnce(&Held) -> bool) -> bool {
        let mut state = self.write();
        let held = state.spans.iter_mut().find(|h| Arc::ptr_eq(&h.span, old));
        // The caller holds the old one, so nothing is freed under the lock.
        held.filter(|h| may(h)).map(|h| h.span = new).is_some()
    }
}
