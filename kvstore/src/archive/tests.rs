use super::*;

fn settings(url: String) -> Settings {
    Settings { url, timeout: Duration::from_millis(300), retries: 1, variables: Default::default() }
}

fn key(archive: &Archive, id: u64) -> Path {
    archive.key(&[7; 32], 3, id)
}

#[test]
fn objects_of_a_directory_are_written_read_listed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("made/on/demand").display());
    let (one, two) = (settings(url.clone()), settings(url));
    let (one, two) = (Archive::open(&one, "one").unwrap(), Archive::open(&two, "two").unwrap());
    let digest = one.put(&key(&one, 1), b"rows".to_vec()).unwrap();
    assert_eq!(one.fetch(&key(&one, 1), &digest).unwrap(), b"rows");
    two.put(&key(&two, 2), b"other".to_vec()).unwrap();
    assert_eq!(one.keys().unwrap(), [key(&one, 1)]);
    let e = one.fetch(&key(&one, 1), &[0; 32]).unwrap_err();
    assert!(matches!(e, ArchiveError::Differs(_)) && e.code() == Code::DataLoss, "{e}");
    one.remove(&key(&one, 1)).unwrap();
    one.remove(&key(&one, 1)).unwrap();
    assert!(matches!(one.fetch(&key(&one, 1), &digest), Err(ArchiveError::Gone(_))));
    assert!(one.keys().unwrap().is_empty());
    assert_eq!(two.keys().unwrap().len(), 1);
}

#[test]
fn urls_are_read_or_refused_in_one_line() {
    let check = |url: &str| settings(url.into()).check();
    check("file:///some/where").unwrap();
    for url in ["", "x", "/some/where", "file://some/where", "http://host/", "gs://bucket", "file:/x"] {
        let e = check(url).unwrap_err().to_string();
        assert!(e.contains("archive.url (--archive): ") && !e.contains('\n'), "{e}");
    }
    #[cfg(not(feature = "s3"))]
    assert!(check("s3://bucket/prefix").unwrap_err().to_string().contains("--features s3"));
    #[cfg(feature = "s3")]
    {
        check("s3://bucket/prefix").unwrap();
        check("s3://bucket").unwrap();
        assert!(check("s3:///prefix").unwrap_err().to_string().contains("no bucket"));
        assert!(check("s3://bucket/a//b").is_err());
    }
}

#[test]
fn values_of_variables_are_not_printed() {
    let secret = ("AWS_SECRET_ACCESS_KEY".to_owned(), "hush".to_owned());
    let settings = Settings { variables: place::Variables(vec![secret]), ..settings("file:///x".into()) };
    assert!(!format!("{settings:?}").contains("hush"));
}

#[cfg(feature = "s3")]
#[test]
fn faults_of_a_server_are_one_line_each() {
    use fake::{Fake, Mode};
    let fake = Fake::start();
    let settings = Settings { variables: fake.variables(), ..settings("s3://bucket/a/prefix".into()) };
    let archive = Archive::open(&settings, "me").unwrap();
    let key = key(&archive, 1);
    let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let digest = archive.put(&key, bytes.clone()).unwrap();
    assert!(fake.keys()[0].starts_with("a/prefix/me/0707"), "{:?}", fake.keys());
    assert_eq!(archive.keys().unwrap(), std::slice::from_ref(&key));
    for (mode, words, code) in [
        (Mode::Deny, "AccessDenied", Code::Unavailable),
        (Mode::Hang, "", Code::Unavailable),
        (Mode::Short, "", Code::Unavailable),
        (Mode::Busy(100), "", Code::Unavailable),
        (Mode::Flip, "other bytes", Code::DataLoss),
    ] {
        fake.set(mode);
        let e = archive.fetch(&key, &digest).unwrap_err();
        let text = e.to_string();
        assert!(e.code() == code && text.contains(words) && !text.contains('\n'), "{mode:?}: {e}");
        assert!(text.contains(key.as_ref()), "{mode:?}: {e}");
        let e = archive.put(&key, bytes.clone()).unwrap_err();
        assert_eq!(e.code(), code, "{mode:?}: {e}");
    }
    // One that is busy once is asked again.
    fake.set(Mode::Busy(1));
    assert_eq!(archive.fetch(&key, &digest).unwrap(), bytes);
    archive.remove(&key).unwrap();
    assert!(fake.keys().is_empty() && archive.keys().unwrap().is_empty());
    assert!(matches!(archive.fetch(&key, &digest), Err(ArchiveError::Gone(_))));
}
