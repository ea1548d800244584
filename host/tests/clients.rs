//! NBD clients that connect and disconnect: connections that end with requests in flight, and more clients than
//! allowed.

use crate::{
    support::{Place, Random, drive},
    volume::{Client, GO, STRUCTURED, Server, emulate, with_volume},
};
use rustix::process::Signal;
use std::{
    io::{BufRead, BufReader, Read},
    net::TcpStream,
    time::Duration,
};

/// A server at a free port of this machine, and its address.
fn at_address(place: &Place) -> (Server, String) {
    let server = Server::started(place.command(&["serve", "drives", "--nbd", "127.0.0.1:0"]));
    let (_, address) = server.said.split_once("nbd://").unwrap();
    let address = address.split_whitespace().next().unwrap().trim_end_matches([',', '.', ';']).to_string();
    (server, address)
}

fn connected(address: &str) -> Client<TcpStream> {
    Client::on(TcpStream::connect(address).unwrap()).agreed(false)
}

const WRITE: (u16, u16) = (0, 1);

/// A client sends a long write, disconnects before the reply, connects again and rewrites the end of that range. The
/// drives are slow, so most of the first write is still in the kernel when the client disconnects.
#[test]
fn nbd_ended_connection_write_undoes_no_later_write() {
    let place = with_volume();
    let (server, address) = at_address(&place);
    let slow = |fault: &[&str]| {
        for number in 0..5 {
            let drive = drive("drives", number);
            place.run(&[&["emulate", "fault", &drive], fault].concat()).ok();
        }
        // Emulated drives read their faults every 5 ms.
        std::thread::sleep(Duration::from_millis(20));
    };
    let (old, new) = (Random(1).bytes(4 << 20), Random(2).bytes(4096));
    // As one request, as several, and as more than are executed at a time.
    for bytes in [4 << 20, 1 << 20, 64 << 10, 16 << 10] {
        slow(&["slow", "100"]);
        let mut client = connected(&address);
        for (cookie, part) in old.chunks(bytes).enumerate() {
            client.request(WRITE, cookie as u64, ((cookie * bytes) as u64, bytes as u32));
            client.say(part);
        }
        drop(client);
        let mut client = connected(&address);
        let last = old.len() as u64 - 4096;
        assert_eq!(client.write(last, &new, true), 0);
        client.request((0, 3), 9, (0, 0));
        assert_eq!(client.replied(), (0, 9));
        slow(&["clear"]);
        std::thread::sleep(Duration::from_millis(500));
        assert!(client.read(last, 4096).unwrap() == new, "requests of {bytes} bytes: written later");
    }
    server.end(Signal::TERM);
}

/// As many clients as allowed are served; the next one is refused with the reason, which is in the log, too.
#[test]
fn nbd_client_beyond_limit_is_refused_with_message() {
    let place = with_volume();
    let mut server = Server::of(&place, &[]);
    let mut clients: Vec<_> = (0..32).map(|_| Client::ready(&place, false)).collect();
    let mut refused = Client::of(&place);
    for option in [STRUCTURED, GO] {
        let said = refused.option(option, if option == GO { &[0; 6] } else { &[] });
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].0, 1 << 31 | 2);
        let message = String::from_utf8(said[0].1.clone()).unwrap();
        assert!(message.contains("too many clients are connected"), "{message}");
    }
    assert_eq!(refused.socket.read(&mut [0]).unwrap(), 0);
    let mut log = String::new();
    BufReader::new(server.process.stderr.as_mut().unwrap()).read_line(&mut log).unwrap();
    assert!(log.contains("an NBD client was refused: 32 are connected, which is the limit"), "{log}");
    assert!(clients.iter_mut().all(|client| client.read(0, 4096).is_ok()));
    clients.pop();
    // The receiving thread notices the end of its connection.
    std::thread::sleep(Duration::from_millis(100));
    assert!(Client::ready(&place, false).read(0, 4096).is_ok());
    server.end(Signal::TERM);
}

/// Without data, one request is answered at once for the largest range that it can name.
#[test]
fn block_status_of_thin_volume_is_one_extent() {
    let place = Place::new();
    emulate(&place, 5);
    place.create("tank", "drives", 5).ok();
    place.run(&["volume", "create", "drives", "--size", "16G"]).ok();
    let server = Server::of(&place, &[]);
    let mut client = Client::of(&place);
    assert_eq!(client.option(STRUCTURED, &[]), [(1, vec![])]);
    let name = b"base:allocation";
    let query = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, name.len() as u8], &name[..]].concat();
    assert_eq!(client.option(10, &query).last(), Some(&(1, vec![])));
    assert_eq!(client.option(GO, &[0; 6]).last(), Some(&(1, vec![])));
    client.request((0, 7), 5, (4096, u32::MAX));
    // Magic, and the header of the last chunk, which lists extents.
    assert_eq!((client.number(), client.number()), (0x668e_33ef, 1 << 16 | 5));
    assert_eq!(client.take(8), 5_u64.to_be_bytes());
    let numbers = [client.number(), client.number(), client.number(), client.number()];
    assert_eq!(numbers, [12, 1, u32::MAX, 3]);
    drop(client);
    server.end(Signal::TERM);
}

#[test]
fn top_shows_volume_and_each_nbd_client() {
    let place = with_volume();
    let server = Server::of(&place, &[]);
    let mut idle = Client::ready(&place, false);
    let mut busy = Client::ready(&place, false);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let top = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(busy.write(0, &[7; 8192], false), 0);
            }
        });
        let top = place.json(&["top", "drives"]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        top
    });
    let devices = top["devices"].as_array().unwrap();
    let clients: Vec<_> = devices.iter().map(|device| device["client"].as_u64()).collect();
    assert_eq!(clients, [None, Some(1), Some(2)], "{top}");
    let written = |index: usize| devices[index]["writes"]["bytes_per_second"].as_f64().unwrap();
    assert!(written(0) > 0.0 && written(1) == 0.0 && written(2) == written(0), "{top}");
    assert!(devices[0]["writes"]["p50_us"].is_u64() && top["longest_turn_us"].is_u64(), "{top}");
    assert!(top["written_per_byte"].as_f64().unwrap() > 1.0, "{top}");
    let text = place.run(&["top", "drives"]).ok().text();
    assert!(text.contains("client 2") && text.contains("event loop: longest turn"), "{text}");
    let status = place.json(&["status", "drives"]);
    assert!(status["longest_turn_us"].is_u64() && status["volume"]["map_bytes"].is_u64(), "{status}");
    let text = place.run(&["status", "drives"]).ok().text();
    assert!(text.contains("    map: 100 % in memory") && text.contains("; hit rate 100.0 %"), "{text}");
    let rate = |name: &str| status["volume"][name].as_f64().unwrap();
    assert!(rate("map_page_lookups") > 0.0 && rate("map_hit_rate") == 1.0, "{status}");
    assert!((1.0..=rate("map_memory_bytes")).contains(&rate("map_cached_bytes")), "{status}");
    assert!(idle.read(0, 4096).is_ok());
    server.end(Signal::TERM);
}
