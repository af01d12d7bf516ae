//! The command line.

mod bad_input;
mod between;
mod cache;
mod commands;
mod explore;
mod exported;
mod folder;
mod interrupted;
mod loading;
mod pipeline;
#[path = "../common/protobuf.rs"]
#[allow(unreachable_pub, reason = "it is also a module of another test")]
mod protobuf;
mod tune;
