//! Indexes of a session, from their files. What cannot be used is built again: it is no reason to refuse a session.

use super::Files;
use crate::admission::{Kind, Short};
use crate::catalogue::records::HeadRecord;
use crate::node::Node;
use crate::session::Session;
use crate::session::head::Head;
use crate::session::samples;
use crate::session::span::{Indexed, Queries, Span};
use crate::store::Store;
use crate::store::error::FileError;
use crate::store::index_file::IndexFile;
use rayon::prelude::*;
use std::sync::Arc;

/// A span whose index is stored.
pub struct Place {
    at: (usize, usize),
    span: Arc<Span>,
    /// Of the file.
    id: u64,
}

/// Why a stored index is not used.
enum Unusable {
    /// The file is not what it should be.
    Damaged(FileError),
    /// It was built for another recall than is asked for now.
    Recall(f32),
    /// There is no memory for it now.
    Memory(Short),
}

/// Spans of a head with stored indexes. The record is the one that it was restored from.
pub fn indexed(at: (usize, usize), head: &Head, record: &HeadRecord) -> Vec<Place> {
    let state = head.read();
    let spans = state.spans().zip(&record.spans).filter(|(_, told)| told.index != 0);
    spans.map(|((span, _), told)| Place { at, span: span.clone(), id: told.index }).collect()
}

impl Node {
    /// Reads stored indexes into their spans.
    pub(super) fn load_indexes(
        &self,
        store: &Store,
        session: &Session,
        places: Vec<Place>,
        files: &mut Files,
    ) {
        let with_files: Vec<_> = places.into_iter().map(|p| (files.indexes.remove(&p.id), p)).collect();
        self.pool.install(|| {
            with_files.into_par_iter().for_each(|(file, place)| {
                let ((layer, kv_head), begin) = (place.at, place.span.begin);
                let Some(file) = file else {
                    tracing::warn!(
                        layer,
                        kv_head,
                        begin,
                        "a stored index is gone or damaged; it is built again"
                    );
                    return;
                };
                match self.load_index(session, &place, &file) {
                    Ok(indexed) => {
                        place.keep_queries(session.terms.geometry.group);
                        place.keep_file();
                        place.span.publish(Some(indexed));
                        self.metrics.indexes_loaded.increment(1);
                    }
                    Err(Unusable::Damaged(why)) => {
                        store.directory.put_away(&store.directory.index(place.id), &why);
                    }
                    Err(Unusable::Recall(recall)) => {
                        tracing::info!(
                            layer,
                            kv_head,
                            begin,
                            recall,
                            "a stored index is of another recall; it is built again"
                        );
                    }
                    Err(Unusable::Memory(short)) => {
                        // It is as good as ever for a start that has more.
                        place.keep_file();
                        let why = short.status("a stored index");
                        tracing::warn!(
                            layer,
                            kv_head,
                            begin,
                            why = why.message(),
                            "a stored index is not read"
                        );
                    }
                }
            });
        });
    }

    fn load_index(&self, session: &Session, place: &Place, file: &IndexFile) -> Result<Indexed, Unusable> {
        let (o, g) = (&file.owner, &session.terms.geometry);
        if Some(o.fingerprint) != session.kept.as_ref().map(|k| k.fingerprint) {
            return Err(Unusable::Damaged(FileError::Fingerprint));
        }
        let is = |field, found: u64, want: u64| match found == want {
            true => Ok(()),
            false => Err(Unusable::Damaged(FileError::field(field, found, want))),
        };
        is("layer", o.layer.into(), place.at.0 as u64)?;
        is("KV head", o.kv_head.into(), place.at.1 as u64)?;
        is("first position", o.first, place.span.begin)?;
        is("tokens", o.tokens, place.span.len())?;
        is("key_dim", o.key_dim.into(), g.key_dim as u64)?;
        is("value_dim", o.value_dim.into(), g.value_dim as u64)?;
        if o.recall_target != self.config().index_recall {
            return Err(Unusable::Recall(o.recall_target));
        }
        let charge = |bytes| session.purse.charge(Kind::Index, bytes).map_err(Unusable::Memory);
        let mut held = charge(file.index_bytes())?;
        let index = file.load().map_err(Unusable::Damaged)?;
        // What it takes in RAM differs a little from what it takes in the file.
        let bytes = index.bytes() as u64;
        match bytes.checked_sub(held.bytes()) {
            Some(more) => held.absorb(charge(more)?),
            None => drop(held.split(held.bytes() - bytes)),
        }
        Ok(Indexed { index, recall_target: o.recall_target, build_us: o.build_us, charge: held })
    }
}

impl Place {
    /// Leaves the span the queries that a build would have left it.
    fn keep_queries(&self, group: usize) {
        let mut queries = self.span.queries();
        let own = queries.own.take().map(|own| own.thinned(samples::kept(self.span.len(), group)));
        *queries = Queries { own, ..Queries::default() };
    }

    fn keep_file(&self) {
        // A span is restored once, and nothing else has written its index yet.
        let _ = self.span.index_file().set(self.id);
    }
}
