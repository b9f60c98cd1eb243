//! Hostile and invalid peers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::bytes::{accepted, meet};
use tollgate_test_support::master::Master;
use tollgate_test_support::tap::hex;
use tollgate_test_support::wall_ms;

#[test]
fn hostile_and_idle_peers_do_not_disturb_a_real_gate() {
    let master = Master::start("hostile");
    let before = master.rss_kb();
    let idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(master.accounting).unwrap()).collect();
    for address in [master.accounting, master.control] {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &[0xff; 100], &hex("ff00000000000000017f0100")] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream.write_all(garbage).unwrap();
            // Disconnected: further bytes have no effect.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    // A frame of an exabyte, and a message that never ends.
    for tail in [hex("02 4000000000000000"), hex("01 00").repeat(1 << 16)] {
        let mut stream = meet(master.accounting, 1, "PUB", "SUB");
        let _ = stream.write_all(&tail);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // A peer that subscribes to too many topics.
    let mut greedy = meet(master.control, 1, "SUB", "PUB");
    let many: Vec<u8> = (0..1000_u16).flat_map(|topic| [&[0, 3, 1][..], &topic.to_be_bytes()].concat()).collect();
    let _ = greedy.write_all(&many);
    let _ = greedy.read_to_end(&mut Vec::new());
    let mut control = meet(master.control, 1, "SUB", "PUB");
    control.write_all(&hex("040a 09535542534352494245")).unwrap();
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    (0..10).for_each(|_| accounting.write_all(&accepted(wall_ms())).unwrap());
    let mut order = [0; 8];
    control.read_exact(&mut order).unwrap();
    assert!(master.metric("tollgate_master_faults_total{outcome=\"too-long\"}", 2) >= 2);
    assert!(master.metric("tollgate_master_faults_total{outcome=\"topics\"}", 1) >= 1);
    assert!(master.rss_kb() < before + 20_000, "{} KiB after {before} KiB", master.rss_kb());
    drop(idle);
}

#[test]
fn fault_34_a_bad_message_is_counted_and_dropped_and_its_sender_stays() {
    let master = Master::start("bad");
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    let good = accepted(wall_ms());
    // An unknown status, an unknown domain, an invalid time, and too few frames.
    let weird = [&good[..12], b"WEIRDEST", &good[20..]].concat();
    let elsewhere = [&good[..2], b"defaulx\0", &good[10..]].concat();
    let timeless = [&good[..33], b"yesterday,4pm", &good[46..]].concat();
    for bad in [&weird, &elsewhere, &timeless, &hex("0108 64656661756c7400 0000")] {
        accounting.write_all(bad).unwrap();
    }
    accounting.write_all(&good).unwrap();
    assert_eq!(master.metric("tollgate_master_reports_total{outcome=\"charged\"}", 1), 1);
    for fault in ["word", "time", "frame-count"] {
        assert_eq!(master.metric(&format!("tollgate_master_faults_total{{outcome=\"{fault}\"}}"), 1), 1);
    }
    assert_eq!(master.metric("tollgate_master_reports_total{outcome=\"unknown-domain\"}", 1), 1);
}

#[test]
fn beyond_loopback_a_master_does_not_start_without_authentication() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("open-{}.toml", std::process::id()));
    for (settings, said) in [
        ("", "`tollgate keys master.key`"),
        ("key_file = \"/nonexistent\"\n", "write their public keys as `gates`"),
        (
            "key_file = \"/nonexistent\"\ngates = [\"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"]\n",
            "cannot read /nonexistent",
        ),
    ] {
        let settings = format!("[master]\ncontrol = \"0.0.0.0:10005\"\n{settings}");
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("master").arg("--config").arg(&file);
        command.env("XDG_STATE_HOME", file.with_extension("state")).env_remove("STATE_DIRECTORY");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(said), "{stderr}");
    }
    std::fs::remove_file(&file).unwrap();
}
