//! What `python -m tests.benchmarks rust-crate` measures of the Rust crate: WORKLOAD DIRECTORY SECONDS -> one line of JSON.
use mrecordlog::{MultiRecordLog, PersistAction, PersistPolicy};
use std::path::Path;
use std::time::{Duration, Instant};

const QUEUE: &str = "bench";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (what, directory) = (arguments[1].as_str(), Path::new(&arguments[2]));
    let seconds: f64 = arguments[3].parse().unwrap();
    std::fs::create_dir_all(directory).unwrap();
    let line = match what {
        "append" => appends(directory, seconds, 1, 100),
        "batch" => appends(directory, seconds, 1_000, 1_024),
        "range" => range(directory),
        "open" => open(directory),
        _ => panic!("unknown workload {what}"),
    };
    println!("{line}");
}

fn synced(directory: &Path) -> MultiRecordLog {
    let policy = PersistPolicy::Always(PersistAction::FlushAndFsync);
    let mut log = MultiRecordLog::open_with_prefs(directory, policy).unwrap();
    log.create_queue(QUEUE).unwrap();
    log
}

/// Append again and again, each time synced. Truncating now and then is not timed.
fn appends(directory: &Path, seconds: f64, records: usize, bytes: usize) -> String {
    let mut log = synced(directory);
    let payload = vec![7u8; bytes];
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut taken = Vec::new();
    while begun.elapsed() < limit {
        let one = Instant::now();
        let outcome = log.append_records(QUEUE, None, (0..records).map(|_| &payload[..])).unwrap();
        taken.push(one.elapsed().as_secs_f64());
        if taken.len() % 100 == 0 {
            log.truncate(QUEUE, ..=outcome.last_position.unwrap()).unwrap();
        }
    }
    let rate = (taken.len() * records) as f64 / taken.iter().sum::<f64>();
    taken.sort_by(f64::total_cmp);
    let quantile = |part: f64| taken[((taken.len() as f64 * part) as usize).min(taken.len() - 1)];
    format!("{{\"rate\": {rate}, \"p50\": {}, \"p99\": {}}}", quantile(0.5), quantile(0.99))
}

fn fill(directory: &Path) {
    let mut log = MultiRecordLog::open_with_prefs(directory, PersistPolicy::DoNothing).unwrap();
    log.create_queue(QUEUE).unwrap();
    let payload = vec![7u8; 100];
    for _ in 0..1_000 {
        log.append_records(QUEUE, None, (0..1_000).map(|_| &payload[..])).unwrap();
    }
    log.persist(PersistAction::FlushAndFsync).unwrap();
}

/// Read a million records of 100 bytes from memory.
fn range(directory: &Path) -> String {
    fill(directory);
    let log = MultiRecordLog::open(directory).unwrap();
    let begun = Instant::now();
    let bytes: usize = log.range(QUEUE, ..).unwrap().map(|record| record.payload.len()).sum();
    assert_eq!(bytes, 100_000_000);
    format!("{{\"rate\": {}}}", 1e6 / begun.elapsed().as_secs_f64())
}

/// Open a log of a million records of 100 bytes.
fn open(directory: &Path) -> String {
    fill(directory);
    let begun = Instant::now();
    let log = MultiRecordLog::open(directory).unwrap();
    let taken = begun.elapsed().as_secs_f64();
    assert!(log.queue_exists(QUEUE));
    format!("{{\"rate\": {}}}", 1e6 / taken)
}
