//! A server and a client: ping-pong messages, an RDMA write and an RDMA read. Every byte is checked.
//!
//! ```text
//! udapl-ping sm0 4711              the server; it ends after one client
//! udapl-ping sm0 4711 127.0.0.1    the client
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use udapl::{
    Access, Buffer, Completion, End, Ep, Evd, Event, Library, Listener, Op, Pz, Remote, Streams, TransferError, Window,
};

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
const MESSAGES: u32 = 1000;
const LENGTH: usize = 64 * 1024;
/// Length in bytes of a window's key, address and length in private data.
const TICKET: usize = 20;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("udapl-ping: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, qualifier, host) = match &arguments[..] {
        [name, qualifier] => (name, qualifier.parse()?, None),
        [name, qualifier, host] => (name, qualifier.parse()?, Some(host.parse()?)),
        _ => return Err("usage: udapl-ping ADAPTER QUALIFIER [ADDRESS OF THE SERVER]".into()),
    };
    let ia = Library::load()?.open(name)?;
    let pz = ia.pz()?;
    let events = ia.evd(64, Streams::REQUEST | Streams::DTO | Streams::CONNECTION)?;
    let ep = pz.ep(&events)?;
    ep.recv(Buffer::new(&pz, LENGTH)?, ..)?;
    match host {
        Some(host) => client(&ep, &pz, &events, host, qualifier),
        None => server(&ep, &pz, &events, ia.listen(qualifier, &events)?),
    }
}

fn server(ep: &Ep, pz: &Pz, events: &Evd, listener: Listener) -> Outcome {
    let window = Window::new(pz, LENGTH, Access::READ | Access::WRITE)?;
    let request = match next(events)? {
        Event::Request(request) => request,
        other => return Err(format!("expected a connection request, got {other:?}").into()),
    };
    request.accept(ep, &window.ticket().to_bytes())?;
    drop(listener);
    // The buffer of a message is sent back as the reply, while a spare buffer receives the next message. The next
    // message may arrive before the send of the reply completes here. No buffer is spare then, so its reply waits for
    // that completion.
    let (mut spare, mut unanswered) = (Some(Buffer::new(pz, LENGTH)?), None);
    let mut count = 0;
    loop {
        match next(events)? {
            Event::Established { .. } => {}
            // A second client: dropping its request rejects the request.
            Event::Request(_) => {}
            Event::Completed(Completion { op: Op::Recv, buffer, result: Ok(length), .. }) => {
                count += 1;
                if count == MESSAGES {
                    check(&window)?;
                }
                unanswered = Some((buffer, length));
            }
            Event::Completed(Completion { op: Op::Send, buffer, result: Ok(_), .. }) => spare = Some(buffer),
            // The client ends the connection; posted receives are flushed.
            Event::Completed(Completion { result: Err(TransferError::Flushed), .. }) => {}
            Event::Ended { why: End::Disconnected, .. } => break,
            other => return Err(format!("unexpected event: {other:?}").into()),
        }
        (spare, unanswered) = match (spare, unanswered) {
            (Some(next), Some((answer, length))) => {
                ep.recv(next, ..)?;
                ep.send(answer, ..length)?;
                (None, None)
            }
            waiting => waiting,
        };
    }
    if count != MESSAGES {
        return Err(format!("the client ended the connection after {count} of {MESSAGES} messages").into());
    }
    println!("server: {count} messages answered");
    Ok(())
}

/// Checks that the window contains the bytes that the client writes.
fn check(window: &Window) -> Outcome {
    let mut bytes = vec![0; LENGTH];
    window.read(0, &mut bytes);
    if bytes == pattern() { Ok(()) } else { Err("the window does not contain the bytes that the client wrote".into()) }
}

fn client(ep: &Ep, pz: &Pz, events: &Evd, host: IpAddr, qualifier: u64) -> Outcome {
    let Some(private_data) = connected(ep, events, host, qualifier)? else {
        return Err(format!("{host}: no program listens on {qualifier}").into());
    };
    let ticket = private_data.first_chunk::<TICKET>().ok_or("the private data of the server contains no window")?;
    let window = Remote::from_bytes(ticket);
    let mut buffer = Buffer::new(pz, LENGTH)?;
    buffer.copy_from_slice(&pattern());
    ep.write(buffer, .., &window, 0)?;
    let mut buffer = done(events, Op::Write)?.buffer;
    buffer.fill(0);
    ep.read(buffer, .., &window, 0)?;
    let mut buffer = done(events, Op::Read)?.buffer;
    if *buffer != pattern() {
        return Err("the bytes read from the window are not those written".into());
    }
    let begin = Instant::now();
    for number in 0..MESSAGES {
        buffer[..4].copy_from_slice(&number.to_be_bytes());
        ep.send(buffer, ..4)?;
        // The reply may arrive before the completion of the send that it answers.
        let (mut answer, mut sent) = (None, None);
        while answer.is_none() || sent.is_none() {
            let completion = match next(events)? {
                Event::Completed(completion) => completion,
                other => return Err(format!("expected a completion for message {number}, got {other:?}").into()),
            };
            let (op, length) = (completion.op, completion.result?);
            let place = if op == Op::Recv { &mut answer } else { &mut sent };
            *place = Some((completion.buffer, length));
        }
        let (answer, length) = answer.ok_or("no receive of the reply completed")?;
        if answer[..length] != number.to_be_bytes() {
            return Err(format!("the reply to message {number} has other bytes").into());
        }
        ep.recv(answer, ..)?;
        buffer = sent.ok_or("no send of the message completed")?.0;
    }
    println!("client: {MESSAGES} messages there and back, {:?} each", begin.elapsed() / MESSAGES);
    ep.disconnect()?;
    loop {
        if let Event::Ended { why: End::Disconnected, .. } = next(events)? {
            return Ok(());
        }
    }
}

/// Connects, and returns the private data of the server's acceptance. `None` if the server does not listen within the
/// time limit.
fn connected(ep: &Ep, events: &Evd, host: IpAddr, qualifier: u64) -> Outcome<Option<Vec<u8>>> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        ep.connect(host.into(), qualifier, PATIENCE, b"")?;
        // A failed attempt also flushes the posted receive, before or after the event about the failure.
        let (mut failed, mut flushed) = (false, None);
        while !failed || flushed.is_none() {
            match next(events)? {
                Event::Established { private_data, .. } => return Ok(Some(private_data)),
                Event::Completed(Completion { op: Op::Recv, buffer, .. }) => flushed = Some(buffer),
                Event::Ended { why: End::PeerRejected | End::Rejected | End::Unreachable, .. } => failed = true,
                other => return Err(format!("cannot connect to {host}, qualifier {qualifier}: {other:?}").into()),
            }
        }
        ep.reset()?;
        ep.recv(flushed.ok_or("the receive was not flushed")?, ..)?;
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

fn done(events: &Evd, op: Op) -> Outcome<Completion> {
    match next(events)? {
        Event::Completed(completion) if completion.op == op => match completion.result {
            Ok(_) => Ok(completion),
            Err(error) => Err(format!("{op:?} failed: {error}").into()),
        },
        other => Err(format!("expected the completion of {op:?}, got {other:?}").into()),
    }
}

fn next(events: &Evd) -> Outcome<Event> {
    Ok(events.wait(PATIENCE)?.ok_or("no event within 30 s")?)
}

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 31 % 251) as u8).collect()
}
