//! One session, from its files and its log.

use super::indexes::indexed;
use super::{Files, Told};
use crate::admission::Kind;
use crate::builder::Work;
use crate::catalogue::records::{HeadRecord, SpanRecord};
use crate::merger::Merge;
use crate::node::Node;
use crate::session::Session;
use crate::session::compact::Form;
use crate::session::extent::{Extent, SealedRows};
use crate::session::fresh::capacity;
use crate::session::head::{Head, Sealing};
use crate::session::span::{Queries, Span, Want};
use crate::spill::places;
use crate::store::Store;
use crate::store::error::FileError;
use crate::store::log::record::{self, Contents, Record};
use crate::store::log::{self, Needs};
use crate::store::map::map;
use crate::store::replay::Tail;
use attention::EXTENT_TOKENS;
use memmap2::Mmap;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::Status;
use wire::v1;

/// A span that had a form: where, its first position, which.
type Formed = ((usize, usize), u64, Form);

/// Tokens of one head that are not where they should be.
fn lost(at: (usize, usize), span: &SpanRecord, why: impl std::fmt::Display) -> Status {
    Status::data_loss(format!(
        "tokens {}..{} of layer {}, KV head {} are lost: {why}",
        span.begin, span.visible_end, at.0, at.1
    ))
}

impl Node {
    /// The session with its spans and fresh tokens, its index builds queued; an error when any of it is missing.
    pub(super) fn restore(
        self: &Arc<Self>,
        store: &Arc<Store>,
        told: &Told,
        files: &mut Files,
    ) -> Result<Arc<Session>, Status> {
        let r = &told.record;
        let request = v1::OpenRequest {
            session: r.session.clone(),
            fingerprint: r.fingerprint.clone(),
            owned: r.owned.clone(),
            reserve_tokens: r.reserve_tokens,
            index: r.index,
            seed: r.seed,
            deterministic: r.deterministic,
            protocol: wire::PROTOCOL,
            durable: r.durable,
            ..Default::default()
        };
        let asked = self.read_open(&request)?;
        let g = asked.terms.geometry;
        // Stored spans stay in their maps.
        let spans = told.heads.values().flat_map(|h| &h.spans);
        let spilled = spans.map(|s| s.end.saturating_sub(s.begin)).fold(0, u64::saturating_add);
        let purse = self.purse(asked.reserved, spilled.saturating_mul(g.row_bytes()))?;
        let maps = store.map_segments(told)?;
        let segments = store.read_segments(told, &maps, &g)?;
        let cut = told.heads.values().map(|h| h.cut).max().unwrap_or(0);
        let last = segments.iter().flat_map(|c| &c.records).map(|(number, _)| *number).max();
        let kept = store.kept(told, last.unwrap_or(0).max(cut), needs(&segments));
        let mut session =
            Session::new((asked.id, asked.terms), &asked.owned, purse, told.lease, Some(Arc::new(kept)))
                .map_err(|s| self.short("a stored session", s))?;
        let sealing = self.sealing(&session);
        let mut tails = HashMap::new();
        let mut found = HashMap::new();
        let (mut indexes, mut forms) = (Vec::new(), Vec::<Formed>::new());
        for (layer, kv_head, _) in session.owned() {
            let at = (layer, kv_head);
            let mut record = told.heads.get(&at).cloned().unwrap_or_default();
            let records = segments.iter().flat_map(|c| &c.records);
            let tail = Tail::read(records, at, record.cut).map_err(Status::data_loss)?;
            truncate(&mut record, &tail);
            let end = record.end();
            if let Some(gap) = tail.pieces.first().filter(|p| p.left.start > end) {
                return Err(Status::data_loss(format!(
                    "tokens {end}..{} of layer {layer}, KV head {kv_head} are lost: its log begins behind them",
                    gap.left.start
                )));
            }
            let head = self.restore_head(store, &session, (at, &record), files, sealing)?;
            indexes.extend(indexed(at, &head, &record));
            let formed = record.spans.iter().filter_map(|s| Some((at, s.begin, Form::of_code(s.form)?)));
            forms.extend(formed);
            found.insert(at, head);
            tails.insert(at, (end, tail));
        }
        session.set_heads(found);
        session.pinned.store(r.pinned, Ordering::Release);
        {
            // Rows come first: an index can be built again.
            let left = tails.values().map(|(end, tail)| tail.end().saturating_sub(*end));
            let fresh = left.map(capacity).sum::<u64>().saturating_mul(g.row_bytes());
            let room = session.purse.charge(Kind::Kv, fresh);
            let _room = room.map_err(|s| self.short("the fresh tokens of a stored session", s))?;
            self.load_indexes(store, &session, indexes, files);
        }
        let session = Arc::new(session);
        self.queue_builds(&session);
        self.queue_forms(&session, &forms);
        for (layer, kv_head, head) in session.owned() {
            let Some((end, tail)) = tails.get(&(layer, kv_head)) else { continue };
            for append in tail.pieces.iter().filter_map(|p| p.beyond(*end, &g)) {
                let grant = head.grant(&g, &session.purse, append.tokens, append.q_pos.len(), append.seal_to);
                let grant = grant.map_err(|s| self.short("the fresh tokens of a stored session", s))?;
                self.push(&session, (layer, kv_head), head, append.rows(), grant);
            }
            // What the log alone says goes into the catalogue, so that the log can go.
            store.keeper().submit(&session, (layer, kv_head));
        }
        if let Some(log) = session.log() {
            log.raise(session.watermark(), 0);
        }
        Ok(session)
    }

