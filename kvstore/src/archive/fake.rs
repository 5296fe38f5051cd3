//! A small S3 server that misbehaves as a test tells it to: enough of the protocol for one client, nothing of its security.

use super::place::Variables;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As they should be.
    Serve,
    /// With 403.
    Deny,
    /// Not at all.
    Hang,
    /// Bodies end before the length that was told.
    Short,
    /// Bodies have a bit turned.
    Flip,
    /// So many with 503, then as they should be.
    Busy(u32),
}

struct State {
    mode: Mode,
    objects: BTreeMap<String, Vec<u8>>,
}

/// The server; its thread ends with the process.
pub struct Fake {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Fake {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { mode: Mode::Serve, objects: BTreeMap::new() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // What a client breaks off is its own business.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self { address, state }
    }

    pub fn set(&self, mode: Mode) {
        self.state.lock().unwrap().mode = mode;
    }

    pub fn keys(&self) -> Vec<String> {
        self.state.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Endpoint and credentials.
    pub fn variables(&self) -> Variables {
        let set = [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "nowhere-1".into()),
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "test".into()),
            ("AWS_SOMETHING_ELSE", "is left alone".into()),
        ];
        Variables(set.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (verb, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.splitn(3, '/').nth(2).unwrap_or_default().to_owned();
    let mode = {
        let mut state = state.lock().unwrap();
        let mode = state.mode;
        if let Mode::Busy(n) = mode {
            state.mode = if n > 1 { Mode::Busy(n - 1) } else { Mode::Serve };
        }
        mode
    };
    let (code, body) = match mode {
        Mode::Hang => {
            std::thread::sleep(Duration::from_secs(30));
            return Ok(());
        }
        Mode::Deny => (403, error("AccessDenied")),
        Mode::Busy(_) => (503, error("SlowDown")),
        Mode::Serve | Mode::Short | Mode::Flip => {
            serve(verb, &key, query, body, &mut state.lock().unwrap().objects)
        }
    };
    send(stream, code, body, mode)
}

fn serve(
    verb: &str,
    key: &str,
    query: &str,
    body: Vec<u8>,
    objects: &mut BTreeMap<String, Vec<u8>>,
) -> (u16, Vec<u8>) {
    const XMLNS: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    match verb {
        "PUT" => {
            objects.insert(key.to_owned(), body);
            (200, Vec::new())
        }
        "DELETE" => {
            objects.remove(key);
            (204, Vec::new())
        }
        // Several at once, named in the body.
        "POST" => {
            let text = String::from_utf8_lossy(&body).into_owned();
            let keys = text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
            let gone = keys.map(|(key, _)| {
                objects.remove(key);
                format!("<Deleted><Key>{key}</Key></Deleted>")
            });
            let gone: String = gone.collect();
            (200, format!("<DeleteResult {XMLNS}>{gone}</DeleteResult>").into())
        }
        "GET" if query.contains("list-type=2") => {
            let prefix = query.split('&').find_map(|p| p.strip_prefix("prefix=")).unwrap_or_default();
            let prefix = prefix.replace("%2F", "/");
            let entry = |(key, body): (&String, &Vec<u8>)| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>{}</Size></Contents>",
                    body.len()
                )
            };
            let found = objects.iter().filter(|(key, _)| key.starts_with(&prefix)).map(entry);
            let found: String = found.collect();
            (
                200,
                format!(
                    "<ListBucketResult {XMLNS}><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
                )
                .into(),
            )
        }
        _ => match objects.get(key) {
            Some(body) => (200, body.clone()),
            None => (404, error("NoSuchKey")),
        },
    }
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>").into()
}

fn send(mut stream: TcpStream, code: u16, mut body: Vec<u8>, mode: Mode) -> std::io::Result<()> {
    let told = body.len();
    match mode {
        Mode::Short => body.truncate(told / 2),
        Mode::Flip => body.iter_mut().skip(told / 2).take(1).for_each(|b| *b ^= 1),
        _ => {}
    }
    write!(
        stream,
        "HTTP/1.1 {code} x\r\ncontent-length: {told}\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\netag: \"1\"\r\nconnection: close\r\n\r\n"
    )?;
    stream.write_all(&body)?;
    stream.flush()
}
