//! The seeded crash simulator: it plays lives of arrays, namespaces and volumes on emulated drives, and judges them.
//!
//! An array with two parities on emulated drives, of which two are lost while it is in use:
//!
//! ```
//! use engine::{
//!     array::{Array, CreateOptions, Drive},
//!     buf::{BLOCK, Buf},
//!     device::{Command, ZonedDevice},
//!     runtime::Runtime,
//!     zone::Lba,
//! };
//! use emu::ssd::{EmulatedDrive, Model};
//! use std::rc::Rc;
//!
//! let shape = Model::zn540().scaled(6, 2048).geometry;
//! let drive = |n| Drive { name: format!("drive{n}"), device: Rc::new(EmulatedDrive::in_memory(&shape)) };
//! let mut drives: Vec<Drive> = (0..6).map(drive).collect();
//! let options = CreateOptions { parities: 2, ..CreateOptions::new("tank", *b"sixteen bytes...") };
//!
//! // The engine has no threads of its own: `block_on` runs it until the future completes.
//! let runtime = Runtime::new();
//! let array = runtime.block_on(Array::create(&runtime, options, drives.clone()), || false).unwrap()?;
//! let data = Buf::copy_of(&[7; 3 * BLOCK]);
//! let write = array.submit(Command::write(Lba(0), data.clone(), true));
//! runtime.block_on(write, || false).unwrap().result.unwrap();
//! drop(array);
//!
//! // Durable data survives the loss of any two drives.
//! drives.remove(4);
//! drives.remove(1);
//! let runtime = Runtime::new();
//! let array = runtime.block_on(Array::assemble(&runtime, drives), || false).unwrap()?;
//! let read = array.submit(Command::read(Lba(0), Buf::zeroed(3 * BLOCK)));
//! assert_eq!(runtime.block_on(read, || false).unwrap().data[..], data[..]);
//! # Ok::<(), engine::array::ArrayError>(())
//! ```
//!
//! [`emu::ssd`] describes the effects of power cuts on drives and their possible faults; [`simulator`] describes how
//! seeds become lives of arrays, and how these are judged.
#![forbid(unsafe_code)]

pub mod mutants;
pub mod simulator;
