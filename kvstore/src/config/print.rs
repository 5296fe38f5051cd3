//! The effective configuration, as it is told.

use super::Config;
use crate::telemetry::LogFormat;

impl Config {
    /// The effective configuration as a TOML file.
    pub fn print(&self) -> String {
        let Self { server, memory, attend, index, sessions, storage, tiers, archive, log } = self;
        let format = match log.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        format!(
            "[server]\nlisten = \"{}\"\nhttp = \"{}\"\nmax_message = \"{}\"\ngrace_seconds = {}\n\n\
             [memory]\nbudget = \"{}\"\n\n\
             [attend]\nthreads = {}\nqueue = {}\n\n\
             [index]\nthreads = {}\nmin_tokens = {}\nrecall = {:?}\nseal_tokens = {}\n\
             merge = {}\n\n\
             [sessions]\nlease_seconds = {}\n\n\
             [storage]\npath = {:?}\ncatalogue_cache = \"{}\"\n\n\
             [tiers]\ncold = \"{}\"\ncold_seconds = {}\nsketch_percent = {}\narchive_seconds = {}\nbring_back = {}\n\n\
             [archive]\nurl = {:?}\ntimeout_seconds = {}\nretries = {}\n\n\
             [log]\nformat = \"{format}\"\nfilter = {:?}\n",
            server.listen,
            server.http,
            server.max_message,
            server.grace_seconds,
            memory.budget,
            attend.threads,
            attend.queue,
            index.threads,
            index.min_tokens,
            index.recall,
            index.seal_tokens,
            index.merge,
            sessions.lease_seconds,
            storage.path,
            storage.catalogue_cache,
            tiers.cold.name(),
            tiers.cold_seconds,
            tiers.sketch_percent,
            tiers.archive_seconds,
            tiers.bring_back,
            archive.url,
            archive.timeout_seconds,
            archive.retries,
            log.filter,
        )
    }
}
