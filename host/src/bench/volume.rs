//! What a volume costs: time and allocations of a block that is written or read at a random place, on one core, also
//! with compression.
//!
//! The volume lies on a drive shaped like a ZN540 that answers at once and, once the volume is there, neither
//! stores anything nor reads it; all of the map is in memory. So this is what the volume's own code costs:
//! the map, groups and their headers, copies of the data into groups, the codec, and the executor. What is compressed are
//! made up words, which LZ4 makes about half as long, and noise.

use super::{
    begin,
    idle::{self, Idle, REQUESTS},
    medians,
};
use crate::output::{HEALTHY, Output};
use anyhow::{Context, Result};
use engine::{
    buf::{BLOCK, Buf},
    runtime::Runtime,
    volume::{Behaviour, Codec, Volume},
};
use serde::Serialize;
use sim::rng::Rng;
use std::rc::Rc;

const ZONES: u32 = 40;
/// Requests on the way.
const DEPTH: u64 = 64;
/// Different blocks that are written.
const POOL: u64 = 64;
/// Different words.
const WORDS: u64 = 100;

#[derive(Serialize)]
struct Costs {
    /// One 4 KiB write at a random place, 64 of them on the way.
    write_4k_random_ns: f64,
    write_4k_random_allocations: f64,
    /// Blocks that go to the drive for each of them.
    write_amplification: f64,
    /// One 4 KiB read at a random place, 64 of them on the way.
    read_4k_random_ns: f64,
    /// Writes of words, without compression and with LZ4.
    write_words_ns: f64,
    write_words_lz4_ns: f64,
    /// How much shorter LZ4 makes words.
    words_ratio: f64,
    /// Writes of noise, without compression and with LZ4.
    write_noise_ns: f64,
    write_noise_lz4_ns: f64,
}

/// A volume on a drive that answers at once.
struct Rig {
    runtime: Runtime,
    volume: Volume,
}

impl Rig {
    fn new(codec: Option<Codec>) -> Result<Rig> {
        let (device, runtime) = (Rc::new(Idle::new(ZONES)), Runtime::new());
        let made = Volume::create(device.clone(), [1; 16], None, codec);
        runtime.block_on(made, || false).context("the drive does not answer")??;
        let behaviour = Behaviour { map_pages: Some(usize::MAX / 2), ..Behaviour::default() };
        let volume = Volume::open(&runtime, device.clone(), behaviour);
        let volume = runtime.block_on(volume, || false).context("the drive does not answer")??;
        device.idle();
        Ok(Rig { runtime, volume })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

/// Measures and prints.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let costs = measured(rounds)?;
    output.print(&costs, |costs| {
        let line = |what: &str, ns: f64| format!("  {what:<48} {ns:>9.0} ns\n");
        let figure = |what: &str, figure: f64| format!("  {what:<48} {figure:>12.3}\n");
        ["a volume on a drive that answers at once, one core\n".to_string()]
            .into_iter()
            .chain([
                line("4 KiB write, random, 64 on the way", costs.write_4k_random_ns),
                figure("    allocations in it", costs.write_4k_random_allocations),
                figure("    blocks written for each", costs.write_amplification),
                line("4 KiB read, random, 64 on the way", costs.read_4k_random_ns),
                line("4 KiB write of words", costs.write_words_ns),
                line("    with LZ4", costs.write_words_lz4_ns),
                figure("    how much shorter they get", costs.words_ratio),
                line("4 KiB write of noise", costs.write_noise_ns),
                line("    with LZ4", costs.write_noise_lz4_ns),
            ])
            .collect()
    })?;
    Ok(HEALTHY)
}

fn measured(rounds: usize) -> Result<Costs> {
    let rig = Rig::new(None)?;
    let plain = [Buf::copy_of(&[0x5a; BLOCK])];
    let (write_ns, allocations) = medians(rounds, |round| play(&rig, Some(&plain), round))?;
    let (read_ns, _) = medians(rounds, |round| play(&rig, None, round))?;
    let amplification = rig.volume.status().written.amplification();
    drop(rig);
    let write = |blocks: &[Buf], codec: Option<Codec>| {
        let rig = Rig::new(codec)?;
        let (ns, _) = medians(rounds, |round| play(&rig, Some(blocks), round))?;
        let status = rig.volume.status();
        anyhow::Ok((ns, status.mapped as f64 * BLOCK as f64 / status.held_bytes as f64))
    };
    let (words, noise) = (words(), noise());
    let (write_words_ns, _) = write(&words, None)?;
    let (write_words_lz4_ns, words_ratio) = write(&words, Some(Codec::Lz4))?;
    Ok(Costs {
        write_4k_random_ns: write_ns,
        write_4k_random_allocations: allocations,
        write_amplification: amplification,
        read_4k_random_ns: read_ns,
        write_words_ns,
        write_words_lz4_ns,
        words_ratio,
        write_noise_ns: write(&noise, None)?.0,
        write_noise_lz4_ns: write(&noise, Some(Codec::Lz4))?.0,
    })
}

/// Blocks of words out of a vocabulary, some of which are much more frequent than others.
fn words() -> Vec<Buf> {
    let mut rng = Rng::new(1);
    let word = |rng: &mut Rng| {
        let letters = 4 + rng.below(7);
        let word: Vec<u8> = (0..letters).map(|_| b'a' + rng.below(26) as u8).collect();
        [&word[..], b" "].concat()
    };
    let vocabulary: Vec<Vec<u8>> = (0..WORDS).map(|_| word(&mut rng)).collect();
    let block = |_| {
        let mut text = Vec::new();
        while text.len() < BLOCK {
            let word = (0..3).fold(WORDS, |most, _| 1 + rng.below(most)) - 1;
            text.extend_from_slice(&vocabulary[word as usize]);
        }
        Buf::copy_of(&text[..BLOCK])
    };
    (0..POOL).map(block).collect()
}

fn noise() -> Vec<Buf> {
    let mut rng = Rng::new(2);
    let block = |_| {
        let mut bytes = vec![0; BLOCK];
        rng.fill(&mut bytes);
        Buf::copy_of(&bytes)
    };
    (0..POOL).map(block).collect()
}

/// Nanoseconds and allocations of a request, at places that the number of the round decides: a write of one of
/// `blocks`, or a read.
fn play(rig: &Rig, blocks: Option<&[Buf]>, round: u64) -> Result<(f64, f64)> {
    let mut rng = Rng::new(round);
    let places: Rc<Vec<u64>> = Rc::new((0..REQUESTS).map(|_| rng.below(rig.volume.blocks())).collect());
    let blocks: Rc<Vec<Buf>> = Rc::new(blocks.unwrap_or_default().to_vec());
    idle::play(&rig.runtime, DEPTH, |turns| {
        let (volume, places, blocks) = (rig.volume.clone(), places.clone(), blocks.clone());
        async move {
            let mut buf = Buf::zeroed(BLOCK);
            while let Some(turn) = turns.take() {
                let at = places[turn as usize];
                match blocks.get(turn as usize % blocks.len().max(1)) {
                    Some(block) => volume.write(at, block, false).await?,
                    None => buf = volume.read(at, std::mem::take(&mut buf)).await?,
                }
            }
            Ok(())
        }
    })
}
