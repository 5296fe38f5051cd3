//! The twin in RAM: what a catalogue is, without a disk.

use super::{Catalogue, CatalogueError, Change, Entry, Table};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Entries = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// Tables in RAM.
#[derive(Debug, Default)]
pub struct Memory {
    /// Held for one look-up or one batch.
    entries: Mutex<Entries>,
}

impl Memory {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Catalogue for Memory {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, CatalogueError> {
        Ok(self.entries().get(&(table, key.to_vec())).cloned())
    }

    fn scan(&self, table: Table, prefix: &[u8]) -> Result<Vec<Entry>, CatalogueError> {
        let entries = self.entries();
        let from = entries.range((table, prefix.to_vec())..);
        let within = from.take_while(|((t, key), _)| *t == table && key.starts_with(prefix));
        Ok(within.map(|((_, key), value)| (key.clone(), value.clone())).collect())
    }

    fn apply(&self, changes: &[Change]) -> Result<(), CatalogueError> {
        let mut entries = self.entries();
        for change in changes {
            match change {
                Change::Put(table, key, value) => entries.insert((*table, key.clone()), value.clone()),
                Change::Remove(table, key) => entries.remove(&(*table, key.clone())),
            };
        }
        Ok(())
    }
}
