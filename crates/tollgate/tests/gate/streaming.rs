//! Bodies of any size are streamed in constant memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use crate::support::backend::{read_head, respond};
use crate::support::{Backend, Gate, PATIENCE, read_response};

const GIGABYTE: u64 = 1 << 30;
/// Growth by buffers and the allocator, in kB: far less than the transferred bytes.
const GROWTH_MAX_KB: u64 = 8 * 1024;

#[test]
fn fault_18_a_gigabyte_goes_up_and_down_in_constant_memory() {
    let received = Arc::new(AtomicU64::new(0));
    let counted = received.clone();
    let backend = Backend::connecting(move |mut stream| {
        let mut reader = BufReader::with_capacity(1 << 16, stream.try_clone().unwrap());
        while let Some(request) = read_head(&mut reader) {
            if request.path() == "/down" {
                stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {GIGABYTE}\r\n\r\n").as_bytes()).unwrap();
                let block = vec![b'd'; 1 << 16];
                for _ in 0..GIGABYTE >> 16 {
                    stream.write_all(&block).unwrap();
                }
            } else {
                let mut left = GIGABYTE;
                while left > 0 {
                    let length = reader.fill_buf().unwrap().len().min(left as usize);
                    assert!(length > 0);
                    reader.consume(length);
                    left -= length as u64;
                    counted.fetch_add(length as u64, Ordering::Relaxed);
                }
                respond(&mut stream, "got it").unwrap();
            }
        }
    });
    let gate = Gate::before(&backend);
    assert_eq!(gate.connect().write(b"").unwrap(), 0);
    let before_kb = gate.rss_kb();
    let mut stream = gate.connect();
    let mut reader = BufReader::with_capacity(1 << 16, stream.try_clone().unwrap());

    stream.write_all(format!("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {GIGABYTE}\r\n\r\n").as_bytes()).unwrap();
    let block = vec![b'u'; 1 << 16];
    let mut most_kb = 0;
    for number in 0..GIGABYTE >> 16 {
        stream.write_all(&block).unwrap();
        if number % 4096 == 0 {
            most_kb = most_kb.max(gate.rss_kb());
        }
    }
    assert_eq!(read_response(&mut reader).unwrap().text(), "got it");
    assert_eq!(received.load(Ordering::Relaxed), GIGABYTE);

    stream.write_all(b"GET /down HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    let (mut left, mut blocks) = (GIGABYTE, 0);
    while left > 0 {
        let length = reader.fill_buf().unwrap().len().min(left as usize);
        assert!(length > 0, "{left} bytes are missing");
        reader.consume(length);
        left -= length as u64;
        blocks += 1;
        if blocks % 4096 == 0 {
            most_kb = most_kb.max(gate.rss_kb());
        }
    }
    assert!(most_kb.saturating_sub(before_kb) < GROWTH_MAX_KB, "from {before_kb} to {most_kb} kB");
}

#[test]
fn each_chunk_is_forwarded_when_it_arrives() {
    let (next, waits) = mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let backend = Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        read_head(&mut reader).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .unwrap();
        for _ in 0..3 {
            waits.lock().unwrap().recv().unwrap();
            // In two parts, so that the framing is split as well.
            stream.write_all(b"8\r\ndata: a\n\r").unwrap();
            stream.write_all(b"\n").unwrap();
        }
        waits.lock().unwrap().recv().unwrap();
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0, "an event stream holds no permit");
    for _ in 0..3 {
        next.send(()).unwrap();
        let mut chunk = [0; 13];
        reader.read_exact(&mut chunk).unwrap();
        assert_eq!(&chunk, b"8\r\ndata: a\n\r\n");
    }
    next.send(()).unwrap();
    let mut end = [0; 5];
    reader.read_exact(&mut end).unwrap();
    assert_eq!(&end, b"0\r\n\r\n");
}

#[test]
fn a_request_body_reaches_the_backend_while_it_is_being_sent() {
    let (got, arrives) = mpsc::channel::<Vec<u8>>();
    let backend = Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        read_head(&mut reader).unwrap();
        for _ in 0..3 {
            let mut chunk = vec![0; 8];
            reader.read_exact(&mut chunk).unwrap();
            got.send(chunk).unwrap();
        }
        let mut end = [0; 5];
        reader.read_exact(&mut end).unwrap();
        respond(&mut stream, "done").unwrap();
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..3 {
        stream.write_all(b"3;ext=1\r\nabc\r\n").unwrap();
        assert_eq!(arrives.recv_timeout(PATIENCE).unwrap(), b"3\r\nabc\r\n", "chunk extensions are not forwarded");
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().text(), "done");
}

#[test]
fn many_small_chunks_arrive_whole() {
    let backend = Backend::answering(|request, stream| {
        assert_eq!(request.body.len(), 20_000);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        stream.write_all(&b"1\r\nx\r\n".repeat(20_000))?;
        stream.write_all(b"0\r\n\r\n")
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        writer.write_all(&b"1\r\ny\r\n".repeat(20_000)).unwrap();
        writer.write_all(b"0\r\n\r\n").unwrap();
    });
    let response = read_response(&mut BufReader::new(stream)).unwrap();
    assert_eq!(response.body, vec![b'x'; 20_000]);
    sends.join().unwrap();
}
