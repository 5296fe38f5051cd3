//! The log of a durable session: every append is in it, and synced, before it is acknowledged. Segments go, oldest first,
//! once all of their rows lie in spans that the catalogue knows.
//!
//! * `record`: the bytes; [`Log`]: writing, syncing, dropping

pub mod record;

use crate::store::fail;
use crate::store::publish::{TEMPORARY, sync_folder};
use record::{Record, Segment};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A segment is full from so many bytes on: few in tests, so that they see segments come and go.
const FULL: u64 = if cfg!(test) { 16 << 10 } else { 16 << 20 };
/// From so many bytes on a segment that nothing needs is dropped even if it is the last.
const WORTH: u64 = if cfg!(test) { 8 << 10 } else { 1 << 20 };

/// Why a record is not in the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// This write failed and left nothing behind; another may succeed.
    #[error("the session's log cannot be written: {0}")]
    Write(io::Error),
    /// An earlier failure left the log in a state that nobody knows: nothing more is written to it.
    #[error("the session takes no more tokens: its log failed: {0}")]
    Broken(String),
}

/// Ends of the rows of each (layer, KV head).
pub type Ends = HashMap<(usize, usize), u64>;

/// What must be in the catalogue before a segment may go.
#[derive(Debug, Default)]
pub struct Needs {
    /// Rows up to here.
    pub ends: Ends,
    /// Truncations up to this number.
    pub cut: u64,
}

/// The log of one session.
pub struct Log {
    folder: PathBuf,
    fingerprint: [u8; 32],
    session: u64,
    /// Held for the copy of a record into the page cache, and at the end of a segment for its sync.
    writing: Mutex<Writing>,
    /// Number of the last record that is on disk.
    synced: AtomicU64,
    /// One sync at a time; who waits finds its record synced by the one before, more often than not.
    turn: tokio::sync::Mutex<()>,
    /// Tokens of all heads that are on disk, and how many truncations there were: one that came between the look at the
    /// heads and the end of a sync makes what was seen worthless.
    durable: Mutex<(u64, u64)>,
}

struct Writing {
    current: Option<Current>,
    /// Of the last record.
    number: u64,
    /// Of the last segment.
    segment: u64,
    closed: VecDeque<(u64, Needs)>,
    broken: Option<String>,
}

struct Current {
    file: Arc<File>,
    length: u64,
    /// Its name is not on disk yet.
    new: bool,
    needs: Needs,
}

/// A name of a segment.
pub fn file_name(session: u64, segment: u64) -> String {
    format!("{session:016x}-{segment:016x}.log")
}

/// Session and segment of a name.
pub fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (session, segment) = name.strip_suffix(".log")?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let both = (number(session)?, number(segment)?);
    (file_name(both.0, both.1) == name).then_some(both)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Needs {
    /// Adds what a record needs.
    pub fn add(&mut self, number: u64, record: &Record<'_>) {
        match record {
            Record::Cut(length) => {
                self.lower(*length);
                self.cut = number;
            }
            Record::Rows(r) => {
                for i in 0..r.seals.len() {
                    let end = self.ends.entry((r.layer, r.kv_head + i)).or_default();
                    *end = (*end).max(r.begin + r.tokens);
                }
            }
        }
    }

    /// Rows beyond a truncation are not needed any more.
    pub fn lower(&mut self, length: u64) {
        self.ends.values_mut().for_each(|end| *end = (*end).min(length));
    }
}

impl Log {
    /// A log in `folder` that goes on after record `number`, with the segments that are there already.
    pub fn new(
        folder: &Path,
        (session, fingerprint): (u64, [u8; 32]),
        number: u64,
        closed: VecDeque<(u64, Needs)>,
    ) -> Self {
        let segment = closed.back().map_or(0, |(segment, _)| *segment);
        Self {
            folder: folder.to_owned(),
            fingerprint,
            session,
            writing: Mutex::new(Writing { current: None, number, segment, closed, broken: None }),
            synced: AtomicU64::new(number),
            turn: tokio::sync::Mutex::new(()),
            durable: Mutex::default(),
        }
    }

    /// Writes a record, not synced yet; returns its number. An error means that it is not there.
    pub fn append(&self, record: &Record<'_>) -> Result<u64, LogError> {
        let mut guard = lock(&self.writing);
        let writing = &mut *guard;
        if let Some(why) = &writing.broken {
            return Err(LogError::Broken(why.clone()));
        }
        self.roll(writing)?;
        let number = writing.number + 1;
        let bytes = record.encode(number);
        let Some(current) = &mut writing.current else {
            return Err(LogError::Broken("it has no segment".into()));
        };
        if let Err(e) = (&*current.file).write_all(&bytes) {
            // Part of it may be there; it must not be taken for damage later.
            if let Err(worse) = current.file.set_len(current.length) {
                writing.broken = Some(worse.to_string());
            }
            return Err(LogError::Write(e));
        }
        fail::point("log appended");
        current.length += bytes.len() as u64;
        current.needs.add(number, record);
        if let Record::Cut(length) = record {
            writing.closed.iter_mut().for_each(|(_, needs)| needs.lower(*length));
        }
        writing.number = number;
        Ok(number)
    }

