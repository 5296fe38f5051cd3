//! Laws of the index over small data that the tests make.

mod anytime;
mod attend;
mod compact;
mod data;
mod golden;
mod hard;
mod saved;
mod sketch;
