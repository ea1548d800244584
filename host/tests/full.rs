//! Full volumes: requests that wait for free space, requests that fail, and loans of the reserve.

use crate::{
    support::{Place, Random},
    volume::{Client, Server, emulate},
};
use rustix::process::Signal;
use std::{
    io::{Cursor, Write},
    time::{Duration, Instant},
};

const WRITE: (u16, u16) = (0, 1);
const FLUSH: (u16, u16) = (0, 3);
const TRIM: (u16, u16) = (0, 4);
const ENOSPC: u32 = 28;
const MIB: u64 = 1 << 20;

/// A place with an overcommitted volume of 2 GiB on drives of 128 MiB each.
fn over_committed() -> Place {
    let place = Place::new();
    emulate(&place, 5);
    place.create("tank", "drives", 5).ok();
    place.run(&["volume", "create", "drives", "--size", "2G"]).ok();
    place
}

/// Writes new blocks from `at` on until one is refused, and returns the address of that.
fn fill(client: &mut Client, mut at: u64) -> u64 {
    let data = Random(5).bytes(MIB as usize);
    for length in [MIB, 4096] {
        loop {
            match client.write(at, &data[..length as usize], false) {
                0 => at += length,
                error => break assert_eq!(error, ENOSPC),
            }
        }
    }
    at
}

/// A full over-committed volume with its server, a client, and the end of the written blocks in bytes.
fn full() -> (Place, Server, Client, u64) {
    let place = over_committed();
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let end = fill(&mut client, 0);
    (place, server, client, end)
}

fn set(place: &Place, option: &str, value: &str) -> serde_json::Value {
    place.json(&["volume", "set", "drives", option, value])
}

#[test]
fn write_to_full_volume_waits_without_blocking_others() {
    let (place, server, mut client, end) = full();
    assert_eq!(set(&place, "--when-full", "queue:200")["when_full"], "queue:200");
    // More requests than workers.
    let data = Random(6).bytes(4096);
    for number in 0..40 {
        client.request(WRITE, 100 + number, (end + number * 4096, 4096));
        client.say(&data);
    }
    client.request(FLUSH, 1, (0, 0));
    assert_eq!(client.replied(), (0, 1));
    client.request((0, 0), 2, (0, 4096));
    assert_eq!(client.replied(), (0, 2));
    client.take(4096);
    assert_eq!(client.write(0, &data, true), 0, "what is written already can be overwritten");
    let status = place.json(&["status", "drives"]);
    let volume = &status["volume"];
    assert_eq!((&volume["when_full"], &volume["waiting_writes"]), (&"queue:200".into(), &40.into()));
    let said = place.run(&["status", "drives"]).text();
    assert!(said.contains("writes wait for up to 200 seconds; 40 do now"), "{said}");
    assert!(said.contains("other writes wait for up to 200 seconds"), "{said}");
    client.request(TRIM, 3, (MIB, MIB as u32));
    let mut replies: Vec<(u32, u64)> = (0..41).map(|_| client.replied()).collect();
    replies.sort_unstable();
    let expected: Vec<_> = [3].into_iter().chain(100..140).map(|cookie| (0, cookie)).collect();
    assert_eq!(replies, expected);
    assert!(client.read(end + 39 * 4096, 4096).unwrap() == data);
    drop(client);
    server.end(Signal::TERM);
    // The setting is stored in the volume.
    let server = Server::of(&place, &[]);
    assert_eq!(place.json(&["status", "drives"])["volume"]["when_full"], "queue:200");
    server.end(Signal::TERM);
}

#[test]
fn full_volume_queues_writes_beyond_what_connections_hold() {
    let (place, server, mut client, end) = full();
    set(&place, "--when-full", "queue:200");
    // Small writes by the hundred, then large ones: more data than may wait without a worker, with workers to spare.
    let (small, large) = (Random(6).bytes(4096), Random(7).bytes(4 * MIB as usize));
    let large_from = (end + 200 * 4096).next_multiple_of(4 * MIB);
    for number in 0..200 {
        client.request(WRITE, 100 + number, (end + number * 4096, 4096));
        client.say(&small);
    }
    for number in 0..10 {
        client.request(WRITE, 300 + number, (large_from + number * 4 * MIB, 4 * MIB as u32));
        client.say(&large);
    }
    client.request(FLUSH, 1, (0, 0));
    assert_eq!(client.replied(), (0, 1), "no write has failed");
    let mut other = Client::ready(&place, false);
    other.request(TRIM, 3, (0, 64 * MIB as u32));
    assert_eq!(other.replied(), (0, 3));
    let mut replies: Vec<(u32, u64)> = (0..210).map(|_| client.replied()).collect();
    replies.sort_unstable();
    assert_eq!(replies, (100..300).chain(300..310).map(|cookie| (0, cookie)).collect::<Vec<_>>());
    assert!(client.read(large_from + 36 * MIB, 4 << 20).unwrap() == large);
    drop((client, other));
    server.end(Signal::TERM);
}

