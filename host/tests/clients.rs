//! NBD clients that come and go: connections that end with requests on their way, and more clients than there may be.

use crate::{
    support::{Place, Random, drive},
    volume::{Client, Server, with_volume},
};
use rustix::process::Signal;
use std::{net::TcpStream, time::Duration};

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

/// A client sends a long write, goes before it is answered, comes back and writes the end of that range again. Drives are
/// slow, so that most of the first write is still in the kernel when the client goes.
#[test]
fn a_write_of_an_ended_connection_undoes_no_later_one() {
    let place = with_volume();
    let (server, address) = at_address(&place);
    let slow = |fault: &[&str]| {
        for number in 0..5 {
            let drive = drive("drives", number);
            place.run(&[&["emulate", "fault", &drive], fault].concat()).ok();
        }
        // A drive looks for its faults each 5 ms.
        std::thread::sleep(Duration::from_millis(20));
    };
    let (old, new) = (Random(1).bytes(4 << 20), Random(2).bytes(4096));
    // As one request, as some, and as more than are carried out at a time.
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
