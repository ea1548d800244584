//! Fits the parameters of a drive to measurements by fio.
//!
//! Reads fio's JSON output of runs on a single drive: each job has a constant request size and depth. The parameters of
//! [`Timing`] that such figures determine are fitted and printed beside the presets. Other ones, the size of the write
//! buffer for example, have to be guessed or measured otherwise.

use anyhow::{Context, Result, bail};
use emu::{ssd::Model, timing::Timing};
use serde::Serialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::PathBuf};

const OUTPUT_VERSION: u32 = 1;

/// Options of `lab fit`.
#[derive(clap::Args)]
pub struct Fit {
    /// Output of fio --output-format=json, of runs on one drive
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Measurement of one job, all its clones together.
#[derive(Clone, Debug)]
struct Sample {
    write: bool,
    bytes: f64,
    in_flight: f64,
    mb_s: f64,
    iops: f64,
    latency_us: f64,
}

/// A parameter, as fitted and in the presets.
#[derive(Clone, Debug, Serialize)]
struct Parameter {
    name: &'static str,
    unit: &'static str,
    fitted: Option<f64>,
    /// By name of the preset.
    presets: BTreeMap<&'static str, f64>,
}

impl Fit {
    /// Prints the parameters beside those of the presets.
    ///
    /// # Errors
    /// A file cannot be read or has no useful runs.
    pub fn run(&self) -> Result<bool> {
        let mut samples = Vec::new();
        for file in &self.files {
            let text =
                fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
            let output = serde_json::from_str(&text);
            let output: Value = output.with_context(|| format!("{} is no JSON", file.display()))?;
            samples.extend(read(&output).with_context(|| file.display().to_string())?);
        }
        let parameters = fit(&samples)?;
        let nearest = nearest(&parameters);
        if self.json {
            println!(
                "{}",
                json!({ "version": OUTPUT_VERSION, "nearest": nearest, "parameters": parameters })
            );
            return Ok(true);
        }
        print!("{:<46} {:>9}", "", "fitted");
        Model::NAMES.iter().for_each(|name| print!(" {name:>10}"));
        println!();
        for parameter in &parameters {
            let fitted = parameter.fitted.map_or("-".into(), |value| format!("{value:.2}"));
            print!("{:<46} {fitted:>9}", format!("{}, {}", parameter.name, parameter.unit));
            Model::NAMES.iter().for_each(|name| print!(" {:>10.2}", parameter.presets[name]));
            println!();
        }
        println!("\nNearest preset: {nearest}. '-': no run shows it.");
        Ok(true)
    }
}

/// The jobs in fio's output.
fn read(output: &Value) -> Result<Vec<Sample>> {
    let jobs = output["jobs"].as_array().context("has no jobs, as fio's JSON output has")?;
    let mut samples: BTreeMap<(String, bool), Sample> = BTreeMap::new();
    for job in jobs {
        let option =
            |name: &str| job["job options"][name].as_str().or(output["global options"][name].as_str());
        let count = |name: &str| option(name).map_or(Ok(1.0), str::parse::<f64>);
        let size = option("bs").unwrap_or("4k");
        let bytes = bytes(size).with_context(|| format!("block size {size} is not understood"))?;
        let depth = count("iodepth").context("iodepth is no number")?;
        // Clones of a job come separately, or merged with group_reporting.
        let in_flight = depth * count("numjobs").context("numjobs is no number")?;
        for (direction, write) in [("read", false), ("write", true)] {
            let measured = &job[direction];
            let iops = measured["iops"].as_f64().unwrap_or(0.0);
            if iops == 0.0 {
                continue;
            }
            let latency_ns = [&measured["lat_ns"]["mean"], &measured["clat_ns"]["mean"]];
            let latency_ns = latency_ns.into_iter().filter_map(Value::as_f64).find(|mean| *mean > 0.0);
            let latency_us = latency_ns.context("has no latencies in ns, as fio 3 gives them")? / 1e3;
            let mb_s = iops * bytes / 1e6;
            let name = job["jobname"].as_str().unwrap_or_default().to_string();
            samples
                .entry((name, write))
                .and_modify(|sample| {
                    sample.latency_us =
                        (sample.latency_us * sample.iops + latency_us * iops) / (sample.iops + iops);
                    sample.mb_s += mb_s;
                    sample.iops += iops;
                })
                .or_insert(Sample { write, bytes, in_flight, mb_s, iops, latency_us });
        }
    }
    Ok(samples.into_values().collect())
}

/// A size as fio takes it: 4096, 4k, 64KiB, 1M.
fn bytes(size: &str) -> Option<f64> {
    let digits = size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len());
    let (number, unit) = size.split_at(digits);
    let factor = match unit.to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1024.0 * 1024.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// The parameters that the runs determine.
///
/// # Errors
/// They determine none.
fn fit(samples: &[Sample]) -> Result<Vec<Parameter>> {
    let (writes, reads): (Vec<&Sample>, Vec<&Sample>) = samples.iter().partition(|sample| sample.write);
    let most = |samples: &[&Sample]| samples.iter().map(|sample| sample.mb_s).reduce(f64::max);
    let (drain, link) = (most(&writes), most(&reads));
    let write_firmware = firmware_us(&writes, drain);
    let write_line = line(&writes, drain);
    let read_firmware = firmware_us(&reads, link);
    let read_line = line(&reads, link);
    let acknowledge = write_line.zip(write_firmware).map(|((fixed, _), firmware)| fixed - firmware);
    let per_mb_s = |(_, us_per_byte): (f64, f64)| 1.0 / us_per_byte;
    let parameters = vec![
        parameter("write: firmware", "µs", write_firmware, |t| t.write_firmware_us),
        parameter("write: acknowledgement", "µs", acknowledge, |t| t.write_acknowledge_us),
        parameter("write: link", "MB/s", write_line.map(per_mb_s), |t| t.write_link_mb_s),
        parameter("write: drive", "MB/s", drain, |t| t.drain_mb_s.unwrap_or(t.write_link_mb_s)),
        parameter("read: firmware", "µs", read_firmware, |t| t.read_firmware_us),
        parameter("read: all that does not depend on the size", "µs", read_line.map(|line| line.0), |t| {
            t.read_firmware_us + t.channel_read_us + t.read_page_us + t.read_acknowledge_us
        }),
        parameter("read: channel and link, one after the other", "MB/s", read_line.map(per_mb_s), |t| {
            1.0 / (1.0 / t.channel_read_mb_s + 1.0 / t.read_link_mb_s)
        }),
        parameter("read: link", "MB/s", link, |t| t.read_link_mb_s),
    ];
    if parameters.iter().all(|parameter| parameter.fitted.is_none()) {
        bail!("no run shows anything; run fio with one job and with several, as docs/LAB.md says");
    }
    Ok(parameters)
}

fn parameter(
    name: &'static str,
    unit: &'static str,
    fitted: Option<f64>,
    preset: impl Fn(&Timing) -> f64,
) -> Parameter {
    let of = |name: &&'static str| Timing::by_name(name).map(|timing| (*name, preset(&timing)));
    Parameter { name, unit, fitted, presets: Model::NAMES.iter().filter_map(of).collect() }
}

/// Service time in the firmware: that of many small requests in flight, below the bandwidth limit.
fn firmware_us(samples: &[&Sample], limit_mb_s: Option<f64>) -> Option<f64> {
    let busy = samples
        .iter()
        .filter(|sample| sample.in_flight >= 4.0 && sample.mb_s < 0.8 * limit_mb_s.unwrap_or(0.0));
    busy.map(|sample| sample.iops).reduce(f64::max).map(|iops| 1e6 / iops)
}

/// Latency of single requests by size, below the bandwidth limit: constant µs, and µs per byte.
fn line(samples: &[&Sample], limit_mb_s: Option<f64>) -> Option<(f64, f64)> {
    let single = samples.iter().filter(|sample| {
        sample.in_flight == 1.0 && sample.bytes <= 16384.0 && sample.mb_s < 0.95 * limit_mb_s.unwrap_or(0.0)
    });
    let points: Vec<(f64, f64)> = single.map(|sample| (sample.bytes, sample.latency_us)).collect();
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if spread == 0.0 {
        return None;
    }
    let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
    (slope > 0.0).then_some((y - slope * x, slope))
}

/// The preset with the closest parameters, by the sum of the absolute logarithms of their ratios.
fn nearest(parameters: &[Parameter]) -> &'static str {
    let distance = |name: &str| -> f64 {
        let ratios =
            parameters.iter().filter_map(|parameter| Some(parameter.fitted? / parameter.presets.get(name)?));
        ratios.map(|ratio| ratio.max(f64::MIN_POSITIVE).ln().abs()).sum()
    };
    let closer = |a: &&&str, b: &&&str| distance(a).total_cmp(&distance(b));
    Model::NAMES.iter().min_by(closer).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate;
    use crate::load::{RequestKind, Window};

