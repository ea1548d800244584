//! `top`: request rates and latencies of the block devices and drives of a running array.

use super::daemon::ask;
use crate::{
    control::{
        client::Client,
        name::ArrayName,
        protocol::{Request, TrafficDevice, TrafficDrive, TrafficReport},
    },
    members::{FoundArray, find_running},
    process::{
        output::{HEALTHY, Output, quoted, table},
        size::{show, total},
    },
    reactor::traffic::{Counts, TrafficCounts},
    report::{NamespaceReport, Status},
};
use anyhow::{Result, bail};
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use std::{
    io::{IsTerminal, stdout},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Sampling interval.
const PERIOD: Duration = Duration::from_secs(1);

/// Clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

#[derive(Serialize)]
struct Top {
    array: String,
    /// Sampling interval in seconds.
    seconds: f64,
    devices: Vec<DeviceRates>,
    drives: Vec<DriveRates>,
    /// The longest turn of the daemon's event loop, and the 99th percentile of the turns, in microseconds.
    longest_turn_us: Option<u64>,
    p99_turn_us: Option<u64>,
    /// Bytes written to drives per byte written to block devices; `None` without writes.
    written_per_byte: Option<f64>,
}

/// Rates of a block device.
#[derive(Serialize)]
struct DeviceRates {
    /// Its namespace; `None` for the array.
    namespace: Option<String>,
    /// Number of the NBD client of these requests, which are also counted for the volume.
    client: Option<u64>,
    reads: Rates,
    writes: Rates,
    /// State of its scheduler, see `status`; `None` for the array.
    active_zones: Option<u32>,
    widths: Vec<u32>,
    essential: Option<u32>,
    own_spares: Option<u32>,
    held_spares: Option<u32>,
    borrowed_spares: Option<u32>,
    read_bytes_in_flight: Option<u64>,
    read_window_bytes: Option<u64>,
    token_bytes: Option<i64>,
    /// Throttled rate for the sake of other namespaces; `None` if it is not throttled.
    held_to_bytes_per_second: Option<u64>,
    floors_out_of_reach: Option<bool>,
    latency_out_of_reach: Option<bool>,
}

/// Rates of a drive.
#[derive(Serialize)]
struct DriveRates {
    drive: PathBuf,
    /// Its role; `None` if it is not a member yet, or any more.
    role: Option<u32>,
    reads: Rates,
    writes: Rates,
}

/// Rates and latencies of reads or of writes.
#[derive(Serialize)]
struct Rates {
    requests_per_second: f64,
    bytes_per_second: f64,
    /// Latency percentiles in microseconds, at most a quarter too high; `None` without requests.
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    p99_9_us: Option<u64>,
}

impl Rates {
    fn of(counts: &Counts, seconds: f64) -> Rates {
        Rates {
            requests_per_second: counts.requests as f64 / seconds,
            bytes_per_second: counts.bytes as f64 / seconds,
            p50_us: counts.all_but_one_in_us(2),
            p99_us: counts.all_but_one_in_us(100),
            p99_9_us: counts.all_but_one_in_us(1000),
        }
    }

    fn cells(&self) -> [String; 5] {
        let micros = |latency: Option<u64>| latency.map_or("-".into(), |us| us.to_string());
        [
            format!("{:.0}", self.requests_per_second),
            show(self.bytes_per_second as u64) + "/s",
            micros(self.p50_us),
            micros(self.p99_us),
            micros(self.p99_9_us),
        ]
    }
}

/// A line of the table.
fn row(first: &str, kind: &str, rates: &Rates, more: [&str; 4]) -> Vec<String> {
    let cells = [first, kind].map(String::from).into_iter().chain(rates.cells());
    cells.chain(more.map(String::from)).collect()
}

impl Top {
    /// Differences between the readings `before` and `now`.
    fn between(before: &TrafficReport, now: &TrafficReport, status: &Status, seconds: f64) -> Top {
        let device = |(asked, since): &(&TrafficDevice, TrafficCounts)| {
            let list = status.namespaces.iter().flat_map(|division| &division.list);
            let named = |namespace: &&NamespaceReport| Some(&namespace.name) == asked.namespace.as_ref();
            let namespace = list.into_iter().find(named);
            DeviceRates {
                namespace: asked.namespace.clone(),
                client: asked.client,
                reads: Rates::of(&since.reads, seconds),
                writes: Rates::of(&since.writes, seconds),
                active_zones: namespace.map(|namespace| namespace.active_zones),
                widths: namespace.map_or(Vec::new(), |namespace| namespace.widths.clone()),
                essential: namespace.map(|namespace| namespace.essential),
                own_spares: namespace.map(|namespace| namespace.own_spares),
                held_spares: namespace.map(|namespace| namespace.held_spares),
                borrowed_spares: namespace.map(|namespace| namespace.borrowed_spares),
                read_bytes_in_flight: namespace.map(|namespace| namespace.read_bytes_in_flight),
                read_window_bytes: namespace.and_then(|namespace| namespace.read_window_bytes),
                token_bytes: namespace.map(|namespace| namespace.token_bytes),
                held_to_bytes_per_second: namespace.and_then(|namespace| namespace.held_to_bytes_per_second),
                floors_out_of_reach: namespace.map(|namespace| namespace.floors_out_of_reach),
                latency_out_of_reach: namespace.map(|namespace| namespace.latency_out_of_reach),
            }
        };
        let drive = |(asked, since): &(&TrafficDrive, TrafficCounts)| DriveRates {
            drive: asked.drive.clone(),
            role: asked.role,
            reads: Rates::of(&since.reads, seconds),
            writes: Rates::of(&since.writes, seconds),
        };
        let devices = now.devices.iter().map(|asked| {
            let same =
                |then: &&TrafficDevice| (&then.namespace, then.client) == (&asked.namespace, asked.client);
            let then = before.devices.iter().find(same);
            (asked, asked.counted.since(then.map(|then| &then.counted)))
        });
        let drives = now.drives.iter().map(|asked| {
            let then = before.drives.iter().find(|then| then.drive == asked.drive);
            (asked, asked.counted.since(then.map(|then| &then.counted)))
        });
        let (devices, drives): (Vec<_>, Vec<_>) = (devices.collect(), drives.collect());
        // Requests of clients are included in those of the volume.
        let all = devices.iter().filter(|(asked, _)| asked.client.is_none());
        let of_devices = total(all.map(|(_, since)| since.writes.bytes));
        let of_drives = total(drives.iter().map(|(_, since)| since.writes.bytes));
        let turns = now.turns.since(&before.turns);
        Top {
            longest_turn_us: turns.all_but_one_in_us(u64::MAX),
            p99_turn_us: turns.all_but_one_in_us(100),
            array: status.name.clone(),
            seconds,
            devices: devices.iter().map(device).collect(),
            drives: drives.iter().map(drive).collect(),
            written_per_byte: (of_devices > 0).then(|| of_drives as f64 / of_devices as f64),
        }
    }

    fn text(&self) -> String {
        let names =
            self.drives.iter().map(|drive| drive.drive.file_name().unwrap_or(drive.drive.as_os_str()));
        let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let head = [
            "DEVICE",
            "",
            "REQUESTS/S",
            "BYTES",
            "P50 US",
            "P99 US",
            "P99.9 US",
            "ADMITS",
            "WIDTHS",
            "SPARES",
            "THROTTLED",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        for device in &self.devices {
            let name = match device.client {
                Some(client) => format!("client {client}"),
                None => device.namespace.clone().unwrap_or(self.array.clone()),
            };
            let widths: Vec<String> = device.widths.iter().map(u32::to_string).collect();
            let widths = if widths.is_empty() { "-".into() } else { widths.join(" ") };
            let spares = match (device.held_spares, device.own_spares) {
                (Some(held), Some(own)) => format!("{held} held, {own} own"),
                _ => "-".into(),
            };
            // State of the namespace scheduler: read window and write tokens.
            let window = device.read_window_bytes.map_or("-".into(), |bytes| show(bytes) + " a zone");
            let tokens = match device.token_bytes {
                Some(owed @ ..0) => format!("-{}", show(owed.unsigned_abs())),
                Some(tokens) => show(tokens.unsigned_abs()),
                None => "-".into(),
            };
            let held = device.held_to_bytes_per_second.map_or("-".into(), |bytes| show(bytes) + "/s");
            rows.push(row(&name, "reads", &device.reads, [&window, &widths, &spares, &held]));
            let missed = match (device.floors_out_of_reach, device.latency_out_of_reach) {
                (Some(true), Some(true)) => "floors and latency out of reach",
                (Some(true), _) => "floors out of reach",
                (_, Some(true)) => "latency out of reach",
                _ => "",
            };
            rows.push(row("", "writes", &device.writes, [&tokens, "", "", missed]));
        }
        for (DriveRates { role, reads, writes, .. }, name) in self.drives.iter().zip(names) {
            let role = role.map_or("no member: ".into(), |role| format!("member {role}: "));
            rows.push(row(&(role + &name), "reads", reads, ["", "", "", ""]));
            rows.push(row("", "writes", writes, ["", "", "", ""]));
        }
        if self.devices.iter().all(|device| device.namespace.is_none()) {
            // The columns of the namespace scheduler are left out.
            rows.iter_mut().for_each(|row| row.truncate(head.len() - 4));
        }
        let of_each = |bytes| format!("write amplification, including parity: {bytes:.2}\n");
        let written = self.written_per_byte.map(of_each).unwrap_or_default();
        let turns = match (self.longest_turn_us, self.p99_turn_us) {
            (Some(longest), Some(most)) => {
                format!("event loop: longest turn {longest} us, 99 % at most {most} us\n")
            }
            _ => String::new(),
        };
        format!("{}, in {:.1} seconds\n", self.array, self.seconds) + &table(&rows) + &written + &turns
    }
}

pub fn run(output: Output, name: &ArrayName) -> Result<u8> {
    let Some(mut client) = find_running(name)? else {
        // The daemon may be running and not respond, or have been killed.
        if let Ok(found) = FoundArray::to_look(name) {
            found.refuse_if_waited_for()?;
        }
        bail!(
            "'{name}' does not run; zoneraid start {0}, or zoneraid serve {0} --nbd SOCKET",
            quoted(&name.to_string())
        );
    };
    let mut before = traffic(output, &mut client)?;
    let watches = !output.json && stdout().is_terminal();
    loop {
        let begun = Instant::now();
        std::thread::sleep(PERIOD);
        let now = traffic(output, &mut client)?;
        let seconds = begun.elapsed().as_secs_f64();
        let status: Status = ask(output, &mut client, &Request::Status)?;
        let top = Top::between(&before, &now, &status, seconds);
        if watches {
            output.raw(CLEAR)?;
        }
        let columns = tcgetwinsize(stdout()).map_or(0, |size| size.ws_col.into());
        output.print(&top, |top| if watches { clipped(&top.text(), columns) } else { top.text() })?;
        if !watches {
            return Ok(HEALTHY);
        }
        before = now;
    }
}

/// Cuts lines to the width of the terminal, so that they do not wrap; `columns` is 0 if the width is unknown.
fn clipped(text: &str, columns: usize) -> String {
    let columns = if columns == 0 { usize::MAX } else { columns };
    text.lines().map(|line| line.chars().take(columns).collect::<String>() + "\n").collect()
}

fn traffic(output: Output, client: &mut Client) -> Result<TrafficReport> {
    ask(output, client, &Request::Traffic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_output_matches_schema() {
        let counts = Counts { requests: 3, bytes: 4096, classes: vec![0, 2, 1] };
        let rates = || Rates::of(&counts, 1.5);
        let shown = DeviceRates {
            namespace: Some("mail".into()),
            client: Some(3),
            reads: rates(),
            writes: rates(),
            active_zones: Some(1),
            widths: vec![2],
            essential: Some(4),
            own_spares: Some(3),
            held_spares: Some(1),
            borrowed_spares: Some(0),
            read_bytes_in_flight: Some(3 << 12),
            read_window_bytes: Some(128 << 10),
            token_bytes: Some(-8192),
            held_to_bytes_per_second: Some(3 << 20),
            floors_out_of_reach: Some(false),
            latency_out_of_reach: Some(true),
        };
        let drive = DriveRates { drive: "/dev/ng0n1".into(), role: Some(2), reads: rates(), writes: rates() };
        let (devices, drives, written_per_byte) = (vec![shown], vec![drive], Some(1.25));
        let top = Top {
            array: "tank".into(),
            seconds: 1.5,
            devices,
            drives,
            longest_turn_us: Some(319),
            p99_turn_us: Some(95),
            written_per_byte,
        };
        assert_eq!(crate::process::output::undescribed(&top, "top.json"), [""; 0]);
        let text = top.text();
        let told = [
            "client 3",
            "1 held, 3 own",
            "128 KiB a zone",
            "-8 KiB",
            "3 MiB/s",
            "latency out of reach",
            "member 2: ng0n1",
            "write amplification, including parity: 1.25",
            "longest turn 319 us",
        ];
        assert!(told.iter().all(|words| text.contains(words)), "{text}");
        // Without namespaces the columns of their scheduler are left out, and a terminal of 80 columns is wide enough.
        let long = "/a/directory/with/a/long/name/that/does/not/matter/drive0.img".into();
        let (namespace, role) = (None, Some(0));
        let drives = vec![DriveRates { drive: long, role, reads: rates(), writes: rates() }];
        let devices =
            top.devices.into_iter().map(|device| DeviceRates { namespace: namespace.clone(), ..device });
        let narrow = Top { devices: devices.collect(), drives, ..top };
        let text = narrow.text();
        assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains("SPARES"), "{text}");
        assert!(text.contains("member 0: drive0.img"), "{text}");
        assert_eq!(clipped("abc\nde\n", 2), "ab\nde\n");
        assert_eq!((rates().p50_us, rates().p99_9_us), (Some(1), Some(2)));
    }
}