#[test]
fn full_volume_bounds_number_of_waiting_requests() {
    let (place, server, mut client, end) = full();
    set(&place, "--when-full", "queue:200");
    // Writes of one byte: more than 32 MiB of blocks, and more than the server receives and the socket holds.
    let mut requests = Client { socket: Cursor::new(Vec::new()) };
    for number in 0..40_000 {
        requests.request(WRITE, number, (end + number * 4096, 1));
        requests.say(&[7]);
    }
    client.socket.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
    assert!(client.socket.write_all(requests.socket.get_ref()).is_err(), "the server has received all");
    let waiting = place.json(&["status", "drives"])["volume"]["waiting_writes"].as_u64().unwrap();
    // 32 MiB of blocks, and the 128 requests that the server executes at a time for a client.
    assert!((8192..=8192 + 128).contains(&waiting), "{waiting}");
    drop(client);
    server.end(Signal::KILL);
}

#[test]
fn waiting_write_fails_at_timeout_or_daemon_end() {
    let (place, server, mut client, end) = full();
    set(&place, "--when-full", "queue:1");
    let begun = Instant::now();
    assert_eq!(client.write(end, &[7; 4096], false), ENOSPC);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    set(&place, "--when-full", "queue:255");
    client.request(WRITE, 9, (end, 4096));
    client.say(&[7; 4096]);
    client.request(FLUSH, 1, (0, 0));
    assert_eq!(client.replied(), (0, 1));
    let begun = Instant::now();
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(client.replied(), (ENOSPC, 9));
}

#[test]
fn lent_reserve_takes_new_blocks_until_reclaimed() {
    let place = over_committed();
    place
        .run(&["volume", "set", "drives", "--lend", "1M"])
        .fails_with(&["can be lent only while 'tank' runs", "start or serve"]);
    let usage = place.run(&["volume", "set", "drives"]);
    assert!(usage.stderr.contains("--lend"), "{}", usage.stderr);
    let server = Server::of(&place, &[]);
    let mut client = Client::ready(&place, false);
    let end = fill(&mut client, 0);
    assert_eq!(set(&place, "--lend", "1M")["lent_bytes"], MIB);
    assert_eq!(place.json(&["status", "drives"])["volume"]["lent_bytes"], MIB);
    let more = fill(&mut client, end);
    assert_eq!(more - end, MIB);
    let said = place.run(&["volume", "set", "drives", "--lend", "0"]).ok().text();
    assert_eq!(said, "0 B of the reserve of the volume on 'tank' are lent to new blocks until it stops\n");
    assert_eq!(client.write(more, &[7; 4096], false), ENOSPC);
    // The whole reserve, and no more.
    let reserve = place.json(&["status", "drives"])["volume"]["reserve_bytes"].as_u64().unwrap();
    assert_eq!(set(&place, "--lend", "1T")["lent_bytes"], reserve);
    drop(client);
    server.end(Signal::TERM);
}

#[test]
fn waiting_write_of_ended_connection_is_dropped() {
    let (place, server, mut client, end) = full();
    set(&place, "--when-full", "queue:200");
    client.request(WRITE, 9, (end, 4096));
    client.say(&[7; 4096]);
    client.request(FLUSH, 1, (0, 0));
    assert_eq!(client.replied(), (0, 1));
    drop(client);
    let mut client = Client::ready(&place, false);
    client.request(TRIM, 3, (MIB, MIB as u32));
    assert_eq!(client.replied(), (0, 3));
    assert_eq!(client.write(end, &[8; 4096], false), 0);
    let waits = || place.json(&["status", "drives"])["volume"]["waiting_writes"].as_u64() > Some(0);
    assert!((0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !waits()
    }));
    assert!(client.read(end, 4096).unwrap() == [8; 4096]);
    drop(client);
    server.end(Signal::TERM);
}
