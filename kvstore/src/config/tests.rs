use super::*;

fn with_file(text: &str) -> Result<Config, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Config::load_within(&Flags { config: Some(file.path().to_owned()), ..Flags::default() }, None)
}

#[test]
fn what_is_printed_reads_back() {
    let mut config = Config::default();
    config.server.listen = "[::1]:9".parse().unwrap();
    config.memory.budget = Size(5 << 20);
    config.index.recall = 0.9;
    config.index.merge = false;
    config.storage.path = "/some/where \"else\"".into();
    config.storage.catalogue_cache = Size(1 << 20);
    config.archive.url = "file:///some/where".into();
    config.archive.retries = 0;
    config.tiers = Tiers {
        cold: Cold::Sketch,
        cold_seconds: 9,
        sketch_percent: 7,
        archive_seconds: 11,
        bring_back: false,
    };
    config.log.filter = "kvstore=debug,info".into();
    assert_eq!(with_file(&config.print()).unwrap(), config);
}

#[test]
fn the_page_of_settings_tells_every_one_with_its_default() {
    let page = include_str!("../../../docs/SETTINGS.md");
    let block = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let plain = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let told: Vec<&str> = block.lines().filter(plain).collect();
    let printed = Config::default().print();
    assert_eq!(told, printed.lines().filter(plain).collect::<Vec<_>>());
}

#[test]
fn flags_beat_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[memory]\nbudget = \"1GiB\"\n[attend]\nthreads = 3\n").unwrap();
    let flags = Flags {
        config: Some(file.path().to_owned()),
        memory: Some(Size(2 << 30)),
        listen: Some("[::1]:7".parse().unwrap()),
        ..Flags::default()
    };
    let config = Config::load_within(&flags, None).unwrap();
    assert_eq!(config.memory.budget, Size(2 << 30));
    assert_eq!(config.attend.threads, 3);
    assert_eq!(config.server.listen.to_string(), "[::1]:7");
    assert_eq!(config.server.http, Address::loopback(7421));
}

#[test]
fn mistakes_are_one_line_that_names_the_key() {
    for (text, name) in [
        ("[server]\nlisen = \"127.0.0.1:1\"\n", "lisen"),
        ("[sever]\n", "sever"),
        ("top = 1\n", "top"),
        ("[memory]\nbudget = \"4GB\"\n", "memory.budget"),
        ("[memory]\nbudget = 17\n", "memory.budget"),
        ("[memory]\nbudget = -1\n", "memory.budget"),
        ("[server]\nlisten = \"::1\"\n", "server.listen"),
        ("[server]\nlisten = 7420\n", "server.listen"),
        ("[server]\nmax_message = \"1KiB\"\n", "server.max_message"),
        ("[server]\nhttp = \"127.0.0.1:7420\"\n", "server.http"),
        ("[attend]\nthreads = \"many\"\n", "attend.threads"),
        ("[attend]\nqueue = 0\n", "attend.queue"),
        ("[index]\nrecall = 1.5\n", "index.recall"),
        ("[index]\nrecall = nan\n", "index.recall"),
        ("[sessions]\nlease_seconds = 0\n", "sessions.lease_seconds"),
        ("[log]\nformat = \"xml\"\n", "log.format"),
        ("[log]\nfilter = \"a=b=c\"\n", "log.filter"),
        ("[storage]\ncatalogue_cache = \"1KiB\"\n", "storage.catalogue_cache"),
        (
            "[memory]\nbudget = \"3MiB\"\n[storage]\npath = \"x\"\n",
            "memory.budget: 3145728, must be at least 4194304",
        ),
        ("[archive]\nurl = \"ftp://x\"\n", "archive.url"),
        ("[archive]\nurl = \"file:///x\"\n", "archive.url: needs storage.path (--data)"),
        ("[tiers]\ncold = \"int4\"\n", "tiers.cold"),
        ("[tiers]\ncold = \"int8\"\n", "tiers.cold: needs storage.path (--data)"),
        ("[tiers]\nsketch_percent = 51\n", "tiers.sketch_percent: 51, must be in 1..=50"),
        ("[tiers]\ncold_seconds = 0\n", "tiers.cold_seconds"),
        ("[tiers]\narchive_seconds = 60\n", "tiers.archive_seconds: needs archive.url (--archive)"),
        ("[archive]\ntimeout_seconds = 0\n", "archive.timeout_seconds"),
        ("[server\n", "--config"),
    ] {
        let e = with_file(text).unwrap_err();
        assert!(e.contains(name) && !e.contains('\n'), "{text:?}: {e}");
    }
    let e = with_file("[server]\nlisen = 1\n").unwrap_err();
    assert!(e.starts_with("server.lisen: no such setting; there are listen, http,"), "{e}");
    assert!(e.contains(" (in --config /"), "{e}");
    let e = with_file("[attend]\nthreads = \"many\"\n").unwrap_err();
    assert!(e.starts_with("attend.threads: ") && e.contains("many"), "{e}");
    let e = Config::load(&Flags { config: Some("/nowhere/x.toml".into()), ..Flags::default() });
    assert!(e.unwrap_err().contains("/nowhere/x.toml"));
}

#[test]
fn memory_on_a_command_line_has_the_limits_of_the_setting() {
    assert_eq!(parse_memory("4GiB"), Ok(4 << 30));
    for text in ["0", "64KiB", "2048TiB"] {
        let e = parse_memory(text).unwrap_err();
        assert!(e.ends_with(", must be in 1048576..=1125899906842624"), "{e}");
    }
    assert!(parse_memory("lots").unwrap_err().contains("is not a size"));
}

#[test]
fn the_budget_lies_within_the_limit_of_the_control_group() {
    let within = |memory: Option<u64>, limit| {
        let flags = Flags { memory: memory.map(Size), ..Flags::default() };
        Config::load_within(&flags, limit).map(|c| c.memory.budget.0)
    };
    assert_eq!(within(None, None), Ok(4 << 30));
    assert_eq!(within(None, Some(64 << 30)), Ok(4 << 30));
    assert_eq!(within(None, Some(2 << 30)), Ok(3 << 29));
    assert_eq!(within(Some(2 << 30), Some(2 << 30)), Ok(2 << 30));
    let e = within(Some(3 << 30), Some(2 << 30)).unwrap_err();
    assert!(e.contains("memory.budget: 3221225472 bytes") && e.contains("2147483648 bytes"), "{e}");
    // A limit below any budget.
    let e = within(None, Some(1 << 19)).unwrap_err();
    assert!(e.contains("1048576 bytes") && e.contains("524288 bytes"), "{e}");
}