    fn restore_head(
        &self,
        store: &Store,
        session: &Session,
        (at, record): ((usize, usize), &HeadRecord),
        files: &mut Files,
        sealing: Sealing,
    ) -> Result<Head, Status> {
        let g = &session.terms.geometry;
        let mut spans = Vec::new();
        let mut begin = 0;
        for told in &record.spans {
            if told.begin != begin || told.end < told.visible_end || told.begin >= told.visible_end {
                return Err(lost(
                    at,
                    told,
                    format_args!("the catalogue tells of tokens up to {begin} before"),
                ));
            }
            begin = told.visible_end;
            let extents = store.take_rows(session, (at, told), files)?;
            let rows = SealedRows::restored(extents, (g.key_dim, g.value_dim));
            let (queries, queries_file) = match self.restored_queries(store, session, (at, told), files)? {
                Some(queries) => (queries, told.queries),
                None => (Queries::default(), 0),
            };
            let pending = sealing.wants_index(told.end - told.begin);
            let place = (told.begin, told.version);
            spans.push(Arc::new(Span::restored(place, rows, queries, queries_file, pending)));
        }
        Head::restored(g, &session.purse, spans, record)
            .map_err(|s| self.short("a head of a stored session", s))
    }

    /// The queries of a span. None: it has none, or they are gone, which loses no token: its index is read from its file, or built
    /// as one of a span without queries.
    fn restored_queries(
        &self,
        store: &Store,
        session: &Session,
        (at, told): ((usize, usize), &SpanRecord),
        files: &mut Files,
    ) -> Result<Option<Queries>, Status> {
        if told.queries == 0 {
            return Ok(None);
        }
        let ((layer, kv_head), begin, g) = (at, told.begin, &session.terms.geometry);
        let Some((owner, queries)) = files.queries.remove(&told.queries) else {
            tracing::warn!(layer, kv_head, begin, "the queries of a span are gone; its tokens are not");
            return Ok(None);
        };
        if Some(owner.fingerprint) != session.kept.as_ref().map(|k| k.fingerprint)
            || (owner.layer as usize, owner.kv_head as usize) != at
            || queries.width != g.group * g.key_dim
        {
            store.directory.put_away(&store.directory.queries(told.queries), &FileError::Fingerprint);
            return Ok(None);
        }
        let restored = queries.restore(&session.purse);
        let (own, later) = restored.map_err(|s| self.short("the queries of a stored session", s))?;
        Ok(Some(Queries { own: Some(own), later }))
    }

    /// Indexes and merges that were done or under way, from the same queries by the same recipe.
    fn queue_builds(&self, session: &Arc<Session>) {
        for (layer, kv_head, head) in session.owned() {
            let spans: Vec<Arc<Span>> = head.read().spans().map(|(span, _)| span.clone()).collect();
            // That of a span whose rows lie in the archive is queued when they come back.
            for span in spans.iter().filter(|s| !s.ready() && !s.lacks(Want::Rows)) {
                self.queue_index(session, (layer, kv_head), span);
            }
            for version in head.plans() {
                let merge = Merge { session: Arc::downgrade(session), version };
                self.queue(session, (layer, kv_head), Work::Merge(merge));
            }
        }
    }
}

impl Node {
    /// Forms that answered before the end, by the first position of their span; those of rows in the archive are not made
    /// again.
    fn queue_forms(&self, session: &Arc<Session>, forms: &[Formed]) {
        let here = |span: &Span| span.rows.archived() == 0;
        for place in places(session, here) {
            let found = forms.iter().find(|(at, begin, _)| (*at, *begin) == (place.at, place.span.begin));
            if let Some((_, _, form)) = found {
                self.queue_compaction(&place, *form, None);
            }
        }
    }
}

/// Applies the truncations that are in the log but not in the record.
fn truncate(record: &mut HeadRecord, tail: &Tail<'_>) {
    if let Some(limit) = tail.limit {
        record.spans.retain(|s| s.begin < limit);
        if let Some(last) = record.spans.last_mut() {
            last.visible_end = last.visible_end.min(limit);
        }
    }
    record.cut = tail.cut;
}

