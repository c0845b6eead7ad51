//! Two endpoints that send a message back and forth in one asynchronous task, without a waiting thread.
//!
//! ```text
//! cargo run --example udapl-async --features async -- sm0
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use udapl::{Buffer, Event, Library, Op, Streams};

const PATIENCE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 1000;
const LENGTH: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: udapl-async ADAPTER")?;
    // Any executor works.
    async_io::block_on(run(&name))
}

async fn run(name: &str) -> Result<(), Box<dyn Error>> {
    let ia = Library::load()?.open(name)?;
    let pz = ia.pz()?;
    let events = ia.evd(64, Streams::REQUEST | Streams::DTO | Streams::CONNECTION)?;
    let ends = [pz.ep(&events)?, pz.ep(&events)?];
    for end in &ends {
        end.recv(Buffer::new(&pz, LENGTH)?, ..)?;
    }
    let mut spare = Vec::new();
    let listener = ia.listen_any(&events)?;
    ends[0].connect(ia.address().unwrap_or(Ipv4Addr::LOCALHOST.into()), listener.qualifier(), PATIENCE, b"")?;

    let mut stream = events.stream()?;
    let (mut established, mut received) = (0, 0);
    while received < ROUNDS {
        match stream.next().await? {
            Event::Request(request) => request.accept(&ends[1], b"")?,
            Event::Established { .. } => {
                established += 1;
                if established == 2 {
                    ends[0].send(Buffer::new(&pz, LENGTH)?, ..)?;
                }
            }
            Event::Completed(done) if done.op == Op::Recv => {
                done.result?;
                received += 1;
                let end = ends
                    .iter()
                    .find(|end| end.id() == done.ep)
                    .ok_or("a receive completion names an unknown endpoint")?;
                // A receive for the next message is posted first; then the buffer of this message is sent back. If the
                // completion of the previous send was not dequeued yet, there is no spare buffer, and a new one is
                // used.
                end.recv(spare.pop().map_or_else(|| Buffer::new(&pz, LENGTH), Ok)?, ..)?;
                end.send(done.buffer, ..)?;
            }
            Event::Completed(done) => {
                done.result?;
                spare.push(done.buffer);
            }
            other => return Err(format!("unexpected event: {other:?}").into()),
        }
    }
    println!("{received} messages");
    Ok(())
}
