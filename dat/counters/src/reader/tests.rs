//! Tests of the reader of counters with fake processes: valid, invalid, incomplete, too long and missing answers, a
//! full accept queue, an ended process, a socket of another user, and the limits of a run.

use std::thread::JoinHandle;

use rustix::net::SendFlags;

use super::*;

/// Returns a process id that is larger than any that the kernel assigns. Each test passes another `number`.
fn unused_pid(number: u32) -> u32 {
    0x4000_0000 + (std::process::id() << 4) + number
}

/// A fake process that listens under a name that no library uses.
struct FakeProcess {
    name: SocketName,
    listener: OwnedFd,
}

impl FakeProcess {
    fn new(number: u32) -> Self {
        let name = SocketName { uid: rustix::process::geteuid().as_raw(), pid: unused_pid(number), number: 0 };
        FakeProcess { name, listener: socket::listen(name).unwrap() }
    }

    /// Starts a thread that answers each query with these bytes and then closes the connection. The thread ends when
    /// the returned value is dropped. It also answers the queries of other tests.
    fn answers(&self, what: Vec<u8>) -> Answering {
        let listener = self.listener.try_clone().unwrap();
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let thread = std::thread::spawn(move || {
            loop {
                let mut fds = [PollFd::new(&stopped, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
                poll(&mut fds, None).unwrap();
                if !fds[0].revents().is_empty() {
                    return;
                }
                let peer = rustix::net::accept(&listener).unwrap();
                let mut rest = what.as_slice();
                // The send fails if the reader refuses the answer and closes the connection.
                while let (false, Ok(sent)) = (rest.is_empty(), rustix::net::send(&peer, rest, SendFlags::NOSIGNAL)) {
                    rest = &rest[sent..];
                }
            }
        });
        Answering { stop: Some(stop), thread: Some(thread) }
    }

    fn result(&self) -> Result<Process, ReadError> {
        let mut found = ask(&[self.name], Instant::now() + RUN_LIMIT, &mut CAPACITY.clone());
        assert_eq!(found.len(), 1);
        found.remove(0).result
    }

    fn word(&self, what: impl Into<Vec<u8>>) -> &'static str {
        let _answering = self.answers(what.into());
        self.result().map_or_else(|error| error.identifier(), |_| "ok")
    }
}

/// A thread that answers queries until this value is dropped.
struct Answering {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn socket_names_of_a_user_are_parsed_from_proc_net_unix() {
    let list = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/a @dapl-counters/1/2/3/4
0000000000000000: 00000002 00000000 00010000 0001 01 12346 @dapl-counters/1000/4711/1
0000000000000000: 00000003 00000000 00000000 0001 03 12347 @dapl-counters/1000/4711/1
0000000000000000: 00000002 00000000 00010000 0001 01 12346 @dapl-counters/1000/4711/0
0000000000000000: 00000002 00000000 00010000 0001 01 12346 @dapl-counters/1001/4711/0
0000000000000000: 00000002 00000000 00000000 0001 01 12348 @dapl-counters/1000/x/1
0000000000000000: 00000002 00000000 00000000 0001 01 12349 @dapl-counters/1000/99999999999/1
0000000000000000: 00000002 00000000 00000000 0001 01 12350
";
    assert_eq!(names(list, 1000), [0, 1].map(|number| SocketName { uid: 1000, pid: 4711, number }));
}

#[test]
fn each_kind_of_invalid_counter_data_has_its_error() {
    let fake = FakeProcess::new(0);
    assert_eq!(fake.word("dapl-counters 1\nprocess\t7\tx\nend\n"), "ok");
    assert_eq!(fake.word("dapl-counters 1\nprocess\t7\tx\n"), "cut");
    assert_eq!(fake.word(""), "cut");
    assert_eq!(fake.word("dapl-counters 9\nend\n"), "version");
    assert_eq!(fake.word("HTTP/1.1 400 Bad Request\r\n"), "nonsense");
    assert_eq!(fake.word([0xFF; 4000]), "nonsense");
    assert_eq!(fake.word(vec![b'\n'; MOST + 1]), "too-much");
}

#[test]
fn process_that_does_not_answer_delays_no_other() {
    let (silent, answering) = (FakeProcess::new(1), FakeProcess::new(2));
    let _answering = answering.answers(b"dapl-counters 1\nprocess\t7\tx\nend\n".to_vec());
    let found = ask(&[silent.name, answering.name], Instant::now() + RUN_LIMIT, &mut CAPACITY.clone());
    assert!(
        matches!(found[0].result, Err(ReadError::Timeout)),
        "the kernel accepts the connection, but no thread answers: {found:?}"
    );
    assert_eq!(found[1].result.as_ref().map(|process| process.pid).ok(), Some(7), "{found:?}");
    // No thread accepts, so the accept queue fills up.
    let more: Vec<_> = std::iter::repeat_with(|| connect(silent.name)).take(40).collect();
    assert!(more.iter().any(|one| matches!(one, Err(ReadError::Busy))), "{more:?}");
    assert!(matches!(silent.result(), Err(ReadError::Busy)));
}

#[test]
fn process_that_ends_before_its_answer_is_reported_as_incomplete() {
    let FakeProcess { name, listener } = FakeProcess::new(3);
    let (socket, peer) = connect(name).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
    drop(listener);
    let mut queries = [ProcessQuery { name, pid: None, socket: Some(socket), bytes: Vec::new(), error: None }];
    listen(&mut queries, Instant::now() + ANSWER_LIMIT, &mut CAPACITY.clone());
    let [queries] = queries;
    assert!(matches!(queries.found().result, Err(ReadError::Incomplete)));
}

#[test]
fn ended_process_is_omitted_and_a_query_after_the_limit_is_skipped() {
    let fake = FakeProcess::new(4);
    let late = ask(&[fake.name], Instant::now(), &mut CAPACITY.clone());
    assert!(matches!(late[0].result, Err(ReadError::Skipped)));
    let name = fake.name;
    drop(fake);
    assert!(ask(&[name], Instant::now() + RUN_LIMIT, &mut CAPACITY.clone()).is_empty());
}

#[test]
fn socket_with_the_name_of_another_user_is_omitted() {
    let uid = rustix::process::geteuid().as_raw() + 1;
    let name = SocketName { uid, pid: unused_pid(5), number: 0 };
    let listener = socket::listen(name).unwrap();
    assert!(ask(&[name], Instant::now() + RUN_LIMIT, &mut CAPACITY.clone()).is_empty());
    drop(listener);
}

#[test]
fn all_answers_together_are_limited_to_the_capacity() {
    let fakes = [FakeProcess::new(6), FakeProcess::new(7)];
    let _answering: Vec<_> = fakes
        .iter()
        .map(|fake| fake.answers([&b"dapl-counters 1\nx\n"[..], &[b'x'; 900], b"\nend\n"].concat()))
        .collect();
    let mut capacity = 1000;
    let found = ask(&fakes.each_ref().map(|fake| fake.name), Instant::now() + RUN_LIMIT, &mut capacity);
    let refused = found.iter().filter(|found| matches!(found.result, Err(ReadError::TooMuch))).count();
    assert_eq!((refused, found.len()), (1, 2), "{found:?}");
}
