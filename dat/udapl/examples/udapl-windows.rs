//! Memory that peers access, shown in one process: a part of a window with its own key (an RMR), memory that several
//! processes share, and attributes and counters of an endpoint.
//!
//! ```text
//! udapl-windows sm0
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use udapl::{Access, Buffer, Ep, Evd, Event, Ia, Library, Pz, SharedMemory, Streams, TransferError, Window};

const PATIENCE: Duration = Duration::from_secs(30);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let name = std::env::args().nth(1).ok_or("usage: udapl-windows ADAPTER")?;
    let ia = Library::load()?.open(&name)?;
    let pz = ia.pz()?;
    let events = ia.evd(64, Streams::all())?;
    let (client, server) = connected(&ia, &pz, &events)?;

    // Another process would get the descriptor over a local socket, and register the memory under the same name.
    let memory = SharedMemory::create(4096)?;
    let window =
        Window::shared(&pz, &memory, b"udapl-windows, an example of forty bytes", Access::READ | Access::WRITE)?;

    // Until the unbind, the peer may write these sixteen bytes.
    let mut rmr = pz.rmr()?;
    let (_, remote) = rmr.bind(&server, &window, 64..80, Access::WRITE)?;
    bound(next(&events)?)?;
    let mut buffer = Buffer::new(&pz, 16)?;
    buffer.copy_from_slice(b"sixteen letters.");
    client.write(buffer, .., &remote, 0)?;
    let done = match next(&events)? {
        Event::Completed(done) => done,
        other => return Err(format!("expected the completion of the write, got {other:?}").into()),
    };
    done.result?;
    let mut seen = [0; 16];
    window.read(64, &mut seen);
    println!("written: {}", String::from_utf8_lossy(&seen));

    report(&ia, &client)?;

    rmr.unbind(&server)?;
    bound(next(&events)?)?;
    client.write(done.buffer, .., &remote, 0)?;
    loop {
        match next(&events)? {
            Event::Completed(done) => {
                println!("after the unbind: {:?}", done.result);
                assert_eq!(done.result, Err(TransferError::RemoteAccess));
                return Ok(());
            }
            Event::Ended { .. } => {}
            other => return Err(format!("unexpected event: {other:?}").into()),
        }
    }
}

/// Two connected endpoints.
fn connected(ia: &Ia, pz: &Pz, events: &Evd) -> Outcome<(Ep, Ep)> {
    let (client, server) = (pz.ep(events)?, pz.ep(events)?);
    let listener = ia.listen_any(events)?;
    client.connect(ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into()), listener.qualifier(), PATIENCE, b"")?;
    let request = match next(events)? {
        Event::Request(request) => request,
        other => return Err(format!("expected a connection request, got {other:?}").into()),
    };
    request.accept(&server, b"")?;
    for _ in 0..2 {
        match next(events)? {
            Event::Established { .. } => {}
            other => return Err(format!("expected an established connection, got {other:?}").into()),
        }
    }
    Ok((client, server))
}

fn report(ia: &Ia, client: &Ep) -> Outcome {
    let info = client.info()?;
    println!("{}: peer {:?}, {} requests at a time", ia.provider(), info.remote, info.max_requests);
    let moved = client.counters()?.into_iter().filter(|counter| counter.value != "0");
    moved.for_each(|counter| println!("  {} = {}", counter.name, counter.value));
    Ok(())
}

fn bound(event: Event) -> Outcome {
    match event {
        Event::Bound { result, .. } => Ok(result?),
        other => Err(format!("expected the completion of a bind, got {other:?}").into()),
    }
}

fn next(events: &Evd) -> Outcome<Event> {
    events.wait(PATIENCE)?.ok_or_else(|| "no event within 30 s".into())
}
