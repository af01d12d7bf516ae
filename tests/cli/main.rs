//! The command line.

mod bad_input;
mod between;
mod cache;
mod commands;
mod explore;
mod exported;
mod folder;
mod interrupted;
mod pipeline;
mod tune;
