use super::records::*;
use super::*;
use proptest::prelude::*;
use std::path::Path;

const CACHE: u64 = 1 << 20;

/// Runs a test on both catalogues.
fn on_both(test: impl Fn(&dyn Catalogue)) {
    test(&memory::Memory::default());
    let folder = tempfile::tempdir().unwrap();
    test(&sled::Sled::open(&folder.path().join("catalogue"), CACHE).unwrap());
}

fn put(table: Table, key: &[u8], value: &[u8]) -> Change {
    Change::Put(table, key.to_vec(), value.to_vec())
}

#[test]
fn tables_are_apart_and_scans_in_order() {
    on_both(|c| {
        c.apply(&[
            put(Table::Spans, b"b2", b"4"),
            put(Table::Spans, b"a", b"1"),
            put(Table::Spans, b"b1", b"3"),
            put(Table::Extents, b"b1", b"other"),
        ])
        .unwrap();
        assert_eq!(c.get(Table::Spans, b"b1").unwrap(), Some(b"3".to_vec()));
        assert_eq!(c.get(Table::Leases, b"b1").unwrap(), None);
        let found = c.scan(Table::Spans, b"b").unwrap();
        assert_eq!(found, [(b"b1".to_vec(), b"3".to_vec()), (b"b2".to_vec(), b"4".to_vec())]);
        assert_eq!(c.scan(Table::Spans, b"").unwrap().len(), 3);
        c.apply(&[Change::Remove(Table::Spans, b"b1".to_vec()), put(Table::Spans, b"a", b"9")]).unwrap();
        c.apply(&[Change::Remove(Table::Spans, b"never there".to_vec())]).unwrap();
        let found = c.scan(Table::Spans, b"").unwrap();
        assert_eq!(found, [(b"a".to_vec(), b"9".to_vec()), (b"b2".to_vec(), b"4".to_vec())]);
    });
}

#[test]
fn what_was_applied_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalogue");
    for round in 0..5u64 {
        let c = sled::Sled::open(&path, CACHE).unwrap();
        assert_eq!(c.scan(Table::Sessions, b"").unwrap().len() as u64, round);
        c.apply(&[put(Table::Sessions, &number_key(round), b"x")]).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn a_tree_older_than_its_stamp_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("catalogue"), folder.path().join("old"));
    let c = sled::Sled::open(&path, CACHE).unwrap();
    c.apply(&[put(Table::Sessions, b"1", b"x")]).unwrap();
    drop(c);
    copy(&path, &old);
    let c = sled::Sled::open(&path, CACHE).unwrap();
    c.apply(&[put(Table::Sessions, b"2", b"x")]).unwrap();
    drop(c);
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::rename(&old, &path).unwrap();
    let e = sled::Sled::open(&path, CACHE).err().unwrap().to_string();
    assert!(e.contains("1 batches of the 2 that were written"), "{e}");
}

#[test]
fn damaged_trees_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalogue");
    let c = sled::Sled::open(&path, CACHE).unwrap();
    for i in 0..40u64 {
        c.apply(&[put(Table::Sessions, &number_key(i), &[7; 100])]).unwrap();
    }
    drop(c);
    for round in 0..12usize {
        let hurt = folder.path().join(format!("hurt{round}"));
        copy(&path, &hurt);
        let _ = std::fs::copy(path.with_extension("stamp"), hurt.with_extension("stamp"));
        let mut bytes = std::fs::read(hurt.join("db")).unwrap();
        let at = bytes.len() * round / 13;
        bytes[at..].iter_mut().take(50).for_each(|b| *b ^= 0x55);
        std::fs::write(hurt.join("db"), &bytes).unwrap();
        // All is there, or it is refused.
        if let Ok(c) = sled::Sled::open(&hurt, CACHE) {
            let found = c.scan(Table::Sessions, b"");
            assert!(found.is_err() || found.unwrap().len() == 40, "round {round}");
        }
    }
}

proptest! {
    #[test]
    fn records_read_back_and_damage_is_an_error(
        ends in proptest::collection::vec(1u64..1 << 40, 0..6),
        flip in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let spans = ends.iter().map(|&end| SpanRecord {
            end, visible_end: end, extents: vec![end, 3], queries: end % 2, ..Default::default()
        });
        let record = HeadRecord { spans: spans.collect(), version: 4, cut: 9 };
        let value = encode(&record);
        prop_assert_eq!(&decode::<HeadRecord>("head", &value).unwrap(), &record);
        let at = flip.index(value.len());
        prop_assert!(decode::<HeadRecord>("head", &value[..at]).is_err());
        let mut hurt = value;
        hurt[at] ^= 1 << bit;
        let e = decode::<HeadRecord>("head", &hurt).unwrap_err().to_string();
        prop_assert!(e.starts_with("the catalogue: head: ") && !e.contains('\n'));
    }

    #[test]
    fn random_values_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut framed = encode(&VersionRecord::default());
        framed.truncate(1);
        framed.extend(crc32fast::hash(&bytes).to_le_bytes());
        framed.extend(&bytes);
        let _ = decode::<SessionRecord>("session", &framed);
        let _ = decode::<HeadRecord>("head", &framed);
        prop_assert!(decode::<SessionRecord>("session", &bytes).is_err());
    }
}