    /// Sees to it that there is a segment with room.
    fn roll(&self, writing: &mut Writing) -> Result<(), LogError> {
        if let Some(full) = writing.current.take_if(|c| c.length >= FULL) {
            // Only the last segment may end in the middle of a record.
            match full
                .file
                .sync_data()
                .and_then(|()| if full.new { sync_folder(&self.folder) } else { Ok(()) })
            {
                Ok(()) => {
                    self.synced.fetch_max(writing.number, Ordering::AcqRel);
                    writing.closed.push_back((writing.segment, full.needs));
                }
                Err(e) => {
                    writing.broken = Some(e.to_string());
                    return Err(LogError::Broken(e.to_string()));
                }
            }
        }
        if writing.current.is_some() {
            return Ok(());
        }
        let number = writing.segment + 1;
        let path = self.folder.join(file_name(self.session, number));
        let header = Segment { fingerprint: self.fingerprint, session: self.session, number }.encode();
        // Under another name until the header is in it: a log without one is then always damage.
        let temporary = path.with_extension(TEMPORARY);
        let created = File::options().append(true).create(true).open(&temporary).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(&header)?;
            std::fs::rename(&temporary, &path)?;
            Ok(file)
        });
        let file = created.map_err(|e| {
            // Of no use to anybody; if it cannot be removed now, the next start does it.
            let _ = std::fs::remove_file(&temporary);
            LogError::Write(e)
        })?;
        fail::point("log created");
        writing.segment = number;
        let length = header.len() as u64;
        writing.current = Some(Current { file: Arc::new(file), length, new: true, needs: Needs::default() });
        Ok(())
    }

    /// Returns once record `number` is on disk. An error means that it may not be; the log takes no more then.
    pub async fn sync(self: &Arc<Self>, number: u64) -> Result<(), LogError> {
        if self.is_synced(number) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if self.is_synced(number) {
            return Ok(());
        }
        let log = self.clone();
        let synced = tokio::task::spawn_blocking(move || log.sync_now()).await;
        synced.unwrap_or_else(|e| Err(LogError::Broken(e.to_string())))
    }

    fn is_synced(&self, number: u64) -> bool {
        self.synced.load(Ordering::Acquire) >= number
    }

    fn sync_now(&self) -> Result<(), LogError> {
        let (file, new, number) = {
            let writing = lock(&self.writing);
            if let Some(why) = &writing.broken {
                return Err(LogError::Broken(why.clone()));
            }
            match &writing.current {
                None => return Ok(()),
                Some(current) => (current.file.clone(), current.new, writing.number),
            }
        };
        let synced = file.sync_data().and_then(|()| if new { sync_folder(&self.folder) } else { Ok(()) });
        let mut writing = lock(&self.writing);
        if let Err(e) = synced {
            writing.broken = Some(e.to_string());
            return Err(LogError::Broken(e.to_string()));
        }
        if let Some(current) = writing.current.as_mut().filter(|c| Arc::ptr_eq(&c.file, &file)) {
            current.new = false;
        }
        drop(writing);
        self.synced.fetch_max(number, Ordering::AcqRel);
        fail::point("log synced");
        Ok(())
    }

    /// Number of the last record.
    pub fn last(&self) -> u64 {
        lock(&self.writing).number
    }

    /// Tokens of all heads that are on disk, and the count of truncations to give to [`Log::raise`].
    pub fn durable(&self) -> (u64, u64) {
        *lock(&self.durable)
    }

    /// Tells how many tokens of all heads a sync has brought to disk, as seen when the count of truncations was `cuts`.
    pub fn raise(&self, tokens: u64, cuts: u64) {
        let mut durable = lock(&self.durable);
        if durable.1 == cuts {
            durable.0 = durable.0.max(tokens);
        }
    }

    /// Tells that tokens are about to be dropped.
    pub fn lower(&self, length: u64) {
        let mut durable = lock(&self.durable);
        *durable = (durable.0.min(length), durable.1 + 1);
    }

    /// Removes the oldest segments of which nothing is `needed` any more.
    pub fn drop_segments(&self, needed: impl Fn(&Needs) -> bool) -> io::Result<()> {
        {
            let mut writing = lock(&self.writing);
            if let Some(idle) = writing.current.take_if(|c| c.length >= WORTH && !needed(&c.needs)) {
                // All of it is in the catalogue: nobody need wait for its sync.
                self.synced.fetch_max(writing.number, Ordering::AcqRel);
                let segment = writing.segment;
                writing.closed.push_back((segment, idle.needs));
            }
        }
        loop {
            let number = {
                let writing = lock(&self.writing);
                match writing.closed.front() {
                    Some((number, needs)) if !needed(needs) => *number,
                    _ => return Ok(()),
                }
            };
            self.remove_segment(number)?;
            fail::point("log dropped");
            lock(&self.writing).closed.pop_front();
        }
    }

    /// Removes every segment: the session has ended.
    pub fn remove(&self) -> io::Result<()> {
        let mut writing = lock(&self.writing);
        writing.broken = Some("the session has ended".into());
        let current = writing.current.take().map(|_| writing.segment);
        for number in std::mem::take(&mut writing.closed).into_iter().map(|c| c.0).chain(current) {
            self.remove_segment(number)?;
        }
        Ok(())
    }

    /// One that is not there was removed, or put away, before.
    fn remove_segment(&self, number: u64) -> io::Result<()> {
        match std::fs::remove_file(self.folder.join(file_name(self.session, number))) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}
