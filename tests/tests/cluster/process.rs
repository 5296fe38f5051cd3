//! The process itself: flags, configuration, exit codes, one line for each refusal.

use e2e::daemon::{Daemon, Ended, free_address, run};
use e2e::http;

/// One line on standard error that contains all of `parts`.
fn one_line(ended: &Ended, code: i32, parts: &[&str]) {
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(lines.len(), 1, "{ended:?}");
    for part in parts {
        assert!(lines[0].contains(part), "{part} in {ended:?}");
    }
}

fn serve(config: &str, flags: &[&str]) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("recollectd.toml");
    std::fs::write(&file, config).expect("write");
    let (grpc, http) = (free_address().expect("a port"), free_address().expect("a port"));
    let file = file.to_str().expect("UTF-8");
    let fixed = ["serve", "--listen", &grpc, "--http", &http, "--config", file];
    run(&[&fixed, flags].concat()).expect("it ends")
}

#[test]
fn bad_configuration_is_refused_before_a_port_opens() {
    one_line(&serve("no_such_key = 1\n", &[]), 64, &["no_such_key"]);
    one_line(&serve("[server]\nmax_mesage = 1\n", &[]), 64, &["max_mesage"]);
    one_line(&serve("[server\n", &[]), 64, &[]);
    one_line(&serve("", &["--memory", "lots"]), 64, &["lots"]);
    one_line(&serve("", &["--memory", "0"]), 64, &["memory"]);
    one_line(
        &run(&["serve", "--config", "/no/such/file.toml"]).expect("it ends"),
        64,
        &["/no/such/file.toml"],
    );
    let address = free_address().expect("a port");
    one_line(&run(&["serve", "--listen", "nowhere", "--http", &address]).expect("it ends"), 64, &["nowhere"]);
}

#[test]
fn a_taken_port_is_unavailable() {
    let daemon = Daemon::start(&["--memory", "64MiB"]).expect("a daemon");
    let free = free_address().expect("a port");
    let ended = run(&["serve", "--listen", &daemon.grpc, "--http", &free]).expect("it ends");
    one_line(&ended, 69, &[&daemon.grpc]);
    let ended = run(&["serve", "--listen", &free, "--http", &daemon.http]).expect("it ends");
    one_line(&ended, 69, &[&daemon.http]);
}

/// File, then environment, then flags; the last one wins and the effective one is printed.
#[test]
fn the_effective_configuration_is_printed() {
    let ended = serve("[server]\nmax_message = 123456\n", &["--memory", "96MiB", "--print-config"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("123456"), "{ended:?}");
    let daemon =
        Daemon::start_with(&["--memory", "96MiB"], "[server]\nmax_message = 123456\n").expect("a daemon");
    let budget = http::metric(&daemon.http, wire::names::MEMORY_BUDGET_BYTES, &[]).expect("metric");
    assert_eq!(budget, f64::from(96 << 20));
}

#[test]
fn a_stop_signal_ends_an_idle_daemon_at_once() {
    let mut daemon = Daemon::start(&["--memory", "64MiB"]).expect("a daemon");
    daemon.terminate().expect("SIGTERM");
    let status = daemon.wait(std::time::Duration::from_secs(10)).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
}
