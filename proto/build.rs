//! Compiles kv.proto without protoc: protox parses it, tonic-prost-build writes the Rust.
use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=kv.proto");
    let set = protox::Compiler::new(["."])?
        .include_source_info(true)
        .include_imports(true)
        .open_file("kv.proto")?
        .file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Source info becomes the doc comments of the generated code; reflection does not need it.
    let mut served = set.clone();
    for file in &mut served.file {
        file.source_code_info = None;
    }
    fs::write(out.join("kv.bin"), encode(&served))?;
    tonic_prost_build::configure().bytes(".recollect.v1.Tensor.data").compile_fds(set)?;
    Ok(())
}

fn encode(set: &prost_types::FileDescriptorSet) -> Vec<u8> {
    prost::Message::encode_to_vec(set)
}