    /// fio's output for a drive.
    fn measured(name: &str) -> Value {
        let job = |kind: RequestKind, zones: u32, kib: u64, depth: u32| {
            let measured = calibrate::measure(name, kind, zones, kib, depth, Window::ms(50, 150)).unwrap();
            let figures = json!({
                "iops": measured.latencies_ns.len() as f64 / 0.1,
                "lat_ns": { "mean": measured.mean_us() * 1e3 },
            });
            let direction = if kind == RequestKind::Read { "read" } else { "write" };
            json!({
                "jobname": format!("{direction} {zones} {kib} {depth}"),
                "job options": {
                    "bs": format!("{kib}k"), "iodepth": depth.to_string(), "numjobs": zones.to_string(),
                },
                direction: figures,
            })
        };
        let mut jobs = vec![job(RequestKind::Write, 8, 4, 1), job(RequestKind::Write, 8, 64, 1)];
        jobs.extend([4, 8, 16].map(|kib| job(RequestKind::Write, 1, kib, 1)));
        jobs.extend([4, 8, 16].map(|kib| job(RequestKind::Read, 1, kib, 1)));
        jobs.extend([job(RequestKind::Read, 1, 4, 256), job(RequestKind::Read, 1, 16, 256)]);
        json!({ "jobs": jobs })
    }

    #[test]
    fn fit_recovers_drive_model_from_fio_output() {
        for name in ["zn540", "zn540-4tb"] {
            let parameters = fit(&read(&measured(name)).unwrap()).unwrap();
            assert_eq!(nearest(&parameters), name);
            for parameter in &parameters {
                let (fitted, preset) = (parameter.fitted.unwrap(), parameter.presets[name]);
                assert!(
                    (fitted / preset - 1.0).abs() < 0.12,
                    "{name}, {}: {fitted}, not {preset}",
                    parameter.name
                );
            }
        }
    }

    #[test]
    fn fit_parses_fio_sizes_and_rejects_other_input() {
        let sizes = ["4096", "4k", "64KiB", "1M", "1g"].map(bytes);
        assert_eq!(sizes, [Some(4096.0), Some(4096.0), Some(65536.0), Some(1048576.0), None]);
        assert!(read(&json!({})).unwrap_err().to_string().contains("no jobs"));
        assert!(fit(&read(&json!({ "jobs": [] })).unwrap()).unwrap_err().to_string().contains("docs/LAB.md"));
    }
}
