//! A shard server as a process of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `recollectd`, killed when dropped.
pub struct Daemon {
    child: Child,
    pub address: String,
    /// Of which not every test asks anything.
    #[allow(dead_code)]
    pub http: String,
}

impl Daemon {
    /// On free ports, ready for connections.
    pub fn start() -> Daemon {
        Self::start_with(&[])
    }

    /// The same with settings from the environment.
    pub fn start_with(environment: &[(&str, &str)]) -> Daemon {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let (address, http) = (free(), free());
        let binary = Path::new(env!("CARGO_BIN_EXE_recollect")).with_file_name("recollectd");
        assert!(
            binary.is_file(),
            "{} is absent; build it first: cargo build --release --bins",
            binary.display()
        );
        let child = Command::new(binary)
            .envs(environment.iter().copied())
            .args(["serve", "--listen", &address, "--http", &http])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < until, "recollectd is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        Daemon { child, address, http }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
