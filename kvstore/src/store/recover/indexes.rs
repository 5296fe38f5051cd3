//! Indexes of a session, from their files, as far as there is room; others are read when they are asked for. What cannot be used
//! is built again: it is no reason to refuse a session.

use super::Files;
use crate::admission::Charges;
use crate::catalogue::records::HeadRecord;
use crate::node::Node;
use crate::session::Session;
use crate::session::compact::Form;
use crate::session::head::Head;
use crate::session::samples;
use crate::session::span::{About, Indexed, Queries, Span};
use crate::shard::bring::Unusable;
use crate::store::Store;
use crate::store::index_file::IndexFile;
use rayon::prelude::*;
use std::sync::Arc;

/// A span whose index is stored.
pub struct Place {
    at: (usize, usize),
    span: Arc<Span>,
    /// Of the file.
    id: u64,
    /// A form will answer.
    formed: bool,
}

/// Where an index is after a start.
enum Restored {
    InRam(Box<Indexed>),
    InFile(About),
}

/// Spans of a head with stored indexes. The record is the one that it was restored from.
pub fn indexed(at: (usize, usize), head: &Head, record: &HeadRecord) -> Vec<Place> {
    let state = head.read();
    let spans = state.spans().zip(&record.spans).filter(|(_, told)| told.index != 0);
    spans
        .map(|((span, _), told)| Place {
            at,
            span: span.clone(),
            id: told.index,
            formed: Form::of_code(told.form).is_some(),
        })
        .collect()
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
                match self.restored_index(session, &place, &file) {
                    Ok(indexed) => {
                        place.keep_queries(session.terms.geometry.group);
                        place.span.set_index_file(Some(place.id));
                        match indexed {
                            Restored::InRam(indexed) => {
                                place.span.publish(Some(*indexed));
                                self.metrics.indexes_loaded.increment(1);
                            }
                            Restored::InFile(about) => place.leave(session, about),
                        }
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
                    Err(Unusable::Damaged(why)) => {
                        store.directory.put_away(&store.directory.index(place.id), &why);
                    }
                }
            });
        });
    }

    /// The index of a span whose rows are here, if there is room for it; others stay in their files.
    fn restored_index(
        &self,
        session: &Session,
        place: &Place,
        file: &IndexFile,
    ) -> Result<Restored, Unusable> {
        let of = (place.at, &*place.span);
        let in_ram = match place.span.rows.archived() {
            0 if !place.formed => self.read_index(session, of, file, Charges::Now)?.ok(),
            _ => {
                self.check_index(session, of, file)?;
                None
            }
        };
        match in_ram {
            Some(indexed) => Ok(Restored::InRam(Box::new(indexed))),
            None => file.about().map(Restored::InFile).map_err(Unusable::Damaged),
        }
    }
}

impl Place {
    /// Leaves the span the queries that a build would have left it.
    fn keep_queries(&self, group: usize) {
        let mut queries = self.span.queries();
        let own = queries.own.take().map(|own| own.thinned(samples::kept(self.span.len(), group)));
        *queries = Queries { own, ..Queries::default() };
    }

    /// Has the index in its file only.
    fn leave(&self, session: &Session, about: About) {
        if let Ok(head) = session.head(self.at.0, self.at.1) {
            head.overlay(&self.span, Arc::new(self.span.again().with_index_in_file(about)));
        }
    }
}
