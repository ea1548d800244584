//! Tests of the program and of its library, in one program: it is built in a fraction of the time that one for each file
//! takes. `cargo test --package zoneraid --test all daemon::` runs those of one file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

mod advice;
mod cli;
mod clients;
mod completions;
mod copies;
mod daemon;
mod demo;
mod full;
mod json;
mod looking;
mod manual;
mod names;
mod namespaces;
mod owner;
mod pool;
mod scrub;
mod single;
mod status;
mod tidy;
mod trouble;
mod volume;
