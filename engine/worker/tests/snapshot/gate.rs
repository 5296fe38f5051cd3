//! A way to a shard that stops in the middle: connections go through until one has carried so much, then they wait.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between callers and one shard.
pub struct Gate {
    pub address: String,
    open: Arc<AtomicBool>,
    waiting: Arc<AtomicBool>,
}

impl Gate {
    /// Each connection carries `most` bytes each way before it waits.
    pub fn before(shard: &str, most: usize) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let gate = Gate { address, open: Arc::default(), waiting: Arc::default() };
        let (open, waiting, shard) = (gate.open.clone(), gate.waiting.clone(), shard.to_owned());
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&shard) else { return };
                for (from, to) in [(&caller, &server), (&server, &caller)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (open, waiting) = (open.clone(), waiting.clone());
                    std::thread::spawn(move || carry(from, to, most, &open, &waiting));
                }
            }
        });
        gate
    }

    /// Returns when a connection waits.
    pub fn wait(&self) {
        for _ in 0..6000 {
            if self.waiting.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no connection carries so much");
    }

    /// Lets everything through.
    pub fn open(&self) {
        self.open.store(true, Ordering::Release);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, most: usize, open: &AtomicBool, waiting: &AtomicBool) {
    let mut buffer = [0; 1 << 14];
    let mut carried = 0;
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        carried += n;
        while carried > most && !open.load(Ordering::Acquire) {
            waiting.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}
