//! `hub:OWNER/NAME[@REVISION]`: a checkpoint directory from the Hugging Face hub, through its own cache.
//!
//! `HF_HOME` moves the cache, `HF_ENDPOINT` the server; a token is read where the hub's tools leave it. Files that are in
//! the cache are used as they are, without asking the server again.

use std::path::{Path, PathBuf};

use super::error::ModelError;

/// What marks a name of the hub.
const PREFIX: &str = "hub:";

/// Turns what `--model` was given into a path: names of the hub are fetched, all else is a path already.
///
/// # Errors
/// [`ModelError::Name`] for a name that is none, or in a build without the feature `hub`; [`ModelError::Hub`] when the
/// server or a file of the model is not to be had.
pub fn resolve(path: &Path) -> Result<PathBuf, ModelError> {
    let model = path.to_str().unwrap_or_default();
    let Some(name) = model.strip_prefix(PREFIX) else {
        return Ok(path.to_path_buf());
    };
    let (repository, revision) = name.split_once('@').unwrap_or((name, "main"));
    let plain = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && part.chars().all(known) && !part.starts_with('.') && !part.contains("..")
    };
    let named = repository.split_once('/').is_some_and(|(owner, name)| plain(owner) && plain(name));
    if !named || !plain(revision) {
        return Err(ModelError::Name {
            name: model.into(),
            reason: "is not hub:OWNER/NAME or hub:OWNER/NAME@REVISION".into(),
        });
    }
    fetch(model, repository, revision)
}

#[cfg(not(feature = "hub"))]
fn fetch(model: &str, _repository: &str, _revision: &str) -> Result<PathBuf, ModelError> {
    Err(ModelError::Name {
        name: model.into(),
        reason: "this build has no hub download; build with --features worker/hub, or give a path".into(),
    })
}

#[cfg(feature = "hub")]
fn fetch(model: &str, repository: &str, revision: &str) -> Result<PathBuf, ModelError> {
    use hf_hub::api::sync::ApiBuilder;
    use hf_hub::{Cache, Repo, RepoType};

    const ONE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let error = |file: &str, reason: &dyn std::fmt::Display| ModelError::Hub {
        name: model.into(),
        reason: super::error::first_line(format!("{file}: {reason}")),
    };
    let repo = Repo::with_revision(repository.into(), RepoType::Model, revision.into());
    let cached = Cache::from_env().repo(repo.clone());
    let api = ApiBuilder::from_env().with_retries(2).build().map_err(|e| error("hub", &e))?.repo(repo);
    let get = |file: &str| api.get(file).map_err(|e| error(file, &e));

    let config = get("config.json")?;
    get("tokenizer.json")?;
    // A small model is one file, a large one comes with an index of its files.
    let index = match cached.get(ONE) {
        Some(_) => None,
        None => api.get(INDEX).ok(),
    };
    match index {
        None => {
            get(ONE)?;
        }
        Some(index) => {
            let text = std::fs::read_to_string(&index).map_err(ModelError::io(&index))?;
            for file in weight_files(&text).map_err(|reason| error(INDEX, &reason))? {
                get(&file)?;
            }
        }
    }
    // All files of a revision lie in one directory of the cache.
    Ok(config.parent().map(PathBuf::from).unwrap_or_default())
}

/// The files that an index of weights names, each once; only names in the same directory are followed.
#[cfg(feature = "hub")]
fn weight_files(index: &str) -> Result<std::collections::BTreeSet<String>, String> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_str(index).map_err(|e| e.to_string())?;
    for file in index.weight_map.values() {
        if !file.ends_with(".safetensors") || file.contains(['/', '\\']) {
            return Err(format!("weight_map names {file:?}, which is no .safetensors file beside it"));
        }
    }
    Ok(index.weight_map.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_left_alone_and_bad_names_refused() {
        assert_eq!(resolve(Path::new("some/dir")).unwrap(), PathBuf::from("some/dir"));
        for bad in
            ["hub:", "hub:name", "hub:/name", "hub:a/b/c", "hub:a/..", "hub:a/b@", "hub:a/b@x/y", "hub:a/b c"]
        {
            let error = resolve(Path::new(bad)).unwrap_err();
            assert!(error.is_usage(), "{bad}");
            assert!(error.to_string().starts_with(bad), "{error}");
        }
    }

    #[cfg(feature = "hub")]
    #[test]
    fn an_index_names_files_beside_it_only() {
        let named = weight_files(
            r#"{"weight_map": {"a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors"}}"#,
        );
        assert_eq!(named.unwrap().into_iter().collect::<Vec<_>>(), ["x.safetensors", "y.safetensors"]);
        for bad in ["../x.safetensors", "x.bin", "a/x.safetensors"] {
            assert!(weight_files(&format!(r#"{{"weight_map": {{"a": "{bad}"}}}}"#)).is_err(), "{bad}");
        }
        assert!(weight_files("{}").is_err());
    }
}