/// What the catalogue must hold before each segment may go.
fn needs(segments: &[Contents<'_>]) -> VecDeque<(u64, Needs)> {
    let mut all: VecDeque<(u64, Needs)> = VecDeque::new();
    for contents in segments {
        all.push_back((contents.segment.number, Needs::default()));
        for (number, record) in &contents.records {
            if let Record::Cut(length) = record {
                all.iter_mut().for_each(|(_, needs)| needs.lower(*length));
            }
            if let Some((_, needs)) = all.back_mut() {
                needs.add(*number, record);
            }
        }
    }
    all
}

impl Store {
    /// The extents of a span, which must all be there, or in the archive, and hold its rows.
    fn take_rows(
        &self,
        session: &Session,
        (at, told): ((usize, usize), &SpanRecord),
        files: &mut Files,
    ) -> Result<Vec<Arc<Extent>>, Status> {
        let g = &session.terms.geometry;
        let tokens = told.end - told.begin;
        let count = tokens.div_ceil(EXTENT_TOKENS as u64);
        if count != told.extents.len() as u64 {
            return Err(lost(at, told, format_args!("{} of {count} extents are told", told.extents.len())));
        }
        let mut first = told.begin;
        let mut rows = Vec::new();
        for &id in &told.extents {
            let n = (told.end - first).min(EXTENT_TOKENS as u64);
            let bytes = n * g.row_bytes();
            let Some(file) = files.extents.remove(&id) else {
                if session.kept.as_ref().is_none_or(|k| k.object(id).is_none()) {
                    return Err(lost(at, told, format_args!("extent {id:016x} is gone or damaged")));
                }
                first += n;
                rows.push(Arc::new(Extent::archived(id, n, session.purse.count_archived(bytes))));
                continue;
            };
            let e = &file.extent;
            if Some(e.fingerprint) != session.kept.as_ref().map(|k| k.fingerprint) {
                self.directory.put_away(&self.directory.extent(id), &FileError::Fingerprint);
                return Err(lost(at, told, FileError::Fingerprint));
            }
            let is = (e.layer as usize, e.kv_head as usize, e.first, u64::from(e.tokens));
            let dims = (e.key_dim as usize, e.value_dim as usize);
            if is != (at.0, at.1, first, n) || dims != (g.key_dim, g.value_dim) {
                let why = format_args!("extent {id:016x} holds other rows").to_string();
                self.directory.put_away(&self.directory.extent(id), &why);
                return Err(lost(at, told, why));
            }
            first += n;
            rows.push(Arc::new(Extent::mapped(file, session.purse.count_spilled(bytes))));
        }
        Ok(rows)
    }

    /// Maps the segments of a session's log; an empty one cannot be mapped, nor have been left by us.
    fn map_segments(&self, told: &Told) -> Result<Vec<Mmap>, Status> {
        let segments = told.segments.iter().map(|&segment| {
            let path = self.directory.logs().join(log::file_name(told.number, segment));
            map(&path).map_err(|e| self.damaged_log(&path, &e.into()))
        });
        segments.collect()
    }

    fn damaged_log(&self, path: &std::path::Path, why: &FileError) -> Status {
        self.directory.put_away(path, why);
        Status::data_loss(format!("fresh tokens are lost: a part of its log is damaged: {why}"))
    }

    /// Reads the segments. They follow each other, and only the last may end in the middle of a record: that one was
    /// never acknowledged and is cut off.
    fn read_segments<'a>(
        &self,
        told: &Told,
        maps: &'a [Mmap],
        g: &crate::session::geometry::Geometry,
    ) -> Result<Vec<Contents<'a>>, Status> {
        let fingerprint = told.record.fingerprint.clone().unwrap_or_default();
        let hash = super::super::fingerprint_hash(&fingerprint);
        let mut all: Vec<Contents<'a>> = Vec::new();
        for (i, (&segment, bytes)) in told.segments.iter().zip(maps).enumerate() {
            let path = self.directory.logs().join(log::file_name(told.number, segment));
            let contents = record::read(bytes, g).and_then(|contents| {
                let s = &contents.segment;
                let torn = contents.end < bytes.len();
                if s.fingerprint != hash {
                    return Err(FileError::Fingerprint);
                }
                if (s.session, s.number) != (told.number, segment) {
                    return Err(FileError::field("segment", s.number, "that of the file's name"));
                }
                if torn && i + 1 < maps.len() {
                    let (found, want) = (bytes.len() as u64, contents.end as u64);
                    return Err(FileError::Length { found, want });
                }
                Ok(contents)
            });
            let contents = contents.map_err(|e| self.damaged_log(&path, &e))?;
            let before = all.last().map(|c| (c.segment.number, c.records.last().map(|(n, _)| *n)));
            if let Some((number, last)) = before {
                let first = contents.records.first().map(|(n, _)| *n);
                if number + 1 != segment || last.zip(first).is_some_and(|(l, f)| l + 1 != f) {
                    return Err(Status::data_loss("fresh tokens are lost: a part of its log is gone"));
                }
            }
            if i + 1 == maps.len() {
                // Records that were written but not synced are told of from now on.
                let synced = std::fs::File::options().write(true).open(&path).and_then(|file| {
                    if contents.end < bytes.len() {
                        tracing::info!(file = %path.display(), end = contents.end, "an unfinished record is cut off");
                        file.set_len(contents.end as u64)?;
                    }
                    file.sync_all()
                });
                synced.map_err(|e| Status::internal(format!("its log cannot be synced: {e}")))?;
            }
            all.push(contents);
        }
        Ok(all)
    }
}
