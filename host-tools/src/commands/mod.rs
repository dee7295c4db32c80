//! What the program can do.

pub mod image;
pub mod report;
pub mod run;
