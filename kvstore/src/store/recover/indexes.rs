//! Indexes of a session, from their files. What cannot be used is built again: it is no reason to refuse a session.

use super::Files;
use crate::catalogue::records::HeadRecord;
use crate::node::Node;
use crate::session::Session;
use crate::session::head::Head;
use crate::session::samples;
use crate::session::span::{Queries, Span};
use crate::shard::bring::Unusable;
use crate::store::Store;
use rayon::prelude::*;
use std::sync::Arc;

/// A span whose index is stored.
pub struct Place {
    at: (usize, usize),
    span: Arc<Span>,
    /// Of the file.
    id: u64,
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
                match self.read_index(session, (place.at, &place.span), &file) {
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
}

impl Place {
    /// Leaves the span the queries that a build would have left it.
    fn keep_queries(&self, group: usize) {
        let mut queries = self.span.queries();
        let own = queries.own.take().map(|own| own.thinned(samples::kept(self.span.len(), group)));
        *queries = Queries { own, ..Queries::default() };
    }

    fn keep_file(&self) {
        self.span.set_index_file(Some(self.id));
    }
}
