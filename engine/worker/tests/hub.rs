//! `--model hub:OWNER/NAME` against a server of the test's own: fetched once, then read from the cache.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::TinyModel;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves the files of `folder` as `/tiny/llama/resolve/main/FILE`; counts the requests.
fn serve(folder: PathBuf) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            // A client that hangs up early is its own affair.
            answer(stream.unwrap(), &folder).ok();
        }
    });
    (address, requests)
}

fn answer(mut stream: TcpStream, folder: &Path) -> std::io::Result<()> {
    let mut path = String::new();
    let mut from = None;
    for (i, line) in BufReader::new(stream.try_clone()?).lines().enumerate() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if i == 0 {
            path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        } else if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            from = range.split_once('-').map(|(a, b)| (a.parse().unwrap_or(0), b.parse::<usize>().ok()));
        }
    }
    let file = path.strip_prefix("/tiny/llama/resolve/main/").map(|name| folder.join(name));
    let Some(mut file) = file.and_then(|file| std::fs::File::open(file).ok()) else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let (begin, last) = from.unwrap_or((0, None));
    let end = last.map_or(bytes.len(), |last| (last + 1).min(bytes.len()));
    let etag = path.len() * 1_000_003 + bytes.len();
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {begin}-{}/{}\r\n\
         ETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        end - begin,
        end - 1,
        bytes.len()
    )?;
    stream.write_all(&bytes[begin..end])
}

fn generate(model: &str, (endpoint, home): (&str, &Path)) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recollect"))
        .args(["generate", "--model", model, "--raw", "--prompt", "a few words", "--max-new", "6", "--json"])
        .envs([("HF_ENDPOINT", endpoint), ("HF_HOME", home.to_str().unwrap())])
        .output()
        .unwrap()
}

fn token_ids(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
    serde_json::from_str::<serde_json::Value>(&last).unwrap()["token_ids"].clone()
}

#[test]
fn a_hub_model_is_fetched_once_and_equal_to_the_directory() {
    for files in [1, 2] {
        let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = TinyModel::small(2).write_directory(source.path(), files);
        let (endpoint, requests) = serve(directory.clone());
        let expected = token_ids(&generate(directory.to_str().unwrap(), ("http://127.0.0.1:1", home.path())));
        assert_eq!(requests.load(Ordering::SeqCst), 0);
        let fetched = token_ids(&generate("hub:tiny/llama", (&endpoint, home.path())));
        assert_eq!(fetched, expected, "{files} files");
        assert!(requests.load(Ordering::SeqCst) > 0);
        // The cache answers when the server is gone.
        let again = token_ids(&generate("hub:tiny/llama", ("http://127.0.0.1:1", home.path())));
        assert_eq!(again, expected, "{files} files, cached");
    }
}

#[test]
fn a_hub_file_not_to_be_had_is_one_line_and_exit_code_69() {
    let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = TinyModel::small(1).write_directory(source.path(), 1);
    std::fs::remove_file(directory.join("model.safetensors")).unwrap();
    let (endpoint, _) = serve(directory);
    for (name, file) in [("hub:other/llama", "config.json"), ("hub:tiny/llama", "model.safetensors")] {
        let output = generate(name, (&endpoint, home.path()));
        let said = String::from_utf8_lossy(&output.stderr);
        let error = said.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(error.starts_with(&format!("error: {name}: {file}: ")), "{said}");
    }
}
