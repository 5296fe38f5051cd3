//! Progress on stderr: a bar once a task has lasted two seconds, nothing when stderr is not a terminal.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One task of known length.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: Cell<bool>,
}

impl Progress {
    /// A hidden bar; it shows itself when the task turns out to be long.
    pub fn new(label: &str, steps: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {eta}") {
            bar.set_style(style);
        }
        bar.set_message(label.to_owned());
        Self { bar, started: Instant::now(), shown: Cell::new(!std::io::stderr().is_terminal()) }
    }

    /// One step done.
    pub fn step(&self) {
        if !self.shown.get() && self.started.elapsed() > Duration::from_secs(2) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown.set(true);
        }
        self.bar.inc(1);
    }

    /// One step done of `all`, where their number was not known at first.
    pub fn step_of(&self, all: u64) {
        self.bar.set_length(all);
        self.step();
    }

    /// The task is over; the bar goes.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
