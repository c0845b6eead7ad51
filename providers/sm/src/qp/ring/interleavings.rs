//! Loom model of a ring of two slots over two laps. Loom reports a writer that fills a slot while the reader reads it,
//! and a reader that reads a slot before it is filled.
#![forbid(unsafe_code)]

use dapl::runtime::sync::access_check::AccessCheck;
use loom::thread;

use super::*;
use crate::proto::message::MessageKind;

const MESSAGES: u64 = 4;

#[test]
fn every_slot_is_read_once_in_order_and_never_while_it_is_written() {
    loom::model(|| {
        let (area, line) = (Arc::new(SharedMapping::fake(256)), SharedMapping::fake(8));
        let bodies = Arc::<[AccessCheck; 2]>::default();
        let (mut writer, mut reader) = (Writer::new(area.clone(), 0, 2), Reader::new(area, 0, 2));
        let writing = {
            let (line, bodies) = (line.clone(), bodies.clone());
            thread::spawn(move || {
                for n in 0..MESSAGES {
                    while writer.is_full() {
                        assert_eq!(writer.set_consumed(line.word(0).load(Ordering::Acquire)), Some(()));
                        thread::yield_now();
                    }
                    bodies[n as usize % 2].write();
                    writer.push(
                        Header::plain(MessageKind::Send, 8),
                        &SlotFields { total: Some(n), ack: n as u32, aux: !n as u32 },
                    );
                }
            })
        };
        while reader.consumed() < MESSAGES {
            let n = reader.consumed();
            match reader.peek() {
                Peeked::Empty => thread::yield_now(),
                Peeked::Entry(header) => {
                    let payload = reader.fields();
                    assert_eq!(
                        (header.length, payload.total, payload.ack, payload.aux),
                        (8, Some(n), n as u32, !n as u32)
                    );
                    bodies[n as usize % 2].read();
                    reader.advance();
                    line.word(0).store(reader.consumed(), Ordering::Release);
                }
                Peeked::Invalid => panic!("the writer publishes only valid headers"),
            }
        }
        writing.join().unwrap();
    });
}
