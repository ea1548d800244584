//! Golden images of volumes and namespaces: what earlier code has written is read correctly, and written on.

use crate::support::{
    golden,
    golden_layers::{
        IMAGE, POOL_VOLUMES, check_namespaces, check_pool, check_volume, content, namespace_options,
        open_namespaces, open_pool, open_volume, write_vzone,
    },
};
use emu::ssd::EmulatedDrive;
use engine::{
    buf::{BLOCK, Buf},
    device::ZonedDevice,
    runtime::Runtime,
    volume::{NewSnapshot, PoolError, Volume, VolumeOptions},
    vzone::{Namespaces, Spec},
};
use std::{path::Path, rc::Rc};

fn unpacked(images: &str, dir: &Path) -> Rc<dyn ZonedDevice> {
    Rc::new(golden::unpacked(images, IMAGE, dir))
}

#[test]
fn golden_volumes_of_each_version_are_read_and_written_on() {
    ["volume-v5", "volume-v6", "volume-v7"].into_iter().for_each(read_volume);
}

fn read_volume(images: &str) {
    let dir = tempfile::tempdir().unwrap();
    let device = unpacked(images, dir.path());
    // Twice: the second start has to find the state that the first one left.
    for again in [false, true] {
        let (runtime, volume) = open_volume(device.clone());
        check_volume(&runtime, &volume);
        if again {
            for block in 0..volume.blocks() {
                let data = content(1000, block, 1);
                runtime.block_on(volume.write(block, &data, true), || false).unwrap().unwrap();
                let found = runtime.block_on(volume.read(block, Buf::zeroed(BLOCK)), || false);
                assert!(found.unwrap().unwrap()[..] == data[..], "block {block}");
            }
        }
        runtime.clear();
    }
}

/// A pool of two shards whose extents do not go to these in turn, as earlier programs have made them.
#[test]
fn golden_pool_of_shards_is_read_and_written_on() {
    let dir = tempfile::tempdir().unwrap();
    let device = unpacked("pool-v7", dir.path());
    for again in [false, true] {
        let (runtime, pool) = open_pool(device.clone());
        check_pool(&runtime, &pool);
        if again {
            let volume = pool.find(POOL_VOLUMES[1]).unwrap();
            for block in 0..volume.blocks() {
                let data = content(1000, block, 1);
                runtime.block_on(volume.write(block, &data, true), || false).unwrap().unwrap();
            }
            let read = volume.read(0, Buf::zeroed(volume.blocks() as usize * BLOCK));
            let found = runtime.block_on(read, || false).unwrap().unwrap();
            assert!(found[..] == content(1000, 0, volume.blocks())[..]);
            let new = NewSnapshot { volume: POOL_VOLUMES[1].into(), name: "x".into(), uuid: [5; 16] };
            let refused = runtime.block_on(pool.snapshot(vec![new]), || false).unwrap().map(drop);
            assert_eq!(refused, Err(PoolError::ManyShards.into()));
            let refused = runtime.block_on(volume.guarantee(1), || false).unwrap();
            assert_eq!(refused, Err(PoolError::GuaranteeInShards.into()));
        }
        runtime.clear();
    }
}

