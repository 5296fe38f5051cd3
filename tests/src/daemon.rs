//! Real `recollectd` processes. Dropping one kills it.

use crate::http;
use anyhow::{Context, Result, bail, ensure};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a daemon may take to say that it is ready, on a loaded machine.
const START: Duration = Duration::from_secs(30);

/// A running daemon.
pub struct Daemon {
    /// Address of the gRPC port.
    pub grpc: String,
    /// Address of the HTTP port.
    pub http: String,
    child: Child,
    folder: TempDir,
}

/// A process that ended by itself.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; None when a signal ended it.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Daemon {
    /// Starts one on free ports, with further flags, and waits until it is ready.
    pub fn start(flags: &[&str]) -> Result<Daemon> {
        Daemon::start_with(flags, "")
    }

    /// The same with the text of a configuration file.
    pub fn start_with(flags: &[&str], config: &str) -> Result<Daemon> {
        Daemon::start_at(&free_address()?, flags, config)
    }

    /// The same on a given gRPC address.
    pub fn start_at(grpc: &str, flags: &[&str], config: &str) -> Result<Daemon> {
        let http = free_address()?;
        let folder = TempDir::new()?;
        let mut command = Command::new(binary()?);
        command.args(["serve", "--listen", grpc, "--http", &http]).args(flags);
        if !config.is_empty() {
            let file = folder.path().join("recollectd.toml");
            std::fs::write(&file, config)?;
            command.arg("--config").arg(file);
        }
        let log = std::fs::File::create(folder.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("recollectd does not start")?;
        let mut daemon = Daemon { grpc: grpc.to_owned(), http, child, folder };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let until = Instant::now() + START;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("recollectd ended with {status}: {}", self.log());
            }
            if matches!(http::get(&self.http, "/readyz"), Ok((200, _))) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "recollectd is not ready after {START:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it wrote so far, both streams.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        let status = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status()?;
        ensure!(status.success(), "kill: {status}");
        Ok(())
    }

    /// Sends SIGKILL and waits for the end, so that its port is free again.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for it to end by itself.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < until, "recollectd still runs after {limit:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs `recollectd` with these arguments to its end, which must come by itself.
pub fn run(arguments: &[&str]) -> Result<Ended> {
    let mut child = Command::new(binary()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let until = Instant::now() + START;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            bail!("recollectd {arguments:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
}

/// `recollectd` of the profile that this test was built in: `target/<profile>/deps/<test>` is two folders below it.
fn binary() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder =
        test.parent().and_then(|deps| deps.parent()).context("the test is not in a target folder")?;
    let path = folder.join("recollectd");
    ensure!(path.is_file(), "{} is absent; build it first: cargo build --release --bins", path.display());
    Ok(path)
}

/// A loopback address that nobody listens on, below the range from which the system serves outgoing connections.
pub fn free_address() -> Result<String> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 10_000) as u16;
    for _ in 0..10_000 {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port between 20000 and 30000")
}
