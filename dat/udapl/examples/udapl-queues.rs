//! A server of several clients with few buffers, in one process. It uses a shared receive queue, a group of event
//! queues with one wait, messages of several segments, writes without completions, and a write that waits for a read
//! (fence).
//!
//! ```text
//! udapl-queues sm0
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use udapl::{
    Access, Buffer, Ep, EpSpec, Evd, Event, Ia, Library, Op, PostFlags, Pz, Remote, Segment, Srq, Streams, Window,
};

const PATIENCE: Duration = Duration::from_secs(30);
const CLIENTS: usize = 4;
/// Length of a message's header; a text follows.
const HEADER: usize = 4;
const LENGTH: usize = 64;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let name = std::env::args().nth(1).ok_or("usage: udapl-queues ADAPTER")?;
    let ia = Library::load()?.open(&name)?;
    let pz = ia.pz()?;
    // One thread waits for connection requests and all other events.
    let group = ia.cno()?;
    let requests = ia.evd_on(&group, 16, Streams::REQUEST)?;
    let events = ia.evd_on(&group, 256, Streams::DTO | Streams::CONNECTION)?;
    let srq = pz.srq(16, 1)?;
    for _ in 0..CLIENTS {
        srq.recv(Buffer::new(&pz, LENGTH)?, ..)?;
    }
    let window = Window::new(&pz, CLIENTS, Access::READ | Access::WRITE)?;
    let remote = Remote::from_bytes(&window.ticket().to_bytes());

    let listener = ia.listen_any(&requests)?;
    let clients =
        (0..CLIENTS).map(|_| connect(&ia, &pz, &events, listener.qualifier())).collect::<Outcome<Vec<_>>>()?;
    let mut servers = Vec::new();
    let (mut established, mut received) = (0, 0);
    while received < CLIENTS {
        let ready = group.wait(PATIENCE)?.ok_or("no event within 30 s")?;
        while let Some(event) = (if ready == requests.id() { &requests } else { &events }).poll()? {
            match event {
                Event::Request(request) => servers.push(accept(request, &pz, &events, &srq)?),
                Event::Established { .. } => {
                    established += 1;
                    if established == 2 * CLIENTS {
                        for (number, client) in clients.iter().enumerate() {
                            say_hello(client, &pz, number, &remote)?;
                        }
                    }
                }
                Event::Completed(done) if done.op == Op::Recv => {
                    let (length, number) = (done.result?, done.buffer[0]);
                    let text = String::from_utf8_lossy(&done.buffer[HEADER..length]).into_owned();
                    println!("client {number}: {text}");
                    received += 1;
                    // The buffer receives the next message of any client.
                    srq.recv(done.buffer, ..)?;
                }
                Event::Completed(done) if done.op == Op::Read => {
                    done.result?;
                    // The fence delays the client's write, so the read returns the old mark.
                    assert_eq!(done.buffer[0], 0);
                }
                Event::Completed(done) => {
                    done.result?;
                    // The earlier write completed without an event; this completion returns its buffer.
                    assert_eq!(done.earlier.len(), 1);
                }
                other => return Err(format!("unexpected event: {other:?}").into()),
            }
        }
    }
    let mut marks = [0; CLIENTS];
    window.read(0, &mut marks);
    println!("marks written by the clients: {marks:?}, receives left in the SRQ: {}", srq.available()?);
    Ok(())
}

fn connect(ia: &Ia, pz: &Pz, events: &Evd, qualifier: u64) -> Outcome<Ep> {
    let ep = pz.ep(events)?;
    ep.connect(ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into()), qualifier, PATIENCE, b"")?;
    Ok(ep)
}

fn accept(request: udapl::ConnectionRequest, pz: &Pz, events: &Evd, srq: &Srq) -> Outcome<Ep> {
    let ep = pz.ep_with(&EpSpec { srq: Some(srq), ..EpSpec::new(events) })?;
    request.accept(&ep, b"")?;
    Ok(ep)
}

/// Reads the old mark, writes a new one without an event, then sends the header and the text as one message. The fence
/// delays the write until the read is complete; otherwise the read could return the new mark.
fn say_hello(client: &Ep, pz: &Pz, number: usize, remote: &Remote) -> Outcome {
    let number_byte = number as u8 + 1;
    let mut mark = Buffer::new(pz, 1)?;
    mark[0] = number_byte;
    client.read(Buffer::new(pz, 1)?, .., remote, number as u64)?;
    let flags = PostFlags::SUPPRESS | PostFlags::FENCE;
    client.write_with(Segment::new(mark, ..)?, Vec::new(), remote, number as u64, flags)?;
    let (mut header, mut text) = (Buffer::new(pz, HEADER)?, Buffer::new(pz, 5)?);
    header[0] = number_byte;
    text.copy_from_slice(b"hello");
    client.send_with(Segment::new(header, ..)?, vec![Segment::new(text, ..)?], PostFlags::empty())?;
    Ok(())
}