/// An earlier program could open the volume, and would take no notice of a piece in the block of a header.
#[test]
fn golden_volume_gets_pieces_beside_headers_after_new_root_only() {
    let dir = tempfile::tempdir().unwrap();
    let device = unpacked("volume-v7", dir.path());
    let stop = |runtime: Runtime, volume: Volume| {
        runtime.block_on(volume.stop(), || false).unwrap().unwrap();
        runtime.clear();
    };
    let (runtime, volume) = open_volume(device.clone());
    stop(runtime, volume);
    drop(device);
    // The features as that program would have written them.
    let path = dir.path().join(IMAGE);
    let mut bytes = std::fs::read(&path).unwrap();
    for block in bytes.chunks_mut(BLOCK).filter(|block| block.starts_with(b"zvs1")) {
        if block[26] == 3 && block[28] == 0 {
            block[32 + 92] = 0;
            let sum = crc32c::crc32c(&block[8..]);
            block[4..8].copy_from_slice(&sum.to_le_bytes());
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    for headers in [1, 0] {
        let device = Rc::new(EmulatedDrive::open_image(&path).unwrap());
        let (runtime, volume) = open_volume(device);
        let data = content(1001, 7, 1);
        let write = volume.write(7, &data, true);
        runtime.block_on(write, || false).unwrap().unwrap();
        assert_eq!(volume.status().written.headers, headers);
        stop(runtime, volume);
    }
}

#[test]
fn golden_namespaces_of_each_version_are_read_and_written_on() {
    ["namespaces-v3", "namespaces-v4"].into_iter().for_each(read_namespaces);
}

fn read_namespaces(images: &str) {
    let dir = tempfile::tempdir().unwrap();
    let device = unpacked(images, dir.path());
    for again in [false, true] {
        let (runtime, namespaces) = open_namespaces(device.clone());
        check_namespaces(&runtime, &namespaces);
        if again {
            write_vzone(&runtime, &namespaces.list()[0], (1, 0), 21, 60);
            let spec = Spec { name: "three".into(), ..namespaces.list()[0].status().spec };
            let added = runtime.block_on(namespaces.add(spec), || false).unwrap();
            write_vzone(&runtime, &added.unwrap(), (0, 0), 0, 60);
        }
        runtime.clear();
    }
}

/// Unpacks an image to `dir`, applies `edit` to all its blocks with a magic number, and opens it; returns its bytes,
/// too.
fn edited(
    images: &str,
    dir: &Path,
    magic: &[u8; 4],
    edit: impl Fn(&mut [u8]),
) -> (Rc<dyn ZonedDevice>, Vec<u8>) {
    drop(unpacked(images, dir));
    let path = dir.join(IMAGE);
    let mut bytes = std::fs::read(&path).unwrap();
    let framed: Vec<&mut [u8]> = bytes.chunks_mut(BLOCK).filter(|block| block.starts_with(magic)).collect();
    assert!(!framed.is_empty(), "{images} has no such block");
    framed.into_iter().for_each(edit);
    std::fs::write(&path, &bytes).unwrap();
    (Rc::new(EmulatedDrive::open_image(&path).unwrap()), bytes)
}

/// Golden images of another version, or with a feature, are refused as such, and nothing is written.
#[test]
fn unknown_versions_and_features_of_layers_are_refused_unchanged() {
    // The version of the frame, and the features, in the newest root and in the checkpoint of the journal.
    for (images, magic, feature) in [
        ("volume-v7", b"zvs1", (32 + 92 + 1, 1, "features (0x100)")),
        ("namespaces-v4", b"zvj3", (32 + 10 + 37, 128, "features (0x80)")),
    ] {
        for (at, value, said) in [(24, 99, "version 99"), (24, 1, "an older one"), feature] {
            let dir = tempfile::tempdir().unwrap();
            let edit = |block: &mut [u8]| {
                let is_first = block[26] == 3 && block[28] == 0 || magic == b"zvj3" && block[42] == 1;
                if at == 24 || is_first {
                    block[at] = value;
                    let sum = crc32c::crc32c(&block[8..]);
                    block[4..8].copy_from_slice(&sum.to_le_bytes());
                }
            };
            let (device, bytes) = edited(images, dir.path(), magic, edit);
            let runtime = Runtime::new();
            let error = match images.starts_with("volume") {
                true => refused(&runtime, Volume::open(&runtime, device, VolumeOptions::default())),
                false => refused(&runtime, Namespaces::open(&runtime, device, namespace_options())),
            };
            assert!(error.contains(said), "{images}: {error}");
            runtime.clear();
            assert!(std::fs::read(dir.path().join(IMAGE)).unwrap() == bytes, "{images} has changed");
        }
    }
}

fn refused<T, E: ToString>(runtime: &Runtime, opened: impl Future<Output = Result<T, E>>) -> String {
    runtime.block_on(opened, || false).unwrap().err().expect("it is refused").to_string()
}

/// A block of version 3 whose magic number differs in one bit looks like one of a later version, and is a damaged one.
#[test]
fn flipped_magic_bit_of_old_journal_is_damage_not_another_version() {
    for bit in 0..32 {
        let dir = tempfile::tempdir().unwrap();
        let flip = |block: &mut [u8]| block[bit / 8] ^= 1 << (bit % 8);
        let (device, _) = edited("namespaces-v3", dir.path(), b"zvj1", flip);
        let runtime = Runtime::new();
        let error = refused(&runtime, Namespaces::open(&runtime, device, namespace_options()));
        assert!(error.contains("is damaged in block 0"), "bit {bit}: {error}");
        runtime.clear();
    }
}
